"""Tables of states in docstrings, and what happens to the states of real objects."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from gateway.downstream import client_connection

NOTHING: Final = "(none)"

Table: TypeAlias = dict[str, dict[str, str]]
"""What stands in a cell, by its row and its column."""
Step: TypeAlias = tuple[str, str]
"""From which state to which."""


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


def steps(by_state: Table, begins: Iterable[str], short: str = "", shortened: str = "") -> set[Step]:
    """All steps of a table whose rows are states. Its cells have states with `/` between, `short` for some, or `-`."""
    found = {(NOTHING, begin) for begin in begins}
    for state, cells in by_state.items():
        found |= {(state, to) for cell in cells.values() for to in in_cell(cell, short, shortened)}
    return found


def in_cell(cell: str, short: str = "", shortened: str = "") -> set[str]:
    return set() if cell == "-" else set(cell.replace(short or "-", shortened).split("/"))


def turned(cells: Table) -> Table:
    columns = next(iter(cells.values()))
    return {column: {row: cells[row][column] for row in cells} for column in columns}


def _name(state: Any) -> str:
    return state if isinstance(state, str) else str(state.name)


class Watch:
    """The attribute of a class while it is watched: a descriptor, before what held the value."""

    def __init__(self, of: type, name: str) -> None:
        self.steps: set[Step] = set()
        self._name = name
        self._held = of.__dict__.get(name)  # a slot; else the instances have a dictionary, and this is the default
        self._slot = self._held if hasattr(self._held, "__set__") else None

    def __get__(self, one: Any, of: type) -> Any:
        if one is None:
            return self
        if self._slot is not None:
            return self._slot.__get__(one, of)
        return one.__dict__[self._name] if self._held is None else one.__dict__.get(self._name, self._held)

    def __set__(self, one: Any, state: Any) -> None:
        try:
            before = _name(self.__get__(one, type(one)))
        except (AttributeError, KeyError):
            before = NOTHING
        self.steps.add((before, _name(state)))
        if self._slot is None:
            one.__dict__[self._name] = state
        else:
            self._slot.__set__(one, state)


@contextmanager
def watched(of: type, name: str) -> Iterator[Watch]:
    """The steps that the instances of a class make while the context lasts."""
    watch = Watch(of, name)
    before = of.__dict__.get(name)
    setattr(of, name, watch)
    try:
        yield watch
    finally:
        if before is None:
            delattr(of, name)
        else:
            setattr(of, name, before)


# ---- a client's connection ----

NEXT: Final = "IDLE/HEAD/SERVING/LINGERING"
EVENTS_OF_A_CONNECTION: Final = table(client_connection.__doc__, "cannot be):\n\n")
STATES_OF_A_CONNECTION: Final = turned(EVENTS_OF_A_CONNECTION)
STEPS_OF_A_CONNECTION: Final = steps(STATES_OF_A_CONNECTION, ("IDLE", "HANDSHAKE"), "(next)", NEXT) - {
    ("HANDSHAKE", "LINGERING"),  # by way of IDLE
}


@contextmanager
def connections_by_the_table() -> Iterator[Watch]:
    """While the context lasts, every step of a client's connection stands in the table of its states."""
    with watched(client_connection.ClientConnection, "state") as watch:
        yield watch
    assert watch.steps <= STEPS_OF_A_CONNECTION
