"""Answers of the gateway's own say when they were made (RFC 9110, 6.6.1); those that it relays say what they said."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeAlias

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, filtered, notification, page, result
from tests.relay.rig import Rig, body, gives, rig_with, says
from tests.relay.wire import LAST_CHUNK, chunk, event, post, request, stream

Asks: TypeAlias = Callable[[Rig], Awaitable[Message]]


def asks(asked: bytes) -> Asks:
    async def ask(rig: Rig) -> Message:
        rig.serve(gives(page([])))
        return await rig.ask(asked)

    return ask


async def streamed(rig: Rig) -> Message:
    """A filtered list whose crawl brings another message."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        told = event(notification("notifications/message", level="info", data="x"))
        return stream() + chunk(told + event(result(body(asked)["id"], page([])))) + LAST_CHUNK

    rig.serve(script)
    return await rig.ask(post(filtered()))


async def broken(rig: Rig) -> Message:
    rig.serve(says(b"nonsense\r\n\r\n"))
    return await rig.ask(request())


async def too_many(rig: Rig) -> Message:
    rig.serve(gives({}))
    await rig.ask(post(call("tasks/get")))
    return await rig.ask(post(call("tasks/get")))


OWN: dict[str, tuple[int, Asks]] = {
    "a filtered list": (200, asks(post(filtered()))), "a filtered list as a stream": (200, streamed),
    "a query that is wrong": (200, asks(post(filtered(status=7)))),
    "a Connection that hides": (400, asks(request(fields=[b"Connection: cookie"]))),
    "no request": (400, asks(b"nonsense\r\n\r\n")), "a foreign Host": (403, asks(request(host=b"evil.example"))),
    "no upstream": (404, asks(request(target=b"/"))), "a head too large": (431, asks(request(fields=[b"X: y"] * 300))),
    "too many operations": (429, too_many), "a broken upstream": (502, broken),
    "an upstream that is silent": (504, lambda rig: rig.ask(post(call("ping")))),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
async def test_an_answer_of_the_gateways_own_says_when_it_was_made(gateways: Gateways, name: str) -> None:
    status, ask = OWN[name]
    upstream = {404: {"match": {"prefix": "/nowhere"}}, 504: {"response_timeout": "500ms"}}.get(status, {})
    guards = {"task_operations_per_second": 0.01, "task_operations_burst": 1} if status == 429 else {}
    async with rig_with(gateways, upstream=upstream, guards=guards) as rig:
        got = await ask(rig)
    assert got.status == status
    told = parsedate_to_datetime((got.value(b"date") or b"").decode())
    assert timedelta(0) <= datetime.now(UTC) - told < timedelta(seconds=30)
    assert (got.value(b"date") or b"").endswith(b" GMT")
