"""Responses in odd forms that clients read all the same: what they say of tasks is in the next list (DESIGN 6.5)."""

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.conftest import SMALL_BODY_BYTES, SMALL_EVENT_BYTES
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, initialized, notification, result
from tests.relay.rig import Rig, Session, rig_with
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, response, stream
from tests.world.servers import KINDS, Server
from tests.world.test_lists import listed

Form: TypeAlias = Callable[[bytes], bytes]
"""The response that has a JSON-RPC message in it."""


def of_type(*kinds: bytes) -> Form:
    return lambda data: response(data, *(b"Content-Type: " + kind for kind in kinds))


def cut(*missing: bytes) -> Form:
    """An event stream whose last event lacks its blank line."""

    def form(data: bytes) -> bytes:
        last = event(data, b"id: 7")
        for each in missing:
            last = last.removesuffix(each)
        return stream() + chunk(event(notification("notifications/message"))) + chunk(last) + LAST_CHUNK

    return form


FULL: Final = "TypeScript SDK 1.x"
FORMS: Final[dict[str, Form]] = {
    "a type that begins as JSON does": of_type(b"application/json-rpc"),
    "the type twice": of_type(b"application/json, application/json"),
    "the type in two fields": of_type(b"application/json", b"application/json"),
    "no type": of_type(),
    "a type of text": of_type(b"text/plain"),
    "a last event without its blank line": cut(b"\n"),
    "a last event without any line end": cut(b"\n", b"\n"),
    "UTF-16": lambda data: answer(data.decode().encode("utf-16")),
    "half an event": lambda data: stream() + chunk(event(data)[:-20]) + LAST_CHUNK,
}


class Odd:
    """A server that answers the requests of clients in an odd form, from when that is set."""

    def __init__(self, rig: Rig) -> None:
        self.server = Server(KINDS[FULL])
        self.form: Form | None = None
        self.said: Callable[[], Json] = dict
        rig.serve(self)

    async def __call__(self, asked: Message, peer: Peer) -> bytes:
        if self.form is None or b'"taskgate-' in asked.body:
            return await self.server(asked, peer)
        form, self.form = self.form, None
        return form(dumps(self.said()))


async def stands(session: Session, odd: Odd) -> None:
    """The list is what the server has."""
    page = await listed(session, order="asc")
    assert page["tasks"] == list(odd.server.tasks.values())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_a_task_that_is_made_in_an_odd_response_is_in_the_list(gateways: Gateways, form: Form) -> None:
    """What only some clients can read puts all in doubt. Forms of the message itself: tests/rules/test_passing.py."""
    async with rig_with(gateways, index={"max_age": "1h", "full_crawl_interval": "1h"}) as rig:
        odd, session = Odd(rig), Session(rig)
        await stands(session, odd)
        odd.said = lambda: result(1, {"task": odd.server.tasks[odd.server.add()]})
        odd.form = form
        await session.ask(call("tools/call", 1, name="work", task={}))
        assert len(odd.server.tasks) == 1
        await stands(session, odd)


UNREADABLE: Final[dict[str, Form]] = {
    "too large": lambda data: answer(data[:-1] + b" " * SMALL_BODY_BYTES + b"}"),
    "too large, as an event": lambda data: (
        stream() + chunk(event(data[:-1] + b" " * 2 * SMALL_EVENT_BYTES + b"}")) + LAST_CHUNK
    ),
    "in an unknown encoding": lambda data: answer(data[::-1], b"Content-Encoding: br"),
    "an event stream in an unknown encoding": lambda data: (
        stream(b"Content-Encoding: br") + b"".join(map(chunk, (data[:30], data[30:60], data[60:]))) + LAST_CHUNK
    ),
}


@pytest.mark.parametrize("form", UNREADABLE.values(), ids=UNREADABLE)
async def test_the_log_says_once_that_initialize_could_not_be_edited(
    gateways: Gateways, form: Form, caplog: pytest.LogCaptureFixture
) -> None:
    """Over stdio it did; over HTTP nobody learned why clients saw no filters."""
    limits = {"inspected_body_bytes_max": SMALL_BODY_BYTES, "inspected_event_bytes_max": SMALL_EVENT_BYTES}
    async with rig_with(gateways, limits=limits) as rig:
        odd = Odd(rig)
        odd.form, odd.said = form, lambda: result(1, initialized())
        assert (await Session(rig).ask(call("initialize", 1))).whole
    why = [line.__dict__["why"] for line in caplog.records if line.message == "not advertised"]
    assert why == ["a response to initialize cannot be read: too large, or encoded"]
