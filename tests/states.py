"""Tables of states in docstrings, and what happens to the states of real objects."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from unittest.mock import patch

from gateway.downstream import client_connection
from gateway.downstream.client_connection import ClientConnection

NOTHING: Final = "(none)"

Table: TypeAlias = dict[str, dict[str, str]]
"""What stands in a cell, by its row and its column."""


def table(doc: str | None, behind: str) -> Table:
    """The table behind these words in a docstring. Two spaces or more part columns; a heading may take two lines."""
    assert doc is not None
    heading, *rows = doc.split(behind)[1].strip("\n").split("\n\n")[0].rstrip().splitlines()
    columns = re.split(r" {2,}", heading.strip())
    if rows[0].startswith(" " * (len(heading) - len(heading.lstrip()))):
        columns = [
            f"{above} {below}" for above, below in zip(columns, re.split(r" {2,}", rows.pop(0).strip()), strict=True)
        ]
    found = {}
    for row in rows:
        name, *cells = re.split(r" {2,}", row.strip())
        found[name] = dict(zip(columns, cells, strict=True))
    return found


# ---- a client's connection ----

EVENTS_OF_A_CONNECTION: Final = table(client_connection.__doc__, "cannot be):\n\n")


def in_cell(cell: str) -> set[str]:
    """The states to which a cell leads: those with `/` between, or those of `(next)`."""
    return set() if cell == "-" else set(cell.replace("(next)", "IDLE/HEAD/SERVING/LINGERING").split("/"))


_BEGINS: Final = {(NOTHING, "IDLE"), (NOTHING, "HANDSHAKE")}
STEPS_OF_A_CONNECTION: Final = {
    (state, to) for cells in EVENTS_OF_A_CONNECTION.values() for state, cell in cells.items() for to in in_cell(cell)
} - {("HANDSHAKE", "LINGERING")}  # by way of IDLE


@contextmanager
def connections_by_the_table() -> Iterator[None]:
    """While the context lasts, every step of a client's connection stands in the table of its states."""
    steps: set[tuple[str, str]] = set()

    def watched(one: ClientConnection, name: str, value: Any) -> None:
        if name == "state":
            steps.add((getattr(one, name, NOTHING), value))
        object.__setattr__(one, name, value)

    with patch.object(ClientConnection, "__setattr__", watched):
        yield
    assert steps <= STEPS_OF_A_CONNECTION | _BEGINS
