"""Of a stream of HTTP+SSE (2024-11-05) the first event alone is edited, whatever the chunking (DESIGN 3.10)."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.buffers import Account, Buffers
from gateway.transport.taps import EventTap, Inspector

MOVED = b"/research/m"
ENDPOINT = b"event: endpoint\ndata: /m\n\n"
SILENT = [b"retry: 3000\n\n", b"id: 1\n\n", b": data: x\n\n", b"event: endpoint\n\n", b"\n", b"datum: x\n\n"]
ENDPOINTS = [
    ENDPOINT,
    b"event:endpoint\ndata:/m\n\n",
    b"id: 1\nevent: endpoint\ndata: /m\n\n",
    b": c\nretry: 1\nevent: x\nevent: endpoint\n: c\ndata: /m\nid: 2\n\n",
]
OTHERS = [
    b"data: /m\nevent: endpoint\n\n",
    b"data: /m\n\n",
    b"data\n\n",
    b"event: other\ndata: /m\n\n",
    b"event: endpoint\ndata: /m\nevent\n\n",
]


def same(data: bytes) -> bytes:
    return data


def moved(data: bytes) -> bytes:
    return b"/research" + data


MOVES_AN_ENDPOINT = Inspector(same, lambda: None, (b"endpoint",), edits=True, endpoint=moved, edits_endpoint=True)


def tap(event_bytes_max: int = 1000) -> EventTap:
    return EventTap(MOVES_AN_ENDPOINT, bytes, event_bytes_max, Account(Buffers(10_000)))


@given(
    st.lists(st.sampled_from(SILENT), max_size=3),
    st.sampled_from(ENDPOINTS + OTHERS),
    st.lists(st.sampled_from(SILENT + ENDPOINTS + OTHERS), max_size=3),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
    st.lists(st.integers(1, 100), max_size=10),
)
def test_the_first_event_with_data_is_edited_if_it_is_an_endpoint(
    silent: list[bytes], first: bytes, others: list[bytes], end: bytes, bom: bool, cuts: list[int]
) -> None:
    before, behind = b"\xef\xbb\xbf" * bom + b"".join(silent), b"".join(others) + b"data: ha"
    said = (before + first + behind).replace(b"\n", end)
    moved = first.replace(b"/m", MOVED) if first in ENDPOINTS else first
    at, got, whole = 0, tap(), []
    for cut in cuts:
        whole.append(got.edit(said[at : at + cut]))
        at += cut
    whole.append(got.edit(said[at:]))
    expected = (before + moved + behind).replace(b"\n", end)
    assert b"".join(whole) == expected, "nothing waits any more, though an event has only begun"
    assert got.rest() == b""
    pieces = [bytes([byte]) for byte in said]
    one_by_one = tap()
    seen = [one_by_one.edit(piece) for piece in pieces]
    assert b"".join(seen) == expected
    if first in OTHERS[:-1]:
        assert seen[len(before.replace(b"\n", end)) :] == pieces[len(before.replace(b"\n", end)) :], "nothing waits"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_first_event_that_is_too_large_to_hold_passes_as_it_comes_and_so_does_all_behind_it(size: int) -> None:
    said = b"event: endpoint\ndata: /%b\n\n" % (b"m" * 100) + ENDPOINT
    passing = tap(event_bytes_max=50)
    assert b"".join(passing.edit(said[at : at + size]) for at in range(0, len(said), size)) == said


@pytest.mark.parametrize("line", [b"a\n", b"\n", b": c\n", b"event: endpoint\n", b"x" * 100])
def test_a_byte_of_a_first_event_costs_the_same_however_much_came_before_it(line: bytes) -> None:
    """All lines were read again for each segment: 330 us for a byte, where it takes 5."""

    def seconds(before_bytes: int) -> float:
        one = tap(event_bytes_max=1 << 20)
        one.edit(b"event: endpoint\nid: 1\n" + line * (before_bytes // len(line)))
        began_s = time.process_time()
        for _ in range(300):
            one.edit(b"a")
            one.edit(b"\n")
        return time.process_time() - began_s

    assert min(seconds(14_000) for _ in range(3)) < 10 * min(seconds(140) for _ in range(3))


def test_a_first_event_that_never_ends_goes_out_at_the_end() -> None:
    broken = tap()
    assert broken.edit(b": hello\n\nevent: endpoint\ndata: /m\n") == b": hello\n\nevent: endpoint\n"
    assert broken.rest() == b"data: /m\n"
