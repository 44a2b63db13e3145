"""The tables of docs/fields.md."""

import re
from pathlib import Path
from typing import Final


def _tables() -> list[list[bytes]]:
    """The fields of each table, in lower case; `*` stands for any ending."""
    found = []
    for part in (Path(__file__).parent.parent / "docs/fields.md").read_text().split("\n## ")[1:]:
        head, _, *rows = (line.split(" | ") for line in part.splitlines() if line.startswith("|"))
        cells = [cell for row in rows for cell in row[: len(head) - 1]]  # the last one has the sources
        found.append([name.lower().encode() for cell in cells for name in re.findall(r"`([^`]+)`", cell)])
    return found


_TABLES: Final = _tables()
STANDING: Final = _TABLES[0]  # of the connection, of caches, of the program, of the session
OF_ONE: Final = _TABLES[1]  # of one message
IDS: Final = _TABLES[2]  # of requests and traces
