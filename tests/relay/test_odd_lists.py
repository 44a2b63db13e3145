"""Answers of the server's that are odd: no task is lost, and no list is an error for it (DESIGN 6.6, 6.11, 6.12).

Most oddities are drawn by the histories of tests/model, which find each of its wilful faults. Here is what they lack.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from tests.launch import Gateways
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, call, dumps, fault, filtered, in_pages, page, result, task
from tests.relay.rig import Server, Session, answers, body, final, ids, meant, rig_with
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, response, stream

ALL: Final = call("tasks/list", order="asc", orderBy="createdAt")
FORMS: Final[dict[str, Callable[[object], bytes]]] = {
    "JSON": answer,
    "stream": lambda said: stream() + chunk(event(said)) + LAST_CHUNK,
}
Odd: TypeAlias = Callable[[Json], bytes | None]
"""The odd answer to a message, if any."""


def tasks(count: int) -> list[Json]:
    """The last one is live: to ask for it and to look at a page costs less than to read all pages."""
    statuses = {count - 1: "working"}
    return [task(f"t-{n:02}", statuses.get(n, "completed"), f"2026-01-01T00:00:{n:02}Z") for n in range(count)]


def pages_of(said: list[Json], empty_at: int | None = None) -> dict[str | None, Json]:
    """Pages of three; one cursor is written as nothing."""
    return in_pages(said, 3, lambda at: "" if at == empty_at else str(at))


class Odds(Server):
    """A server of these pages, but for the answers in `odd`: each goes out once. It knows the task t-1 as well."""

    def __init__(self, pages: dict[str | None, Json], *odd: Odd) -> None:
        super().__init__(pages, {"tools/call": {"task": task("t-1")}, "tasks/get": task("t-1")})
        self.odd = list(odd)

    async def __call__(self, request: Message, peer: Peer) -> bytes | None:
        for at, odd in enumerate(self.odd):
            if (said := odd(body(request))) is not None:
                del self.odd[at]
                return said
        return await super().__call__(request, peer)


async def listed(session: Session, said: Json = ALL) -> list[str]:
    return ids(final(await session.ask(said)))


def all_of(said: list[Json]) -> list[str]:
    return [str(each["taskId"]) for each in said]


# ---- cursors ----


def of_empty(said: Callable[[object], bytes]) -> Odd:
    return lambda message: said(message["id"]) if message["params"].get("cursor") == "" else None


async def test_an_empty_cursor_that_is_refused_once_is_no_end(gateways: Gateways) -> None:
    refusal = of_empty(lambda asked: answer(fault(asked, -32603, "the database is away")))
    server = Odds(pages_of(tasks(20), empty_at=6), refusal)
    async with rig_with(gateways, server) as rig:
        assert await listed(Session(rig)) == all_of(tasks(20))
        assert not server.odd


async def test_a_busy_server_says_nothing_of_an_empty_cursor(gateways: Gateways) -> None:
    """Two 409 for it were taken for the end, and the list lacked what is behind."""
    refusal = of_empty(lambda _: response(b"", status=b"409 Conflict"))
    async with rig_with(gateways, Odds(pages_of(tasks(20), empty_at=18), *[refusal] * 9), index={"max_age": 0}) as rig:
        assert (await Session(rig).ask(ALL)).status == 409


@pytest.mark.parametrize("said", [*(-32602, -32603, -32601, 0), *(b"400", b"404", b"500"), b"500 JSON-RPC"])
async def test_cursors_that_are_always_refused_are_an_error_after_a_few_requests(
    gateways: Gateways, said: int | bytes
) -> None:
    async def never(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if "cursor" not in message["params"]:
            return answer(result(message["id"], page(tasks(3), "2")))
        error = fault(message["id"], said if isinstance(said, int) else -32603, "Invalid cursor")
        return answer(error) if isinstance(said, int) else answer(error if b"RPC" in said else b"<h1>no", status=said)

    async with rig_with(gateways, never) as rig:
        answered = body(await Session(rig).ask(ALL))
        assert "refused cursors of its own tasks/list 3 times" in answered["error"]["message"]
        assert len(rig.asked("tasks/list")) == 6


@pytest.mark.parametrize("left", [16, 15, 8, 1])
async def test_what_is_appended_after_tasks_have_gone_shows_where_cursors_count_places(
    gateways: Gateways, left: int
) -> None:
    """The page where new tasks appeared began behind them by then: it was empty, and the list lacked them."""
    server = Server(pages_of(tasks(20)), get=lambda name: next((each for each in now if each["taskId"] == name), None))
    now = tasks(20)
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(now)
        now = now[20 - left :]
        for count in range(20, 26):
            now.append(tasks(count + 1)[-1])
            server.pages = {**{str(at): page([]) for at in range(0, 30, 3)}, **pages_of(now)}
            assert set(await listed(session)) >= set(all_of(now))


@pytest.mark.parametrize("is_newest_first", [False, True])
async def test_a_list_whose_order_was_chance_is_crawled_once_that_shows(
    gateways: Gateways, is_newest_first: bool
) -> None:
    """What a look finds may deny the order: then the task may not be the only one that was put elsewhere."""
    said = tasks(12)[:: -1 if is_newest_first else 1]
    end, middle = (task(f"z-{n}", created=f"2025-01-01T00:00:0{n}Z") for n in (1, 2))
    server = Server(pages_of(said))
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(tasks(12))
        said = [*said[:6], middle, *said[6:]]
        server.pages = pages_of([end, *said] if is_newest_first else [*said, end])
        assert await listed(session) == all_of([end, middle, *tasks(12)])


# ---- ids ----


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelt", [str, float, 0, "server-error", -1])
async def test_the_id_of_an_answer_may_be_spelt_otherwise_and_another_is_an_error_that_names_it(
    gateways: Gateways, form: str, spelt: Callable[[int], object] | int | str
) -> None:
    def odd(asked: Message) -> bytes:
        return FORMS[form](result(spelt(body(asked)["id"]) if callable(spelt) else spelt, page(tasks(2))))

    async with rig_with(gateways, answers(odd)) as rig:
        said = final(await Session(rig).ask(ALL))
        if callable(spelt):
            assert ids(said) == all_of(tasks(2))
        else:
            assert said["error"]["message"].endswith(f"its id is {dumps(spelt).decode()}"), said


NAMELESS: Final = {"code": -32050, "message": "the store is away"}


@pytest.mark.parametrize("method", ["tasks/list", "tasks/get"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [{"id": None}, {}])
async def test_an_error_without_an_id_is_that_of_the_request(
    gateways: Gateways, method: str, form: str, names: Json
) -> None:
    """It was a 502, and its message was lost (JSON-RPC 2.0, 5)."""
    server, error = Odds({None: page([])}), {"jsonrpc": "2.0", **names, "error": NAMELESS}
    async with rig_with(gateways, server, index={"max_age": 0, "full_crawl_interval": 0}) as rig:
        session = Session(rig)
        await session.ask(call("tools/call", 1, name="x", task={}))
        assert await listed(session) == ["t-1"]
        server.odd.append(lambda message: FORMS[form](error) if message["method"] == method else None)
        assert final(await session.ask(filtered(7))) == {"jsonrpc": "2.0", "id": 7, "error": NAMELESS}
        assert await listed(session) == ["t-1"]


@pytest.mark.parametrize("said", [{}, "t-1", task("t-2")])
async def test_an_answer_with_another_task_or_none_denies_what_is_unknown_and_takes_nothing_away(
    gateways: Gateways, said: object
) -> None:
    def odd(message: Json) -> bytes | None:
        return answer(result(message["id"], said)) if message["method"] == "tasks/get" else None

    server = Odds({None: page([])})
    async with rig_with(gateways, server, index={"max_age": 0, "full_crawl_interval": "1h"}) as rig:
        session = Session(rig)
        await session.ask(call("tools/call", 1, name="x", task={}))
        assert await listed(session) == ["t-1"]
        server.odd = [odd]
        assert meant(await session.ask(filtered(7))) == 502
        assert await listed(session) == ["t-1"]
        server.odd = [odd] * 4
        assert await listed(session, filtered(7, taskIds=["t-9"])) == []


@pytest.mark.parametrize("form", FORMS)
async def test_a_page_may_be_twice_as_large_as_what_is_read_of_what_passes(gateways: Gateways, form: str) -> None:
    """Some servers list all tasks on one page (DESIGN 2.14)."""
    said = [task(f"t-{n:02}", statusMessage="x" * 900) for n in range(17)]
    script = answers(lambda asked: FORMS[form](result(body(asked)["id"], page(said))))
    limits = {"inspected_body_bytes_max": 10_000, "inspected_event_bytes_max": 10_000}
    async with rig_with(gateways, script, index={"max_age": 0}, limits=limits) as rig:
        assert set(await listed(Session(rig))) == set(all_of(said))
        said *= 2
        assert final(await Session(rig).ask(ALL))["error"]["message"].startswith("Bad Gateway: ")
