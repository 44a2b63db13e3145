"""The comparison finds what it must: a case agrees with itself, and with one wilful change it does not."""

from dataclasses import replace
from typing import Any

import pytest

from tests.launch import listening
from tests.peer import Client, NotInTime
from tests.relay.harness import LAG_MAX_S, Case, Recording, Step, differences, exchange, late, record
from tests.relay.harness import upstream_ends as ends
from tests.relay.messages import LAST_CHUNK, call, chunk, event, post, request, response, stream

ASK = post(call("tools/call"), b"Mcp-Session-Id: 0f8c", b"X-Order: 1", b"X-Order: 2", target=b"/a%2Fb//c?")
ONE, TWO = chunk(event(b'"one"', b"id: 1")), chunk(event(b'"two"', b"id: 2"))
EVENTS = [stream(b"Mcp-Session-Id: 0f8c"), ONE, TWO]

EXCHANGE = Case("an exchange", exchange(ASK, response(b"answer", b"Mcp-Session-Id: 0f8c", b"Set-Cookie: a, b")))
STREAM = Case("a stream", exchange(ASK, [*EVENTS, LAST_CHUNK]))
CUT = Case("a cut", [*exchange(ASK, EVENTS), ends("fin")])
_UNTIL: list[Step] = exchange(request(), [b"HTTP/1.1 200 OK\r\n\r\n", b"half"])
RESET = Case("a reset", [*_UNTIL, ends("rst")])

ORDER, SESSION = b"X-Order: 1\r\nX-Order: 2", b"Mcp-Session-Id: 0f8c\r\n"
# What is changed, in what is sent by whom, and what is told of it.
CHANGES: dict[str, tuple[Case, str, Any, Any, str]] = {
    "nothing in a cut": (CUT, "client", b"", b"", ""),
    "nothing in a stream": (STREAM, "client", b"", b"", ""),
    "nothing in a reset": (RESET, "client", b"", b"", ""),
    "a header lower-cased": (EXCHANGE, "upstream", b"Set-Cookie", b"set-cookie", "a response"),
    "a session id dropped": (EXCHANGE, "client", SESSION, b"", "a request"),
    "a session id dropped from the answer": (EXCHANGE, "upstream", SESSION, b"", "a response"),
    "headers reordered": (EXCHANGE, "client", ORDER, b"X-Order: 2\r\nX-Order: 1", "a request"),
    "repeated headers joined": (EXCHANGE, "client", ORDER, b"X-Order: 1, 2", "a request"),
    "a header added": (EXCHANGE, "client", ORDER, b"Via: 1\r\n" + ORDER, "a request"),
    "a target decoded": (EXCHANGE, "client", b"%2F", b"/", "a request"),
    "an empty query dropped": (EXCHANGE, "client", b"? HTTP", b" HTTP", "a request"),
    "a status line changed": (EXCHANGE, "upstream", b"200 OK", b"200 Ok", "a response"),
    "a byte changed": (EXCHANGE, "upstream", b"answer", b"Answer", "a response"),
    "another Host": (EXCHANGE, "client", b"Host: l", b"Host: L", "a request"),
    "a request sent twice": (EXCHANGE, "client", ASK, ASK * 2, "the number of requests"),
    "an event twice": (STREAM, "upstream", ONE, 2 * ONE, "a response"),
    "an event's id dropped": (STREAM, "upstream", b"id: 1\n", b"id:\nx:", "a response"),
    "a truncated body ended cleanly": (CUT, "upstream", TWO, TWO + LAST_CHUNK, "the outcome"),
    "a reset passed on as an end": (RESET, "upstream ends", "rst", "fin", "the outcome"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
async def test_a_wilful_change_is_found_and_nothing_else(change: str) -> None:
    case, where, old, new, told = CHANGES[change]
    steps = [(kind, *(each.replace(old, new) if kind == where and old else each for each in given))
             for kind, *given in case.steps]  # fmt: skip
    with listening() as straight, listening() as sock:
        direct, other = await record(case, straight, None), await record(replace(case, steps=steps), sock, None)
    found = differences(direct, other, b"localhost")
    assert told in "\n".join(found) if told else not found


def test_what_comes_late_is_told() -> None:
    quick, slow = (Recording([], [], "whole", [lag_s]) for lag_s in (0.01, 0.02 + LAG_MAX_S))
    assert (late(quick, quick), len(late(quick, slow))) == ([], 1)


async def test_what_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is held until its end."""
    monkeypatch.setattr("tests.peer.WAIT_S", 0.2)
    monkeypatch.setattr(Client, "_receive", lambda *_: None)
    with listening() as sock, pytest.raises(NotInTime, match="at the client"):
        await record(STREAM, sock, None)
