"""Storms find what they must: the gateway with one wilful fault does not pass what it passes without.

A fault is named by what it does, and put in by the name of a class and its method, wherever it stands (tests/seams.py).
"""

import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from gateway.errors import GatewayError
from tests.relay.messages import Json
from tests.seams import named, put_in
from tests.soak import cuts, storm
from tests.soak.census import SETTINGS, in_process
from tests.soak.plan import Conversation
from tests.soak.test_storm import EXCHANGE_BYTES_MAX
from tests.soak.upstream import Upstream

EXCHANGES: Final = 200
STORMS_MAX: Final = 8
LEAKING: Final = 100  # exchanges
Patch = pytest.MonkeyPatch
Draw = Callable[[int], Conversation]


async def check_found(
    fault: Callable[[Patch], None], monkeypatch: Patch, wanted: str, settings: Json = SETTINGS, draw: Draw = storm.draw
) -> None:
    """Fail unless a storm finds what is wanted in a gateway with this fault."""
    monkeypatch.setattr("tests.soak.play.SETTLE_S", 0.3)
    monkeypatch.setattr("tests.peer.WAIT_S", 3.0)
    found = ""
    for first in range(1, STORMS_MAX * EXCHANGES, EXCHANGES):
        async with Upstream() as upstream, in_process(upstream, settings) as gate:
            with monkeypatch.context() as patch:
                fault(patch)
                report = await storm.Storm(gate.port, upstream, gate.left, draw).play(first, EXCHANGES)
            upstream.go_down("rst")
        found = "\n".join(f"{storm.called(finding)}: {finding}" for finding in report.findings)
        if re.search(wanted, found, re.MULTILINE):
            return
    raise AssertionError(f"not found: {found}")


Body, Call, Pool = named("Body"), named("Call"), named("Pool")
ClientConnection, UpstreamConnection, HttpCaller = (
    named("ClientConnection"),
    named("UpstreamConnection"),
    named("HttpCaller"),
)


def ends_what_was_cut(patch: Patch) -> None:
    """A body that the upstream broke off is ended as if it were whole."""
    _ends_bodies(patch, by_upstream=True)


def ends_a_request_that_was_cut(patch: Patch) -> None:
    """A request that the client broke off is ended as if it were whole."""
    _ends_bodies(patch, by_upstream=False)
    put_in(patch, "Body.drop", lambda self: self.take())


def _ends_bodies(patch: Patch, by_upstream: bool) -> None:
    fail = Body.fail

    def ending(self: Any, error: Exception) -> bool:
        if isinstance(error, GatewayError) is by_upstream:
            self.finish()
        ended: bool = fail(self, error)
        return ended

    put_in(patch, "Body.fail", ending)


def _constant(value: object) -> property:
    """An attribute that nobody can set."""
    return property(lambda _self: value, lambda _self, _value: None)


def takes_back_what_was_half_read(patch: Patch) -> None:
    """A connection whose response was not read to its end serves the next exchange."""
    put_in(patch, "UpstreamConnection.reusable", _constant(True))
    put_in(patch, "UpstreamConnection.end", lambda self: None)  # which would drop the rest of it


def forgets_to_cancel(patch: Patch) -> None:
    """The exchange of a client that has left goes on."""
    put_in(patch, "ClientConnection.connection_lost", lambda self, exc: None)


def lets_the_connection_lie(patch: Patch) -> None:
    """The upstream's connection is neither closed nor taken back when an exchange is left."""
    put_in(patch, "UpstreamConnection.abort", lambda self: None)


def keeps_its_slot(patch: Patch) -> None:
    """The slot of a request to the upstream that was left early is not given back."""
    call, leave, pools = Pool.call, Call.__aexit__, dict[Any, Any]()

    def calling(self: Any, *given: Any, **more: Any) -> Any:
        made = call(self, *given, **more)
        pools[made] = self
        return made

    async def keeping(self: Any, kind: type[BaseException] | None, *more: Any) -> None:
        pool = pools.pop(self)
        if kind is not None:
            pool.context.slots.change(1)
        await leave(self, kind, *more)

    put_in(patch, "Pool.call", calling)
    put_in(patch, "Call.__aexit__", keeping)


def sends_again(patch: Patch) -> None:
    """A request that the upstream may have carried out is sent once more."""
    send_all = Call.send_all

    async def always(self: Any, head: bytes, body: bytes, timeout_s: float | None, again: bool) -> object:
        return await send_all(self, head, body, timeout_s, again=True)

    put_in(patch, "Call.send_all", always)
    put_in(patch, "UpstreamConnection.used", _constant(True))


def serves_two_at_once(patch: Patch) -> None:
    """A connection goes back to its pool twice."""
    put = Pool.put

    def putting(self: Any, connection: Any) -> None:
        put(self, connection)
        put(self, connection)

    put_in(patch, "Pool.put", putting)


def remembers_connections(patch: Patch) -> None:
    kept: list[Any] = []
    lost = ClientConnection.connection_lost

    def keeping(self: Any, exc: Exception | None) -> None:
        kept.append(self)
        lost(self, exc)

    put_in(patch, "ClientConnection.connection_lost", keeping)


def remembers_bytes(patch: Patch) -> None:
    kept: list[bytes] = []
    up = HttpCaller.up

    def keeping(self: Any, *given: Any) -> Any:
        kept.append(self.headers.block())  # made anew, by the gateway
        return up(self, *given)

    put_in(patch, "HttpCaller.up", keeping)


# Each leak, and in which count it shows.
LEAKS: Final[dict[Callable[[Patch], None], str]] = {
    remembers_connections: r"ClientConnection",
    remembers_bytes: "memory has grown",
}
# Each fault, and what is found: its kind first.
FAULTS: Final[dict[Callable[[Patch], None], str]] = {
    ends_what_was_cut: "^a cut that looks whole",
    takes_back_what_was_half_read: "^(not in time|whole and wrong|foreign|no HTTP)|under way|left behind",
    forgets_to_cancel: "left behind: ",
    lets_the_connection_lie: "left behind: .* requests at the upstream",
    keeps_its_slot: r"503|left behind: .*slots \[[1-9]",
    sends_again: "^sent twice",
    serves_two_at_once: "^foreign|before the last one was answered",
}
CUTS: Final = [ends_what_was_cut, ends_a_request_that_was_cut]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_wilful_fault_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Where more clients leave than usual: in other storms some faults are seldom met."""
    await check_found(fault, monkeypatch, FAULTS[fault], draw=partial(storm.draw, departures=0.5))


@pytest.mark.slow
@pytest.mark.parametrize("fault", CUTS, ids=lambda fault: fault.__name__)
async def test_a_wilful_fault_is_found_among_cuts(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    await check_found(fault, monkeypatch, "^a cut that looks whole", cuts.SETTINGS, cuts.draw)


@pytest.mark.slow
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
async def test_a_wilful_leak_is_found(leak: Callable[[Patch], None], monkeypatch: Patch) -> None:
    async with Upstream() as upstream, in_process(upstream) as gate:
        with monkeypatch.context() as patch:
            leak(patch)
            played = storm.Storm(gate.port, upstream, gate.left)
            await played.play(1, LEAKING)
            if leak is remembers_bytes:
                tracemalloc.start()
            before = await storm.calm(gate, upstream)
            await played.play(LEAKING, LEAKING)
            after = await storm.calm(gate, upstream)
    with pytest.raises(AssertionError, match=LEAKS[leak]):
        after.check(before, EXCHANGE_BYTES_MAX * LEAKING)
