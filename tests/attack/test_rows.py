"""Each hostile request is refused, or reaches the upstream as it was meant; each hostile response reaches the client
unchanged, or becomes a 502, or is cut. Neither harms a neighbour.
"""

import asyncio
from dataclasses import replace

import pytest

from tests.attack.requests import FAMILIES as OF_REQUESTS
from tests.attack.requests import ROWS as REQUESTS
from tests.attack.responses import FAMILIES as OF_RESPONSES
from tests.attack.responses import ROWS as RESPONSES
from tests.attack.rows import Pieces, Request, Response
from tests.attack.stage import Stage
from tests.peer import GAP_S


def test_no_two_rows_are_the_same() -> None:
    assert len({row.id for row in REQUESTS}) == len({(row.sent, row.then) for row in REQUESTS}) == len(REQUESTS)
    assert len({row.id for row in RESPONSES}) == len(RESPONSES)


def halved(pieces: Pieces) -> Pieces:
    first, *rest = pieces
    assert isinstance(first, bytes)
    return first[: len(first) // 2], GAP_S, first[len(first) // 2 :], *rest


async def request_faults(stage: Stage, row: Request) -> list[str]:
    """Followed by a victim's request on its connection, where it is whole; then in two pieces, followed by nothing."""
    found = await stage.request(row, followed=row.whole)
    if row.whole:
        found += await stage.request(replace(row, sent=halved(row.sent)), with_victims=False)
    return found


async def response_faults(stage: Stage, row: Response) -> list[str]:
    found = list[str]()
    for _ in range(3):  # a head that came before is remembered
        found += await stage.response(row)
    if row.sent[0]:
        found += await stage.response(replace(row, sent=halved(row.sent)))
    return found


@pytest.mark.parametrize("family", OF_REQUESTS)
def test_hostile_requests(stage: Stage, runner: asyncio.Runner, family: str) -> None:
    rows = [row for row in REQUESTS if row.id.startswith(f"{family}/")]
    found = {row.id: runner.run(request_faults(stage, row)) for row in rows}
    assert rows and not any(found.values()), {name: faults for name, faults in found.items() if faults}


@pytest.mark.parametrize("family", OF_RESPONSES)
def test_hostile_responses(stage: Stage, runner: asyncio.Runner, family: str) -> None:
    rows = [row for row in RESPONSES if row.id.startswith(f"{family}/")]
    found = {row.id: runner.run(response_faults(stage, row)) for row in rows}
    assert rows and not any(found.values()), {name: faults for name, faults in found.items() if faults}
