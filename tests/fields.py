"""The tables of docs/fields.md."""

import re
from pathlib import Path
from typing import Final


def _tables() -> list[list[bytes]]:
    """The names in each table; `*` stands for any ending."""
    found = []
    for part in (Path(__file__).parent.parent / "docs/fields.md").read_text().split("\n## ")[1:]:
        head, _, *rows = (line.split(" | ") for line in part.splitlines() if line.startswith("|"))
        cells = [cell for row in rows for cell in row[: len(head) - 1]]  # the last one has the sources
        found.append([name.encode() for cell in cells for name in re.findall(r"`([^`]+)`", cell)])
    return found


_TABLES: Final = _tables()
# In lower case: of the connection, of caches, of the program, of the session; of one message; of requests and traces.
STANDING, OF_ONE, IDS = ([name.lower() for name in names] for names in _TABLES[:3])
COOKIES: Final = _TABLES[3]  # of balancers
