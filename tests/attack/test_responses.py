"""Each hostile response reaches the client unchanged, or becomes a 502, or is cut, and harms no neighbour."""

import asyncio
from dataclasses import replace

import pytest

from tests.attack.responses import ROWS
from tests.attack.rows import Response
from tests.attack.stage import Stage
from tests.attack.test_requests import halved

ROWS_MIN = 150


def test_the_table_is_large_enough() -> None:
    assert len(ROWS) >= ROWS_MIN
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_hostile_response(stage: Stage, runner: asyncio.Runner, row: Response) -> None:
    for _ in range(3):  # a head that came before is remembered
        assert not runner.run(stage.response(row))
    if row.sent[0]:
        assert not runner.run(stage.response(replace(row, sent=halved(row.sent))))
