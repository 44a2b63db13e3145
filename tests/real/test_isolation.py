"""No caller sees the tasks of another, however many ask at once (DESIGN 7).

Every task has its owner's name in `statusMessage`. An owner is a session on the Python SDK's server, with a bearer
token or without; on a server without sessions it is what the headers of a request, or its path, say.
"""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.real.conftest import Json, Place, Runner, Wire, ids_of

SESSIONS = 8
TASKS_EACH = 7
QUERIES_EACH = 6
CRITERIA: list[Json] = [
    {"status": ["working"]},
    {"filter": {"status": ["working", "completed"]}, "order": "asc"},
    {"methods": ["tools/call"], "orderBy": "createdAt"},
]


@pytest.fixture(scope="module")
def with_tokens(runner: Runner) -> Iterator[Place]:
    """The Python SDK's server, where a session belongs to the bearer token that opened it."""
    with runner.place("python_sdk", "--json", "--auth") as place:
        yield place


@pytest.fixture(scope="module")
def by_user(runner: Runner) -> Iterator[Place]:
    """A server without sessions, which knows its users by a header."""
    with runner.place("by_user") as place:
        yield place


def bearer(user: str) -> str:
    return f"Bearer {user}"


def owners(tasks: list[Json]) -> set[str]:
    return {task["statusMessage"] for task in tasks}


async def make_tasks(wire: Wire, owner: str) -> set[str]:
    return {await wire.work("released", owner) for _ in range(TASKS_EACH)}


async def assert_all_see_their_own(wires: dict[str, Wire]) -> None:
    """Make tasks for all owners and query for all of them, everything at once, then everything again.

    The filtered lists all have the id 1, as some hosts send it: an answer is known by its exchange, not by its id.
    """
    made = dict(zip(wires, await asyncio.gather(*(make_tasks(wires[owner], owner) for owner in wires)), strict=True))

    async def ask(owner: str, criteria: Json) -> None:
        tasks = await wires[owner].tasks(criteria, message_id=1)
        assert owners(tasks) == {owner}
        assert set(ids_of(tasks)) == made[owner]
        assert len(tasks) == TASKS_EACH

    async def ask_for_all(owner: str) -> None:
        everybody = sorted(set().union(*made.values()))
        assert set(ids_of(await wires[owner].tasks({"taskIds": everybody}, message_id=1))) == made[owner]

    for _ in range(2):
        await asyncio.gather(
            *(ask(owner, CRITERIA[n % len(CRITERIA)]) for n in range(QUERIES_EACH) for owner in wires),
            *(ask_for_all(owner) for owner in wires),
        )


# Sessions


async def test_many_sessions_at_once_see_their_own_tasks_alone(
    python_sdk_stream: Place, http: httpx.AsyncClient
) -> None:
    opened = await asyncio.gather(*(Wire(python_sdk_stream.gateway, http).initialize() for _ in range(SESSIONS)))
    await assert_all_see_their_own({f"owner {n}": wire for n, (wire, _) in enumerate(opened)})


async def test_the_session_of_one_token_is_refused_to_another_and_not_served_from_the_index(
    with_tokens: Place, http: httpx.AsyncClient
) -> None:
    alice, _ = await Wire(with_tokens.gateway, http).at(authorization=bearer("alice")).initialize()
    made = await make_tasks(alice, "alice")
    assert set(ids_of(await alice.tasks(CRITERIA[0]))) == made

    mallory = alice.at(authorization=bearer("mallory"))
    for criteria in CRITERIA:
        through = await mallory.post("tasks/list", criteria)
        direct = await mallory.at(with_tokens.direct).post("tasks/list", criteria)
        assert (through.status, direct.status) == (404, 404)
        assert through.error == direct.error
    # And the refusal has cost its owner nothing.
    assert set(ids_of(await alice.tasks(CRITERIA[0]))) == made


# Headers and paths, without sessions


async def test_many_users_that_crowd_each_other_out_see_their_own_tasks_alone(
    runner: Runner, by_user: Place, http: httpx.AsyncClient
) -> None:
    """There is room for three indexes, and eight are needed all the time."""
    with runner.gateway(by_user.server, {"sessions_max": 3}) as gateway:
        wire = Wire(f"{gateway.wait()}/mcp", http)
        wires = {f"c{n}": wire.at(authorization=bearer(f"c{n}")) for n in range(SESSIONS)}
        await assert_all_see_their_own(wires)


async def test_one_user_at_two_endpoints_of_one_origin_sees_the_tasks_of_each_alone(
    by_user: Place, http: httpx.AsyncClient
) -> None:
    user = Wire(by_user.gateway, http).at(authorization=bearer("tenant"))
    other = user.at(by_user.gateway.replace("/mcp", "/other/mcp"))
    await assert_all_see_their_own({"one": user, "other": other})


async def test_a_cursor_of_one_user_shows_another_user_nothing_of_the_first(
    by_user: Place, http: httpx.AsyncClient
) -> None:
    anna, bert = (Wire(by_user.small, http).at(authorization=bearer(user)) for user in ("anna", "bert"))
    await make_tasks(anna, "anna")
    own = await make_tasks(bert, "bert")
    first = (await anna.post("tasks/list", {"status": ["working"]})).result
    assert owners(first["tasks"]) == {"anna"}
    taken = (await bert.post("tasks/list", {"status": ["working"], "cursor": first["nextCursor"]})).result
    assert set(ids_of(taken["tasks"])) <= own
