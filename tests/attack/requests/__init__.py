"""The table of hostile requests, by family."""

from dataclasses import replace
from types import ModuleType
from typing import Final

from tests.attack.requests import (
    bodies,
    chunks,
    connection,
    controls,
    fields,
    host,
    lengths,
    limits,
    line,
    messages,
    pipelining,
    targets,
    trailers,
    transfer,
    upgrade,
    versions,
)
from tests.attack.rows import Request

FAMILIES: Final[list[ModuleType]] = [
    *(line, versions, targets, host, controls, fields, lengths, transfer, bodies, chunks, trailers),
    *(connection, pipelining, upgrade, limits, messages),
]
ROWS: Final[list[Request]] = [
    replace(row, id=f"{family.__name__.rpartition('.')[2]}/{row.id}") for family in FAMILIES for row in family.ROWS
]
