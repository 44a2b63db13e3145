"""One odd answer takes nothing away (DESIGN 6.12): where a server lists nothing, seen tasks are found."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

from tests.launch import Gateways, eventually
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, fault, filtered, page, result, task
from tests.relay.rig import Rig, Session, body, failed, final, ids, meant, rig_with
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, request, response, stream

Odd: TypeAlias = Callable[[Message, Any], bytes | None]
"""The odd answer to a request of that message, if any; None: the server answers as it is."""

TASK: Final = task("t-1")
AT_ONCE: Final = {"max_age": 0, "full_crawl_interval": "1h"}


class Odds:
    """A server that lists nothing and knows the task t-1, but for the answers in `odd`: each goes out once."""

    def __init__(self, *odd: Odd) -> None:
        self.odd = list(odd)

    async def __call__(self, asked: Message, _peer: Peer) -> bytes | None:
        message = body(asked)
        for at, odd in enumerate(self.odd):
            if (said := odd(asked, message)) is not None:
                del self.odd[at]
                return said
        if not isinstance(message, dict):
            return response(b"", status=b"405 Method Not Allowed")
        told = {"tasks/get": TASK, "tasks/list": page([]), "tools/call": {"task": TASK}}
        return answer(result(message["id"], told.get(message["method"], {})))


def to_own(method: str, said: Callable[[Any], bytes]) -> Odd:
    """An odd answer to a request of the gateway's."""

    def odd(asked: Message, message: Any) -> bytes | None:
        is_own = isinstance(message, dict) and message["method"] == method
        return said(message) if is_own and asked.value(b"accept-encoding") == b"identity" else None

    return odd


def to_client(method: bytes, said: Callable[[Any], bytes], name: str | None = None) -> Odd:
    """An odd answer to a request of the client's: of that HTTP method, and that JSON-RPC method."""

    def odd(asked: Message, message: Any) -> bytes | None:
        is_its = asked.method == method and asked.value(b"accept-encoding") is None
        return said(message) if is_its and (name is None or message["method"] == name) else None

    return odd


async def seen(rig: Rig, session: Session) -> None:
    """A client makes the task, and sees it."""
    assert final(await session.ask(call("tools/call", 1, name="x", task={})))["result"] == {"task": TASK}
    assert final(await session.ask(call("tasks/get", 1, taskId="t-1")))["result"] == TASK


async def listed(session: Session) -> list[str]:
    return ids(final(await session.ask(filtered(7))))


def unknown_method(message: Any) -> bytes:
    return answer(fault(message["id"], -32601, "Method not found"))


def streamed(said: Callable[[Any], Json]) -> Callable[[Any], bytes]:
    return lambda message: stream() + chunk(event(said(message))) + LAST_CHUNK


@pytest.mark.parametrize("guards", [{}, {"own_tasks": True}], ids=["", "own tasks"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_an_unknown_method_is_believed_only_where_it_was_never_known(
    gateways: Gateways, count: int, guards: Json
) -> None:
    """One -32601 to the gateway's own `tasks/get` emptied every list for the life of the session."""
    odds = Odds()
    async with rig_with(gateways, odds, index=AT_ONCE, guards=guards) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        odds.odd = [to_own("tasks/get", unknown_method)] * count
        for _ in range(count // 2):  # it is asked again at once
            assert failed(await session.ask(filtered(7))) == (200, 7, -32601)
        assert await listed(session) == ["t-1"]
        assert not odds.odd


@pytest.mark.parametrize("guards", [{}, {"own_tasks": True}], ids=["", "own tasks"])
@pytest.mark.parametrize("code", [-32602, -32002])
async def test_a_task_is_denied_twice_before_it_is_gone(gateways: Gateways, code: int, guards: Json) -> None:
    """One -32602 took a task out of its session's lists for good, where the server lists nothing."""

    def deny(message: Any) -> bytes:
        return answer(fault(message["id"], code, "Failed to retrieve task: Task not found"))

    odds = Odds()
    async with rig_with(gateways, odds, index=AT_ONCE, guards=guards) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        denied, unknown = to_own("tasks/get", deny), to_own("tasks/get", unknown_method)
        for odd in ([denied], [unknown, denied], [denied, unknown], [denied, denied]):
            odds.odd = list(odd)
            assert await listed(session) == ([] if odd == [denied, denied] else ["t-1"])
            assert not odds.odd


@pytest.mark.parametrize("guards", [{}, {"own_tasks": True}], ids=["", "own tasks"])
@pytest.mark.parametrize("new", ["session", "token"])
@pytest.mark.parametrize("said", [-32602, -32002, -32603, b"500 Oh No", b"403 Forbidden"], ids=str)
async def test_a_task_that_another_session_has_shown_is_denied_twice_before_it_is_gone(
    gateways: Gateways, said: int | bytes, new: str, guards: Json
) -> None:
    """One error to the gateway's own `tasks/get` took a task out of all lists of its caller's new session. Three do."""

    def deny(message: Any) -> bytes:
        return response(b"", status=said) if isinstance(said, bytes) else answer(fault(message["id"], said, "no"))

    odds = Odds()
    async with rig_with(gateways, odds, index=AT_ONCE, guards=guards) as rig:
        session = Session(rig)
        await seen(rig, session)
        times_max = 2 if said in (-32602, -32002) else 3
        for times in range(1, times_max + 1):
            odds.odd = [to_own("tasks/get", deny)] * times
            of_session, token = session.session_id, session.token
            his = Session(rig, f"{times}", token) if new == "session" else Session(rig, of_session, f"{times}")
            left = [] if times == times_max else ["t-1"]
            assert await listed(his) == left
            assert not odds.odd
            assert await listed(his) == (left if said in (-32602, -32002) else ["t-1"]), "once a crawl has ended"


@pytest.mark.parametrize("ends", ["in time", "by a success that passes"])
async def test_who_seems_to_know_no_tasks_get_is_asked_again(gateways: Gateways, ends: str) -> None:
    interval = "1s" if ends == "in time" else "1h"
    odds = Odds(*[to_own("tasks/get", unknown_method)] * 2)
    async with rig_with(gateways, odds, index={"max_age": 0, "full_crawl_interval": interval}) as rig:
        session = Session(rig)
        await session.ask(call("tools/call", 1, name="x", task={}))
        assert await listed(session) == []
        assert not odds.odd
        if ends == "in time":

            async def is_there() -> bool:
                return await listed(session) == ["t-1"]

            await eventually(is_there, "it is asked for again")
        else:
            await seen(rig, session)
        assert await listed(session) == ["t-1"]


def empty(status: bytes) -> Callable[[Any], bytes]:
    return lambda _message: response(b"", status=status)


def answered(status: bytes) -> Callable[[Any], bytes]:
    return lambda message: answer(fault(message["id"], -32602, "Task not found"), status=status)


REFUSED: Final[dict[str, tuple[Odd, bytes, object]]] = {
    "a GET": (to_client(b"GET", empty(b"404 Not Found")), b"GET", None),
    "a DELETE": (to_client(b"DELETE", empty(b"404 Not Found")), b"DELETE", None),
    "a HEAD": (to_client(b"HEAD", empty(b"404 Not Found")), b"HEAD", None),
    **{
        f"{name}, {status[:3].decode()}, {said.__name__}": (
            to_client(b"POST", said(status), name),
            b"POST",
            call(name, 2, taskId="t-0"),
        )
        for name in ("tasks/get", "tasks/list", "tools/call", "ping")
        for status in (b"401 Unauthorized", b"403 Forbidden", b"404 Not Found", b"400 Bad Request")
        for said in (answered, empty)
    },
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("guards", [{}, {"own_tasks": True}], ids=["", "own tasks"])
async def test_a_refusal_that_passes_hides_nothing_for_longer_than_the_server_does(
    gateways: Gateways, name: str, guards: Json
) -> None:
    """A 404 on a GET stream, where a server has no such route, took all tasks out of the list."""
    odd, method, message = REFUSED[name]
    odds = Odds()
    async with rig_with(gateways, odds, index={**AT_ONCE, "find_again": "session"}, guards=guards) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        odds.odd = [odd]
        asked = session.request(message) if message is not None else request(method, fields=session.fields())
        told = await rig.ask(asked)
        assert told.status >= 400 or (guards and name.startswith("tasks/")), "with own tasks it is not relayed"
        assert await listed(session) == ["t-1"]


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"403 Forbidden", b"404 Not Found"])
async def test_who_is_refused_is_shown_nothing_until_the_server_accepts_him(gateways: Gateways, status: bytes) -> None:
    odds = Odds()
    async with rig_with(gateways, odds, index={"max_age": "1h"}) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        refusal = to_client(b"POST", empty(status), "ping")
        odds.odd = [refusal, *[to_own("tasks/list", empty(status))] * 3]
        assert (await session.ask(call("ping"))).status == int(status[:3])
        for _ in range(3):
            assert (await session.ask(filtered(7))).status == int(status[:3])
        before = len(rig.asked("tasks/get"))
        assert await listed(session) == ["t-1"]
        assert len(rig.asked("tasks/get")) == before, "what is known is shown again"


@pytest.mark.parametrize("status", [b"404 Not Found", b"400 Bad Request", b"500 Oh No"])
async def test_a_server_that_answers_about_a_task_with_a_status_is_understood(
    gateways: Gateways, status: bytes
) -> None:
    """It failed every list, and the 404 took the session's tasks away."""
    odds = Odds()
    async with rig_with(gateways, odds, index=AT_ONCE) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        odds.odd = [to_own("tasks/get", answered(status))] * 2
        assert await listed(session) == []
        await seen(rig, session)
        assert await listed(session) == ["t-1"]


@pytest.mark.parametrize("said", [{}, "t-1", task("t-2")])
async def test_an_answer_with_another_task_or_none_denies_what_is_unknown_and_takes_nothing_away(
    gateways: Gateways, said: object
) -> None:
    odds, odd = Odds(), to_own("tasks/get", lambda message: answer(result(message["id"], said)))
    async with rig_with(gateways, odds, index=AT_ONCE) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        odds.odd = [odd]
        assert meant(await session.ask(filtered(7))) == 502
        assert await listed(session) == ["t-1"]
        odds.odd = [odd] * 4
        assert ids(final(await session.ask(filtered(7, taskIds=["t-9"])))) == []


NAMELESS: Final = {"code": -32050, "message": "the store is away"}


@pytest.mark.parametrize("method", ["tasks/list", "tasks/get"])
@pytest.mark.parametrize("form", ["json", "stream"])
@pytest.mark.parametrize("names", [{"id": None}, {}])
async def test_an_error_without_an_id_is_that_of_the_request(
    gateways: Gateways, method: str, form: str, names: Json
) -> None:
    """It was a 502, and its message was lost (JSON-RPC 2.0, 5)."""

    def said(_message: Any) -> Json:
        return {"jsonrpc": "2.0", **names, "error": NAMELESS}

    odds = Odds()
    async with rig_with(gateways, odds, index={"max_age": 0, "full_crawl_interval": 0}) as rig:
        session = Session(rig)
        await seen(rig, session)
        assert await listed(session) == ["t-1"]
        odds.odd = [to_own(method, streamed(said) if form == "stream" else lambda message: answer(said(message)))]
        assert final(await session.ask(filtered(7))) == {"jsonrpc": "2.0", "id": 7, "error": NAMELESS}
        assert await listed(session) == ["t-1"]
