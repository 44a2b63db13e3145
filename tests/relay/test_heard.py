"""Responses in odd forms that clients read all the same: what they say of tasks is in the next list (DESIGN 6.5)."""

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, filtered, initialized, notification, page, result, task
from tests.relay.rig import Server, Session, body, final, ids, rig_with
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, response, stream

Form: TypeAlias = Callable[[bytes], bytes]
"""The response that has a JSON-RPC message in it."""


def of_type(*kinds: bytes) -> Form:
    return lambda data: response(data, *(b"Content-Type: " + kind for kind in kinds))


def cut(missing_bytes: int) -> Form:
    """An event stream whose last event lacks its end."""
    before = chunk(event(notification("notifications/message")))
    return lambda data: stream() + before + chunk(event(data, b"id: 7")[:-missing_bytes]) + LAST_CHUNK


FORMS: Final[dict[str, Form]] = {
    "a type that begins as JSON does": of_type(b"application/json-rpc"),
    "the type twice": of_type(b"application/json, application/json"),
    "the type in two fields": of_type(b"application/json", b"application/json"),
    "no type": of_type(),
    "a type of text": of_type(b"text/plain"),
    "a last event without its blank line": cut(1),
    "a last event without any line end": cut(2),
    "UTF-16": lambda data: answer(data.decode().encode("utf-16")),
    "half an event": cut(22),
    "too large": lambda data: answer(data[:-1] + b" " * 8192 + b"}"),
    "too large, as an event": lambda data: stream() + chunk(event(data[:-1] + b" " * 8192 + b"}")) + LAST_CHUNK,
    "in an unknown encoding": lambda data: answer(data[::-1], b"Content-Encoding: br"),
    "a stream in an unknown encoding": lambda data: stream(b"Content-Encoding: br") + chunk(data) + LAST_CHUNK,
}
UNREADABLE: Final = list(FORMS)[-4:]


@pytest.mark.parametrize("form", FORMS)
async def test_what_a_response_in_an_odd_form_says_is_in_the_list_or_in_the_log(
    gateways: Gateways, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What only some clients can read puts all in doubt. The log says once that `initialize` could not be edited."""
    tasks, pages = list[Json](), dict[str | None, Json]()
    server = Server(pages, {"initialize": initialized()})

    async def odd(asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        if b'"taskgate-' in asked.body or (message["method"] == "initialize" and form not in UNREADABLE):
            return await server(asked, peer)
        said = initialized()
        if message["method"] == "tools/call":
            tasks.append(task("t-1"))
            pages[None], said = page(tasks), {"task": tasks[0]}
        return FORMS[form](dumps(result(1, said)))

    limits = {"inspected_body_bytes_max": 4096, "inspected_event_bytes_max": 4096}
    index = {"max_age": "1h", "full_crawl_interval": "1h"}
    pages[None] = page([])
    async with rig_with(gateways, odd, limits=limits, index=index) as rig:
        session = Session(rig)
        assert (await session.ask(call("initialize", 1))).whole
        assert ids(final(await session.ask(filtered()))) == []
        await session.ask(call("tools/call", 1, name="work", task={}))
        assert ids(final(await session.ask(filtered()))) == ["t-1"]
    why = [line.__dict__["why"] for line in caplog.records if line.message == "not advertised"]
    assert why == ["a response to initialize cannot be read: too large, or encoded"] * (form in UNREADABLE)
