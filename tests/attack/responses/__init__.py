"""The table of hostile responses, by family."""

from dataclasses import replace
from types import ModuleType
from typing import Final

from tests.attack.responses import (
    bodiless,
    chunks,
    encodings,
    events,
    extra,
    fields,
    framing,
    informational,
    messages,
    status,
    trailers,
)
from tests.attack.rows import Response

FAMILIES: Final[list[ModuleType]] = [
    *(status, fields, framing, bodiless, informational, extra, chunks, trailers, encodings, events, messages),
]
ROWS: Final[list[Response]] = [
    replace(row, id=f"{family.__name__.rpartition('.')[2]}/{row.id}") for family in FAMILIES for row in family.ROWS
]
