"""Each hostile request is refused, or reaches the upstream as it was meant; each hostile response reaches the client
unchanged, or becomes a 502, or is cut. Neither harms a neighbour.
"""

import asyncio
from dataclasses import replace

import pytest

from tests.attack.requests import ROWS as REQUESTS
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


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: row.id)
def test_a_hostile_request(stage: Stage, runner: asyncio.Runner, row: Request) -> None:
    """With a victim's request behind it on the same connection, where it is whole; then with nothing behind it; then
    in two pieces.
    """
    assert not runner.run(stage.request(row, followed=row.whole))
    if row.whole:
        assert not runner.run(stage.request(row, with_victims=False))
        assert not runner.run(stage.request(replace(row, sent=halved(row.sent)), with_victims=False))


@pytest.mark.parametrize("row", RESPONSES, ids=lambda row: row.id)
def test_a_hostile_response(stage: Stage, runner: asyncio.Runner, row: Response) -> None:
    for _ in range(3):  # a head that came before is remembered
        assert not runner.run(stage.response(row))
    if row.sent[0]:
        assert not runner.run(stage.response(replace(row, sent=halved(row.sent))))
