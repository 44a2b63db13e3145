"""Each hostile request is refused, or reaches the upstream as it was meant; each hostile response reaches the client
unchanged, or becomes a 502, or is cut. Neither harms a neighbour. Wherever they are split: tests/rules.
"""

import asyncio

import pytest

from tests.attack.requests import FAMILIES as OF_REQUESTS
from tests.attack.requests import ROWS as REQUESTS
from tests.attack.responses import FAMILIES as OF_RESPONSES
from tests.attack.responses import ROWS as RESPONSES
from tests.attack.rows import Request, Response
from tests.attack.stage import Stage


def test_no_two_rows_are_the_same() -> None:
    assert len({row.id for row in REQUESTS}) == len({(row.sent, row.then) for row in REQUESTS}) == len(REQUESTS)
    assert len({row.id for row in RESPONSES}) == len(RESPONSES)


async def request_faults(stage: Stage, row: Request) -> list[str]:
    """Followed by a victim's request on its connection, where it is whole; then by nothing."""
    found = await stage.request(row, followed=row.whole)
    return found + await stage.request(row, with_victims=False) if row.whole else found


async def response_faults(stage: Stage, row: Response) -> list[str]:
    """Three times: its head is new, is kept, and is found again. To keep it changes nothing for a neighbour."""
    return [fault for number in range(3) for fault in await stage.response(row, with_victims=number != 1)]


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
