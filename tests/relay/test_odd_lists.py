"""Lists of the server's that are odd: no task is lost, and no list is an error for it (DESIGN 6.6, 6.11)."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from tests.launch import Gateways
from tests.peer import Peer
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
    filtered,
    page,
    response,
    result,
    stream,
    task,
)
from tests.relay.rig import Server, Session, body, final, ids, rig_with

PAGE_SIZE: Final = 3
ALL: Final = call("tasks/list", order="asc", orderBy="createdAt")


def tasks(count: int) -> list[Json]:
    """The last one is live: to ask for it and to look at a page costs less than to read all pages."""
    statuses = {count - 1: "working"}
    return [task(f"t-{n:02}", statuses.get(n, "completed"), f"2026-01-01T00:00:{n:02}Z") for n in range(count)]


async def listed(session: Session, said: Json = ALL) -> list[str]:
    return ids(final(await session.ask(said)))


def all_of(said: list[Json]) -> list[str]:
    return [str(each["taskId"]) for each in said]


# ---- an empty cursor ----

Refusal = Callable[[object], bytes]


class EmptyCursors:
    """A server whose cursors are counts of tasks. One of them is `""`: the one at `empty_at`, or the list's end.

    `of_empty`: what it says to that at the end.
    """

    def __init__(self, said: list[Json], empty_at: int | None, of_empty: Refusal | str = "") -> None:
        self.tasks, self.empty_at, self.of_empty = said, empty_at, of_empty

    async def __call__(self, asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if message["method"] == "tasks/get":
            found = [each for each in self.tasks if each["taskId"] == message["params"]["taskId"]]
            return answer(result(message["id"], *found) if found else fault(message["id"], -32602, "no such task"))
        cursor = message["params"].get("cursor")
        if cursor == "" and self.empty_at is None and not isinstance(self.of_empty, str):
            return self.of_empty(message["id"])
        if cursor == "" and self.empty_at is None and self.of_empty == "nothing":
            return answer(result(message["id"], page([], "")))
        start = 0 if cursor is None else (self.empty_at or 0) if cursor == "" else int(cursor)
        end = start + PAGE_SIZE
        following = str(end) if end < len(self.tasks) else None if self.empty_at is not None else ""
        if end == self.empty_at:
            following = ""
        return answer(result(message["id"], page(self.tasks[start:end], following)))


def error_of(code: int) -> Refusal:
    return lambda asked: answer(fault(asked, code, "Invalid cursor"))


def status_of(status: bytes, said: bytes = b"<h1>no</h1>") -> Refusal:
    return lambda _: response(said, b"Content-Type: text/html", status=status)


STALE: Final[dict[str, Refusal]] = {
    **{str(code): error_of(code) for code in (-32602, -32603, -32601, 0)},
    **{str(status): status_of(b"%d No" % status) for status in (400, 404, 500)},
    "500, JSON-RPC": lambda asked: answer(fault(asked, -32603, "Invalid cursor"), status=b"500 No"),
}
EMPTY_ENDS: Final[dict[str, Refusal | str]] = {"the first page": "", "an empty page, and it": "nothing", **STALE}


@pytest.mark.parametrize("empty_at", [PAGE_SIZE, 3 * PAGE_SIZE])
async def test_an_empty_cursor_has_pages_behind_it(gateways: Gateways, empty_at: int) -> None:
    """MCP 2025-11-25, Pagination: only an absent one is the end. The list was cut there without a sign."""
    server = EmptyCursors(tasks(20), empty_at)
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(server.tasks)
        server.tasks = tasks(25)
        assert await listed(session) == all_of(server.tasks)


@pytest.mark.parametrize("said", EMPTY_ENDS)
@pytest.mark.parametrize("count", [2, 20])
async def test_an_empty_cursor_that_leads_nowhere_is_the_end(gateways: Gateways, said: str, count: int) -> None:
    server = EmptyCursors(tasks(count), None, EMPTY_ENDS[said])
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(server.tasks)
        pages = -(-count // PAGE_SIZE)
        assert len(rig.asked("tasks/list")) <= pages + 2
        before, server.tasks = len(rig.asked("tasks/list")), tasks(count + 2)
        assert await listed(session) == all_of(server.tasks)
        looks = 2 + (said == "404")  # after a 404 the server is first asked whether it serves the caller (7.4)
        assert count < 8 or len(rig.asked("tasks/list")) - before <= looks, "a look at the last page, which is its end"


async def test_a_busy_server_says_nothing_of_an_empty_cursor(gateways: Gateways) -> None:
    """Two 409 for it were taken for the end, and the list lacked what is behind."""
    server = EmptyCursors(tasks(20), None, status_of(b"409 Conflict"))
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        assert (await Session(rig).ask(ALL)).status == 409


async def test_an_empty_cursor_that_is_refused_once_is_no_end(gateways: Gateways) -> None:
    server = EmptyCursors(tasks(20), 2 * PAGE_SIZE)
    refused = list[object]()

    async def once(asked: Message, peer: Peer) -> bytes:
        if body(asked)["params"].get("cursor") == "" and not refused:
            refused.append(asked)
            return answer(fault(body(asked)["id"], -32603, "the database is away"))
        return await server(asked, peer)

    async with rig_with(gateways, once) as rig:
        assert await listed(Session(rig)) == all_of(server.tasks)
        assert refused


# ---- a cursor that is stale ----


class Renumbered:
    """A server whose cursors are good for one edition of the list, which each `renew` ends."""

    def __init__(self, said: list[Json], stale: Refusal) -> None:
        self.tasks, self._stale, self._edition = said, stale, 0
        self.renews_before: int | None = None  # a page is asked for, counted from 0: the list is renewed then

    def renew(self) -> None:
        self._edition += 1

    async def __call__(self, asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if message["method"] == "tasks/get":
            found = next(each for each in self.tasks if each["taskId"] == message["params"]["taskId"])
            return answer(result(message["id"], found))
        edition, _, at = message["params"].get("cursor", f"{self._edition}:0").partition(":")
        if self.renews_before == int(at) // PAGE_SIZE:
            self.renews_before = None
            self.renew()
        if message["params"].get("cursor") and int(edition) != self._edition:
            return self._stale(message["id"])
        end = int(at) + PAGE_SIZE
        following = f"{self._edition}:{end}" if end < len(self.tasks) else None
        return answer(result(message["id"], page(self.tasks[int(at) : end], following)))


@pytest.mark.parametrize("said", STALE)
async def test_an_error_for_a_cursor_means_that_it_is_stale(gateways: Gateways, said: str) -> None:
    """All lists of the session were errors for `full_crawl_interval`, though its client had sent no cursor."""
    server = Renumbered(tasks(20), STALE[said])
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(server.tasks)
        for _ in range(2):  # between two lists
            server.renew()
            server.tasks = tasks(len(server.tasks) + 2)
            assert await listed(session) == all_of(server.tasks)
        server.renews_before = 3  # in the middle of one
        server.renew()
        server.tasks = tasks(len(server.tasks) + 2)
        assert await listed(session) == all_of(server.tasks)
        assert server.renews_before is None


@pytest.mark.parametrize("said", STALE)
async def test_cursors_that_are_always_refused_are_an_error_after_a_few_requests(gateways: Gateways, said: str) -> None:
    refuse = STALE[said]

    async def never(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        if "cursor" in message["params"]:
            return refuse(message["id"])
        return answer(result(message["id"], page(tasks(PAGE_SIZE), "2")))

    async with rig_with(gateways, never) as rig:
        answered = body(await Session(rig).ask(ALL))
        assert "refused cursors of its own tasks/list 3 times" in answered["error"]["message"]
        assert len(rig.asked("tasks/list")) == 6


# ---- no order ----


class EverybodysPages:
    """A server that cuts its pages from everybody's tasks, in order of random ids, and takes out those of others."""

    def __init__(self, seed: int, others: int) -> None:
        self._random = Random(seed)
        self.mine, self._all = list[Json](), list[tuple[float, Json | None]]()
        for _ in range(others):
            self._all.append((self._random.random(), None))

    def add(self) -> None:
        count = len(self.mine)
        self.mine.append(task(f"t-{count:02}", created=f"2026-01-01T00:{count:02}:00Z"))
        self._all.append((self._random.random(), self.mine[-1]))

    async def __call__(self, asked: Message, _peer: Peer) -> bytes:
        message, everybodys = body(asked), [each for _, each in sorted(self._all, key=lambda pair: pair[0])]
        if message["method"] == "tasks/get":
            found = next(each for each in self.mine if each["taskId"] == message["params"]["taskId"])
            return answer(result(message["id"], found))
        start = int(message["params"].get("cursor", 0))
        following = str(start + PAGE_SIZE) if start + PAGE_SIZE < len(everybodys) else None
        mine = [each for each in everybodys[start : start + PAGE_SIZE] if each is not None]
        return answer(result(message["id"], page(mine, following)))


@pytest.mark.parametrize("others", [0, 30])
@pytest.mark.parametrize("seed", range(6))
async def test_tasks_that_stand_in_order_by_chance_are_no_list_in_order(
    gateways: Gateways, seed: int, others: int
) -> None:
    """@cyanheads/mcp-ts-core 0.10.17 with its store on disk: one page was read again, and 6 of 20 tasks shown."""
    server = EverybodysPages(seed, others)
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        for count in range(1, 12):
            server.add()
            assert await listed(session) == all_of(server.mine), f"{count} tasks"


async def test_pages_that_are_shorter_and_name_a_next_one_prove_no_order(gateways: Gateways) -> None:
    """However many tasks stand in it: the next one may be put anywhere."""
    said = tasks(20)
    pages: dict[str | None, Json] = {None: page(said[:9], "b"), "b": page([], "c"), "c": page(said[10:19], "d")}
    pages["d"] = page(said[19:])
    async with rig_with(gateways, Server(pages), index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of([*said[:9], *said[10:]])
        pages["b"] = page(said[9:10], "c")
        assert await listed(session) == all_of(said)


@pytest.mark.parametrize("is_newest_first", [False, True])
async def test_a_list_whose_order_was_chance_is_crawled_once_that_shows(
    gateways: Gateways, is_newest_first: bool
) -> None:
    """What a look finds may deny the order: then the task may not be the only one that was put elsewhere."""
    said = [*reversed(tasks(12))] if is_newest_first else tasks(12)
    late = [task("z-1", created="2025-01-01T00:00:00Z"), task("z-2", created="2025-01-01T00:00:01Z")]

    def pages_of(listed: list[Json]) -> dict[str | None, Json]:
        starts = [*range(0, len(listed), PAGE_SIZE)]
        cursors = [None, *map(str, starts[1:]), None]
        said = (page(listed[at : at + PAGE_SIZE], cursors[n]) for n, at in enumerate(starts, 1))
        return dict(zip(cursors[:-1], said, strict=True))

    pages = pages_of(said)
    async with rig_with(gateways, Server(pages), index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(tasks(12))
        middle, end = (late[1], late[0])
        if is_newest_first:
            pages |= pages_of([end, *said[:6], middle, *said[6:]])
        else:
            pages |= pages_of([*said[:6], middle, *said[6:], end])
        assert await listed(session) == all_of([late[0], late[1], *tasks(12)])


@pytest.mark.parametrize("left", [16, 15, 8, 1])
async def test_what_is_appended_after_tasks_have_gone_shows_where_cursors_count_places(
    gateways: Gateways, left: int
) -> None:
    """The page where new tasks appeared began behind them by then: it was empty, and the list lacked them."""
    server = EmptyCursors(tasks(20), empty_at=1000)
    async with rig_with(gateways, server, index={"max_age": 0}) as rig:
        session = Session(rig)
        assert await listed(session) == all_of(tasks(20))
        server.tasks = tasks(20)[20 - left :]
        for count in range(20, 26):
            server.tasks.append(tasks(count + 1)[-1])
            assert set(await listed(session)) >= set(all_of(server.tasks))


# ---- ids ----


@pytest.mark.parametrize("form", ["JSON", "stream"])
async def test_a_server_that_reads_integers_alone_can_be_asked(gateways: Gateways, form: str) -> None:
    """It answers what has a text for its id with another one: each list was 502."""

    async def script(asked: Message, _peer: Peer) -> bytes:
        message = body(asked)
        of_text = 0 if form == "JSON" else None
        said = result(message["id"] if isinstance(message["id"], int) else of_text, page(tasks(2)))
        return answer(said) if form == "JSON" else stream() + chunk(event(said)) + LAST_CHUNK

    async with rig_with(gateways, script) as rig:
        assert await listed(Session(rig)) == all_of(tasks(2))


@pytest.mark.parametrize("form", ["JSON", "stream"])
@pytest.mark.parametrize("spelt", [str, float])
async def test_the_id_of_an_answer_may_be_spelt_otherwise(
    gateways: Gateways, form: str, spelt: Callable[[int], object]
) -> None:
    async def script(asked: Message, _peer: Peer) -> bytes:
        said = result(spelt(body(asked)["id"]), page(tasks(2)))
        return answer(said) if form == "JSON" else stream() + chunk(event(said)) + LAST_CHUNK

    async with rig_with(gateways, script) as rig:
        assert await listed(Session(rig)) == all_of(tasks(2))


@pytest.mark.parametrize("form", ["JSON", "stream"])
@pytest.mark.parametrize("other", [0, "server-error", -1])
async def test_an_answer_with_another_id_is_an_error_that_names_it(
    gateways: Gateways, form: str, other: object
) -> None:
    async def script(_asked: Message, _peer: Peer) -> bytes:
        said = result(other, page(tasks(2)))
        return answer(said) if form == "JSON" else stream() + chunk(event(said)) + LAST_CHUNK

    async with rig_with(gateways, script) as rig:
        said = body(await Session(rig).ask(ALL))["error"]["message"]
        assert said.endswith(f"its id is {dumps(other).decode()}"), said


@pytest.mark.parametrize("status", [b"409 Conflict", b"429 Too Many Requests", b"503 Service Unavailable"])
async def test_a_server_that_serves_one_request_of_a_session_at_a_time_is_asked_so(
    gateways: Gateways, status: bytes
) -> None:
    """Each list of named or live tasks failed, for its requests went up eight at a time."""
    busy = 0

    async def serves_one(asked: Message, peer: Peer) -> bytes | None:
        nonlocal busy
        if busy:
            return response(b"busy", status=status)
        busy += 1
        await asyncio.sleep(0.01)
        busy -= 1
        message = body(asked)
        known = {one["taskId"]: one for one in tasks(20)}
        if message["method"] == "tasks/get":
            return answer(result(message["id"], known[message["params"]["taskId"]]))
        return answer(result(message["id"], page([])))

    async with rig_with(gateways, serves_one, index={"max_age": 0}) as rig:
        for _ in range(2):
            named = await rig.ask(rig.post(filtered(taskIds=all_of(tasks(20)), orderBy="createdAt", order="asc")))
            assert ids(final(named)) == all_of(tasks(20))


@pytest.mark.parametrize("as_events", [False, True])
async def test_a_page_may_be_twice_as_large_as_what_is_read_of_what_passes(gateways: Gateways, as_events: bool) -> None:
    """Some servers list all tasks on one page (DESIGN 2.14)."""
    said = [task(f"t-{n:02}", statusMessage="x" * 900) for n in range(17)]

    async def script(asked: Message, _: Peer) -> bytes:
        listing = result(body(asked)["id"], page(said))
        return stream() + chunk(event(listing)) + LAST_CHUNK if as_events else answer(listing)

    limits = {"inspected_body_bytes_max": 10_000, "inspected_event_bytes_max": 10_000}
    async with rig_with(gateways, script, index={"max_age": 0}, limits=limits) as rig:
        assert set(await listed(Session(rig))) == set(all_of(said))
        said *= 2
        assert final(await Session(rig).ask(ALL))["error"]["message"].startswith("Bad Gateway: ")
