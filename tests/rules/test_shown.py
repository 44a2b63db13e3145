"""What errors show of a peer's words: printable, short, and both ends of it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import TEXT_CHARS_MAX, GatewayError, printable, shown

# Any text but one that the escapes could be taken for; halves of surrogate pairs too.
_texts = st.text(st.characters(exclude_characters='\\"'), max_size=50)


@given(_texts)
def test_it_is_printable_and_json_reads_it_back(text: str) -> None:
    assert printable(text).isprintable()
    assert json.loads(f'"{printable(text)}"') == json.loads(json.dumps(text))


@given(_texts.filter(bool), st.integers(1, 200), st.integers(2, 300))
def test_it_is_short_and_has_both_ends(unit: str, times: int, chars_max: int) -> None:
    text, told = unit * times, shown(unit * times, chars_max)
    assert told.isprintable() and len(told) <= chars_max + len("...")
    whole = printable(text)
    assert told == whole if len(whole) <= chars_max else told[: chars_max // 2] == whole[: chars_max // 2]
    assert told[-(chars_max // 2) :] == whole[-(chars_max // 2) :]


def test_an_error_is_short_whoever_makes_it() -> None:
    assert len(str(GatewayError("\x85" * 60_000))) == TEXT_CHARS_MAX + len("...")
