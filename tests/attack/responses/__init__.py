"""The table of hostile responses, by family."""

from dataclasses import replace
from importlib import import_module
from typing import Final

from tests.attack.rows import Response

FAMILIES: Final = (
    *("status", "fields", "framing", "bodiless", "informational", "extra", "chunks", "trailers", "encodings"),
    *("events", "messages"),
)
ROWS: Final[list[Response]] = [
    replace(row, id=f"{family}/{row.id}") for family in FAMILIES for row in import_module(f"{__name__}.{family}").ROWS
]
