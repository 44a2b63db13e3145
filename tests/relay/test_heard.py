"""Responses in odd forms that clients read all the same: what they say of tasks is in the next list (DESIGN 6.5)."""

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.conftest import SMALL_BODY_BYTES, SMALL_EVENT_BYTES
from tests.relay.http1 import Message
from tests.relay.messages import (
    LAST_CHUNK,
    Json,
    answer,
    call,
    chunk,
    dumps,
    event,
    fault,
    initialized,
    notification,
    request,
    response,
    result,
    stream,
)
from tests.relay.rig import Rig, Session, rig_with
from tests.world.servers import KINDS, Server, shown
from tests.world.test_lists import listed

Form: TypeAlias = Callable[[bytes], bytes]
"""The response that has a JSON-RPC message in it."""

EMPTY, FULL = "FastMCP 3.4", "TypeScript SDK 1.x"


def of_type(*kinds: bytes) -> Form:
    return lambda data: response(data, *(b"Content-Type: " + kind for kind in kinds))


def with_id(raw: bytes) -> Form:
    return lambda data: answer(data.replace(b'"id":1,', b'"id":%b,' % raw))


def cut(*missing: bytes) -> Form:
    """An event stream whose last event lacks its blank line."""

    def form(data: bytes) -> bytes:
        last = event(data, b"id: 7")
        for each in missing:
            last = last.removesuffix(each)
        return stream() + chunk(event(notification("notifications/message"))) + chunk(last) + LAST_CHUNK

    return form


def with_null(data: bytes) -> bytes:
    return answer(data if b'"error"' in data else data.replace(b'"result"', b'"error":null,"result"'))


def in_latin_1(data: bytes) -> bytes:
    """A response in whose task, or error, a text is no UTF-8."""
    return answer(data.replace(b'"status":', b'"note":"caf\xe9","status":').replace(b'"message":"', b'"message":"\xe9'))


READ: Final[dict[str, Form]] = {
    "a type that begins as JSON does": of_type(b"application/json-rpc"),
    "the type twice": of_type(b"application/json, application/json"),
    "the type in two fields": of_type(b"application/json", b"application/json"),
    "no type": of_type(),
    "a type of text": of_type(b"text/plain"),
    "the id as a string": with_id(b'"1"'),
    "the id with a fraction": with_id(b"1.0"),
    "an error of null": with_null,
    "text in Latin-1": in_latin_1,
    "a last event without its blank line": cut(b"\n"),
    "a last event without any line end": cut(b"\n", b"\n"),
}
IN_DOUBT: Final[dict[str, Form]] = {
    "UTF-16": lambda data: answer(data.decode().encode("utf-16")),
    "UTF-16 of the other order": lambda data: answer(data.decode().encode("utf-16-be")),
    "half an event": lambda data: stream() + chunk(event(data)[:-20]) + LAST_CHUNK,
}
forms = pytest.mark.parametrize("form", READ.values(), ids=READ)


class Odd:
    """A server that answers the requests of clients in an odd form, from when that is set."""

    def __init__(self, rig: Rig, kind: str) -> None:
        self.server = Server(KINDS[kind])
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


async def one_known(rig: Rig) -> tuple[Odd, Session, str]:
    """A server whose own list is empty, a session of it, and the id of a task that the gateway knows."""
    odd, session = Odd(rig, EMPTY), Session(rig)
    task_id = odd.server.add()
    await session.ask(call("tasks/get", taskId=task_id))
    await stands(session, odd)
    return odd, session, task_id


@pytest.mark.parametrize("kind", [EMPTY, FULL])
@forms
async def test_a_task_that_is_made_in_an_odd_response_is_in_the_list(gateways: Gateways, form: Form, kind: str) -> None:
    async with rig_with(gateways, index={"max_age": "1h", "full_crawl_interval": "1h"}) as rig:
        odd, session = Odd(rig, kind), Session(rig)
        await stands(session, odd)
        odd.said = lambda: result(1, {"task": odd.server.tasks[odd.server.add()]})
        odd.form = form
        await session.ask(call("tools/call", 1, name="work", task={}))
        assert len(odd.server.tasks) == 1
        await stands(session, odd)


@forms
@pytest.mark.parametrize("gone", [False, True])
async def test_a_task_that_ends_or_goes_in_an_odd_response_does_so_in_the_list(
    gateways: Gateways, form: Form, gone: bool
) -> None:
    async with rig_with(gateways, index={"max_age": "1h", "full_crawl_interval": "1h"}) as rig:
        odd, session, task_id = await one_known(rig)

        def said() -> Json:
            if gone:
                del odd.server.tasks[task_id]
                return fault(1, -32602, "Task not found")
            odd.server.change(task_id, "completed")
            return result(1, odd.server.tasks[task_id])

        odd.said, odd.form = said, form
        await session.ask(call("tasks/get", 1, taskId=task_id))
        assert odd.form is None
        await stands(session, odd)


@pytest.mark.parametrize("form", IN_DOUBT.values(), ids=IN_DOUBT)
async def test_what_only_some_clients_can_read_puts_all_in_doubt(gateways: Gateways, form: Form) -> None:
    async with rig_with(gateways, index={"max_age": "1h", "full_crawl_interval": "1h"}) as rig:
        odd, session = Odd(rig, FULL), Session(rig)
        await stands(session, odd)
        odd.said, odd.form = lambda: result(1, {"task": odd.server.tasks[odd.server.add()]}), form
        await session.ask(call("tools/call", 1, name="work", task={}))
        await stands(session, odd)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("missing", [(b"\n",), (b"\n", b"\n")])
async def test_a_last_notification_without_its_blank_line_is_heard_and_passes_as_it_came(
    gateways: Gateways, resumed: bool, missing: tuple[bytes, ...]
) -> None:
    async with rig_with(gateways, index={"max_age": "1h", "full_crawl_interval": "1h"}) as rig:
        odd, session, task_id = await one_known(rig)
        odd.server.change(task_id, "completed")
        told = notification("notifications/tasks/status", **odd.server.tasks[task_id])
        odd.said, odd.form = lambda: told, cut(*missing)
        fields = [b"Accept: text/event-stream", *session.fields(), *[b"Last-Event-ID: 6"] * resumed]
        got = await rig.ask(request(fields=fields))
        assert got.whole
        assert got.body.endswith(b"id: 7\ndata: " + dumps(told) + b"\n" * (2 - len(missing)))
        await stands(session, odd)


async def test_a_server_that_writes_a_null_error_into_all_its_responses_has_filtered_lists(gateways: Gateways) -> None:
    """Every list failed, with an error of null."""
    async with rig_with(gateways, index={"max_age": "0s", "full_crawl_interval": "0s"}) as rig:
        server, session = Server(KINDS[FULL]), Session(rig)

        async def script(asked: Message, peer: Peer) -> bytes:
            return with_null((await server(asked, peer)).partition(b"\r\n\r\n")[2])

        rig.serve(script)
        server.fill(12, 4)
        assert len(shown(await listed(session, status="working"))) == 4


@pytest.mark.parametrize("kind", [EMPTY, FULL])
async def test_a_task_that_is_never_utf_8_is_in_the_list_with_the_replacement_character(
    gateways: Gateways, kind: str
) -> None:
    """Every list failed where the server's own list showed the task, and none had it where that was empty."""
    async with rig_with(gateways, index={"max_age": "0s", "full_crawl_interval": "0s"}) as rig:
        server, session = Server(KINDS[kind]), Session(rig)

        async def script(asked: Message, peer: Peer) -> bytes:
            return in_latin_1((await server(asked, peer)).partition(b"\r\n\r\n")[2])

        rig.serve(script)
        one, other = server.add(), server.add()
        for task_id in (one, other):
            passed = await session.ask(call("tasks/get", taskId=task_id))
            assert b'"note":"caf\xe9"' in passed.body
        tasks = (await listed(session, order="asc"))["tasks"]
        assert [(task["taskId"], task["note"]) for task in tasks] == [(one, "caf\ufffd"), (other, "caf\ufffd")]


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
        odd = Odd(rig, FULL)
        odd.form, odd.said = form, lambda: result(1, initialized())
        assert (await Session(rig).ask(call("initialize", 1))).whole
    why = [line.__dict__["why"] for line in caplog.records if line.message == "not advertised"]
    assert why == ["a response to initialize cannot be read: too large, or encoded"]
