"""What a `notifications/cancelled` ends: only an answer that nobody but its own client can mean (DESIGN 5.7).

In: two clients that know nothing of each other, and a crawl that waits. Out: the answer of each. SDKs count their ids
from 0 or 1, and some hosts give every request one id (DESIGN 2.8).
"""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from uuid import uuid4

import pytest

from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import (
    answer,
    call,
    dumps,
    filtered,
    notification,
    page,
    post,
    request,
    response,
    result,
    task,
)
from tests.relay.rig import Rig, body, final, ids

IDENTITY = b"Authorization: Bearer t0ken"
Answer: TypeAlias = "asyncio.Task[Message]"


class Clients:
    """Clients that the gateway cannot tell apart: at an endpoint of their own, with the same header fields."""

    def __init__(self, rig: Rig, *fields: bytes) -> None:
        self.rig = rig
        self._fields = fields
        self._target = b"/mcp/" + uuid4().hex.encode()

    def post(self, message: object) -> bytes:
        return post(message, *self._fields, target=self._target)

    def packed(self, message: object) -> bytes:
        """The same in an encoding that the gateway does not read."""
        fields = b"Content-Type: application/json", b"Content-Encoding: gzip", *self._fields
        return request(b"POST", self._target, fields, gzip.compress(dumps(message)))

    async def reaches(self, data: bytes) -> tuple[Peer, Answer]:
        """Send a request. Returns the upstream's end of the exchange, and the response to come."""
        number = len(self.rig.upstream.requests) + 1
        asking = self.rig.asking(data)
        return await self.rig.upstream.request(number), asking

    async def asks(self, message_id: object) -> None:
        """A request that is answered."""
        peer, asking = await self.reaches(self.post(call("tools/list", message_id)))
        await peer.send(answer(result(message_id, {"tools": []})))
        await asking

    async def cancels(self, message_id: object) -> None:
        """A cancel that has passed."""
        peer, asking = await self.reaches(self.post(notification("notifications/cancelled", requestId=message_id)))
        await peer.send(response(b"", status=b"202 Accepted"))
        assert (await asking).status == 202

    async def lists(self, message_id: object) -> tuple[Peer, object, Answer]:
        """A filtered list whose crawl waits: its peer and its id, and the answer to come."""
        peer, asking = await self.reaches(self.post(filtered(message_id)))
        return peer, body(self.rig.upstream.requests[-1])["id"], asking


async def finish(*lists: tuple[Peer, object, Answer]) -> None:
    """The crawl ends: each list is answered."""
    peer, crawl_id, _ = lists[0]
    await peer.send(answer(result(crawl_id, page([task("t-0")]))))
    for _, _, asking in lists:
        assert ids(final(await asking)) == ["t-0"]


async def is_ended(list_: tuple[Peer, object, Answer]) -> None:
    """The list gets no response, and its crawl ends."""
    peer, _, asking = list_
    got = await asking
    assert got.whole
    assert b'"result"' not in got.body
    assert b'"error"' not in got.body
    await peer.ends()


# ---- what another client does ----


async def nothing(clients: Clients) -> None:
    pass


async def asked(clients: Clients) -> None:
    await clients.asks(1)


async def under_way(clients: Clients) -> None:
    await clients.reaches(clients.post(call("tools/call", 1)))


async def unread(clients: Clients) -> None:
    await clients.reaches(clients.packed(call("tools/call", 1)))


async def spelled(clients: Clients) -> None:
    await clients.reaches(clients.post(dumps(call("tools/call", 1)).replace(b'"id":1', b'"id":1.0')))


async def batch(clients: Clients) -> None:
    await clients.reaches(clients.post([call("tools/call", 1), call("tools/call", 2)]))


Does: TypeAlias = Callable[[Clients], Awaitable[None]]
DOES: list[Does] = [asked, under_way, unread, spelled, batch]
CASES: list[tuple[Does, Does]] = [*((each, nothing) for each in DOES), *((nothing, each) for each in DOES)]


@pytest.mark.parametrize(("before", "meanwhile"), [*CASES, (nothing, nothing)])
@pytest.mark.parametrize("has_identity", [False, True])
async def test_without_a_session_a_cancel_ends_nothing(
    rig: Rig, has_identity: bool, before: Does, meanwhile: Does
) -> None:
    """Whose it is, nothing says: one user may have two clients."""
    clients = Clients(rig, *[IDENTITY] * has_identity)
    await before(clients)
    other = await clients.lists(1)
    await meanwhile(clients)
    await clients.cancels(1)
    await finish(other)


@pytest.mark.parametrize(("before", "meanwhile"), CASES)
async def test_in_a_session_a_cancel_ends_nothing_where_another_request_may_be_meant(
    rig: Rig, before: Does, meanwhile: Does
) -> None:
    """Two conversations share the session: the other one's request is under way, has been answered, or is unread."""
    clients = Clients(rig, rig.session)
    await before(clients)
    other = await clients.lists(1)
    await meanwhile(clients)
    await clients.cancels(1)
    await finish(other)


async def test_of_two_lists_of_one_id_a_cancel_ends_neither(rig: Rig) -> None:
    clients = Clients(rig, rig.session)
    first = await clients.lists(1)
    second = rig.asking(clients.post(filtered(1)))
    await rig.canary()
    await clients.cancels(1)
    await finish(first, (*first[:2], second))


async def test_a_cancel_that_comes_before_the_list_ends_nothing(rig: Rig) -> None:
    clients = Clients(rig, rig.session)
    await clients.cancels(1)
    await finish(await clients.lists(1))


@pytest.mark.parametrize("other", ["7", 8, "t-7"])
async def test_a_cancel_of_another_id_ends_nothing(rig: Rig, other: object) -> None:
    clients = Clients(rig, rig.session)
    list_ = await clients.lists(7)
    await clients.cancels(other)
    await finish(list_)


async def test_a_cancel_in_another_session_ends_nothing(rig: Rig) -> None:
    clients, others = Clients(rig, rig.session), Clients(rig, b"Mcp-Session-Id: " + uuid4().hex.encode())
    list_ = await clients.lists(7)
    await others.cancels(7)
    await finish(list_)


async def test_a_cancel_ends_the_one_list_that_it_can_mean(rig: Rig) -> None:
    """`1` and `"1"` are two ids (DESIGN 3.8), and other sessions have their own."""
    clients, others = Clients(rig, rig.session), Clients(rig, b"Mcp-Session-Id: " + uuid4().hex.encode())
    await others.asks(1)
    await clients.asks("1")
    await clients.asks(0)
    list_ = await clients.lists(1)
    await clients.cancels(1)
    await is_ended(list_)
