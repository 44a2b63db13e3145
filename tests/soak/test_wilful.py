"""Storms find what they must: the gateway with one wilful fault (tests/edits.py) does not pass as it does without."""

import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from gateway.downstream.client_connection import ClientConnection
from gateway.relay.http_caller import HttpCaller
from tests.edits import faulty
from tests.relay.messages import Json
from tests.soak import cuts, storm
from tests.soak.census import SETTINGS, in_process
from tests.soak.plan import Conversation
from tests.soak.test_storm import EXCHANGE_BYTES_MAX
from tests.soak.upstream import Upstream

EXCHANGES: Final = 200
STORMS_MAX: Final = 8
LEAKING: Final = 100  # exchanges
Patch = pytest.MonkeyPatch

_FAIL: Final = r'(?=if self\.state != "ARRIVING":\n\s+return False\n\s+self\.state, self\._error)'
_ENDS: Final = "type(error).__module__ {} 'gateway.errors' and self.finish()\n    "
CUTS: Final = {
    "a body that the upstream broke off is ended as if it were whole": (_FAIL, _ENDS.format("==")),
    "a request that the client broke off is ended as if it were whole": (
        _FAIL, _ENDS.format("!="),
        r'self\.state = "DROPPED"\n\s+if self\._pieces:\n\s+self\.take\(\)\n\s+self\._error = None', "self.take()",
    ),
}  # fmt: skip
# Each fault, what is found, its kind first, and where it is put in.
FAULTS: Final = {
    "a body that the upstream broke off is ended": (
        "^a cut that looks whole", *CUTS["a body that the upstream broke off is ended as if it were whole"],
    ),
    "a connection whose response was not read to its end serves the next exchange": (
        "^(not in time|whole and wrong|foreign|no HTTP)|under way|left behind",
        r"not self\._sent or not connection\.reusable or ", "not self._sent or ",
        r"self\._response\.body\.drop\(\)(?=\n\s+self\._reservation\.close\(\)\n\s+self\._head = )", "return",
    ),
    "the exchange of a client that has left goes on": (
        "left behind: ",
        r'(?=super\(\)\.connection_lost\(exc\)\n\s+self\._enter\("CLOSED"\)\n\s+self\._owner)', "return\n    ",
    ),
    "the upstream's connection is neither closed nor taken back when an exchange is left": (
        "left behind: .* requests at the upstream", r"(connection\.lost:\s+)connection\.abort\(\)", r"\1pass",
    ),
    "the slot of a request to the upstream that was left early is not given back": (
        r"503|left behind: .*slots \[[1-9]",
        r"pool\.context\.slots\.change\(-1\)(?=\n\s+pool\.active)", "_[0] or pool.context.slots.change(-1)",
    ),
    "a request that the upstream may have carried out is sent once more": (
        "^sent twice", r"not again or (connection\.answered) or not connection\.used", r"\1",
    ),
    "a connection goes back to its pool twice": (
        "^foreign|before the last one was answered",
        r"self\._idle\.append\(connection\)", "self._idle += [connection] * 2",
    ),
}  # fmt: skip


async def check_found(
    what: str, change: tuple[str, ...], monkeypatch: Patch, wanted: str, settings: Json = SETTINGS,
    draw: Callable[[int], Conversation] = storm.draw,
) -> None:  # fmt: skip
    """Fail unless a storm finds what is wanted in a gateway with this fault."""
    monkeypatch.setattr("tests.soak.play.SETTLE_S", 0.3)
    monkeypatch.setattr("tests.peer.WAIT_S", 3.0)
    found = ""
    for first in range(1, STORMS_MAX * EXCHANGES, EXCHANGES):
        async with Upstream() as upstream, in_process(upstream, settings) as gate:
            with faulty(what, change):
                report = await storm.Storm(gate.port, upstream, gate.left, draw).play(first, EXCHANGES)
            upstream.go_down("rst")
        found = "\n".join(f"{storm.called(finding)}: {finding}" for finding in report.findings)
        if re.search(wanted, found, re.MULTILINE):
            return
    raise AssertionError(f"not found: {found}")


# What is remembered of whoever has a method when it is called, and in which count that shows.
LEAKS: Final[dict[str, tuple[type, str, Callable[[Any], object], str]]] = {
    "connections": (ClientConnection, "connection_lost", lambda connection: connection, "ClientConnection"),
    "bytes": (HttpCaller, "up", lambda caller: caller.headers.block(), "memory has grown"),  # made anew, by the gateway
}


def remember(patch: Patch, owner: type, method: str, what: Callable[[Any], object]) -> None:
    right, kept = getattr(owner, method), list[object]()

    def keeping(self: Any, *given: Any) -> Any:
        kept.append(what(self))
        return right(self, *given)

    patch.setattr(owner, method, keeping)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_wilful_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    """Where more clients leave than usual: in other storms some faults are seldom met."""
    wanted, *change = FAULTS[fault]
    await check_found(fault, tuple(change), monkeypatch, wanted, draw=partial(storm.draw, departures=0.5))


@pytest.mark.slow
@pytest.mark.parametrize("fault", CUTS)
async def test_a_wilful_fault_is_found_among_cuts(fault: str, monkeypatch: Patch) -> None:
    await check_found(fault, CUTS[fault], monkeypatch, "^a cut that looks whole", cuts.SETTINGS, cuts.draw)


@pytest.mark.slow
@pytest.mark.parametrize("leak", LEAKS)
async def test_a_wilful_leak_is_found(leak: str, monkeypatch: Patch) -> None:
    owner, method, what, found = LEAKS[leak]
    async with Upstream() as upstream, in_process(upstream) as gate:
        with monkeypatch.context() as patch:
            remember(patch, owner, method, what)
            played = storm.Storm(gate.port, upstream, gate.left)
            await played.play(1, LEAKING)
            if leak == "bytes":
                tracemalloc.start()
            before = await storm.calm(gate, upstream)
            await played.play(LEAKING, LEAKING)
            after = await storm.calm(gate, upstream)
    with pytest.raises(AssertionError, match=found):
        after.check(before, EXCHANGE_BYTES_MAX * LEAKING)
