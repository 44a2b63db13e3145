"""The soak finds what it must: the gateway with one wilful fault does not pass the seeds that it passes without."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from gateway.downstream.client_connection import ClientConnection
from gateway.errors import GatewayError
from gateway.relay.admission import ResolvedRequest
from gateway.upstream.connection_pool import Call, Pool
from gateway.upstream.server_connection import UpstreamConnection
from tests.relay.messages import Json
from tests.soak import storm
from tests.soak.census import in_process, traced
from tests.soak.plan import Conversation
from tests.soak.play import Player
from tests.soak.test_soak import ROUND_BYTES_MAX
from tests.soak.upstream import Upstream

ROUNDS_MAX: Final = 300
STORMS_MAX: Final = 8
Patch = pytest.MonkeyPatch


async def found_in_a_storm(
    fault: Callable[[Patch], None],
    monkeypatch: Patch,
    wanted: str,
    settings: Json,
    exchanges: int,
    draw: Callable[[int], Conversation] = storm.draw,
) -> str:
    """What storms find in a gateway with this fault, until `wanted` is found: a line each, the kind first."""
    asyncio.get_running_loop().set_debug(False)
    monkeypatch.setattr("tests.soak.play.SETTLE_S", 0.3)
    monkeypatch.setattr("tests.peer.WAIT_S", 3.0)
    found = ""
    for first in range(1, STORMS_MAX * exchanges, exchanges):
        async with Upstream() as upstream, in_process(upstream, settings) as gate:
            with monkeypatch.context() as patch:
                fault(patch)
                report = await storm.Storm(gate.port, upstream, gate.left, draw).play(first, exchanges)
            upstream.go_down("rst")
        found = "\n".join(f"{storm.called(finding)}: {finding}" for finding in report.findings)
        if re.search(wanted, found, re.MULTILINE):
            break
    return found


def ends_what_was_cut(patch: Patch) -> None:
    """A body that the upstream broke off is ended as if it were whole."""
    fail = UpstreamConnection._fail

    def ending(self: UpstreamConnection, error: GatewayError) -> None:
        if self._response is not None:
            self._response.body.finish()
        fail(self, error)

    patch.setattr(UpstreamConnection, "_fail", ending)


def _unchanged(_of: object, _value: object) -> None:
    """Sets nothing."""


def takes_back_what_was_half_read(patch: Patch) -> None:
    """A connection whose response was not read to its end serves the next exchange."""
    patch.setattr(UpstreamConnection, "reusable", property(lambda self: self._response is not None, _unchanged))
    patch.setattr(UpstreamConnection, "end", lambda self: None)  # which would drop the rest of it


def forgets_to_cancel(patch: Patch) -> None:
    """The exchange of a client that has left goes on."""
    lost = ClientConnection.connection_lost

    def connection_lost(self: ClientConnection, exc: Exception | None) -> None:
        self._serving.task = None
        lost(self, exc)

    patch.setattr(ClientConnection, "connection_lost", connection_lost)


def lets_the_connection_lie(patch: Patch) -> None:
    """The upstream's connection is neither closed nor taken back when an exchange is left."""
    abort = UpstreamConnection.abort

    def sometimes(self: UpstreamConnection) -> None:
        if self._response is None:
            abort(self)

    patch.setattr(UpstreamConnection, "abort", sometimes)


def keeps_its_slot(patch: Patch) -> None:
    """The slot of a request to the upstream that was left early is not given back."""
    leave = Call.__aexit__

    async def keeping(self: Call, kind: type[BaseException] | None, *more: Any) -> None:
        if kind is not None:
            self._pool.context.slots.change(1)
        await leave(self, kind, *more)

    patch.setattr(Call, "__aexit__", keeping)


def sends_again(patch: Patch) -> None:
    send_all = Call.send_all

    async def always(self: Call, head: bytes, body: bytes, timeout_s: float | None, again: bool) -> object:
        assert self._connection is not None
        self._connection.used = True
        return await send_all(self, head, body, timeout_s, again=True)

    patch.setattr(Call, "send_all", always)


def serves_two_at_once(patch: Patch) -> None:
    put = Pool.put

    def putting(self: Pool, connection: UpstreamConnection) -> None:
        put(self, connection)
        self._idle.append(connection)

    patch.setattr(Pool, "put", putting)


def remembers_connections(patch: Patch) -> None:
    kept: list[ClientConnection] = []
    lost = ClientConnection.connection_lost

    def keeping(self: ClientConnection, exc: Exception | None) -> None:
        kept.append(self)
        lost(self, exc)

    patch.setattr(ClientConnection, "connection_lost", keeping)


def remembers_bytes(patch: Patch) -> None:
    kept: list[bytes] = []
    up = ResolvedRequest.up

    def keeping(self: ResolvedRequest, body_bytes: int, is_edited: bool) -> bytes:
        kept.append(self.caller.headers.block())  # made anew, by the gateway
        return up(self, body_bytes, is_edited)

    patch.setattr(ResolvedRequest, "up", keeping)


# Each leak, and in which count it shows.
LEAKS: Final[dict[Callable[[Patch], None], str]] = {
    remembers_connections: "gateway.downstream.client_connection.ClientConnection",
    remembers_bytes: "memory has grown",
}
# Each fault, and what is said of the round in which it shows.
FAULTS: Final[dict[Callable[[Patch], None], str]] = {
    ends_what_was_cut: "complete and wrong|cut, and ended cleanly|no list|[Mm]alformed",
    takes_back_what_was_half_read: "not within|another head|complete and wrong|under way|left behind",
    forgets_to_cancel: "left behind: ",
    lets_the_connection_lie: "left behind: .* requests at the upstream",
    keeps_its_slot: "503|not within|left behind",
    sends_again: "came twice",
    serves_two_at_once: "under way|before the last one was answered|the upstream had not failed|not within|"
    "another head|complete and wrong",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_wilful_fault_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    asyncio.get_running_loop().set_debug(False)
    monkeypatch.setattr("tests.soak.play.SETTLE_S", 1.0)
    monkeypatch.setattr("tests.peer.WAIT_S", 8.0)  # what never comes need not be waited for at length
    async with Upstream() as upstream, in_process(upstream) as gate:
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match=FAULTS[fault]) as found:
            fault(patch)
            await Player(gate.port, upstream, gate.left).play(range(1, ROUNDS_MAX))
        print(str(found.value).splitlines()[0][:300])
        upstream.go_down("rst")


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
async def test_a_wilful_leak_is_found(leak: Callable[[Patch], None], monkeypatch: Patch) -> None:
    asyncio.get_running_loop().set_debug(False)
    async with Upstream() as upstream, in_process(upstream) as gate:
        with monkeypatch.context() as patch:
            leak(patch)
            player = Player(gate.port, upstream, gate.left)
            before = await traced(player, gate, range(1, 10))
            after = await traced(player, gate, range(10, 60))
    with pytest.raises(AssertionError, match=LEAKS[leak]):
        after.check(before, ROUND_BYTES_MAX * 50)
