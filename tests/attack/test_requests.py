"""Each hostile request is refused, or reaches the upstream as it was meant, and harms no neighbour."""

import asyncio
from dataclasses import replace

import pytest

from tests.attack.requests import ROWS
from tests.attack.rows import Pieces, Request
from tests.attack.stage import Stage
from tests.peer import GAP_S

ROWS_MIN = 300


def test_the_table_is_large_enough() -> None:
    assert len(ROWS) >= ROWS_MIN
    assert len({row.id for row in ROWS}) == len({(row.sent, row.then) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_hostile_request(stage: Stage, runner: asyncio.Runner, row: Request) -> None:
    """With a victim's request behind it on the same connection, where it is whole; then with nothing behind it; then
    in two pieces.
    """
    assert not runner.run(stage.request(row, followed=row.whole))
    if row.whole:
        assert not runner.run(stage.request(row, with_victims=False))
        assert not runner.run(stage.request(replace(row, sent=halved(row.sent)), with_victims=False))


def halved(pieces: Pieces) -> Pieces:
    first, *rest = pieces
    assert isinstance(first, bytes)
    return first[: len(first) // 2], GAP_S, first[len(first) // 2 :], *rest
