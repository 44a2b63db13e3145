"""The table of hostile requests, by family."""

from dataclasses import replace
from importlib import import_module
from typing import Final

from tests.attack.rows import Request

FAMILIES: Final = (
    *("line", "versions", "targets", "host", "controls", "fields", "lengths", "transfer", "bodies", "chunks"),
    *("trailers", "connection", "pipelining", "upgrade", "limits", "messages"),
)
ROWS: Final[list[Request]] = [
    replace(row, id=f"{family}/{row.id}") for family in FAMILIES for row in import_module(f"{__name__}.{family}").ROWS
]
