"""What a section has measured: printed as aligned tables. A figure that could not be had is `-`, never 0."""

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, TypeAlias

_BEGAN_AT: Final = monotonic()

Value: TypeAlias = float | str | None


@dataclass(frozen=True)
class Options:
    """What the command line asks for: `sections` in order, `rounds` of each interleaved figure, `against`: a commit."""

    sections: tuple[str, ...]
    rounds: int
    against: str


@dataclass(frozen=True)
class Column:
    """A column's heading, unit included, and the digits behind the point that are worth reading."""

    name: str
    digits: int = 0

    def text(self, value: Value) -> str:
        if value is None:
            return "-"
        return value if isinstance(value, str) else f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Goal:
    """A limit, and the measured figure: at most it, with `at_least` from it on up."""

    what: str
    limit: float
    unit: str
    measured: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        digits = 0 if self.measured >= 100 or self.measured == int(self.measured) else 1 if self.measured >= 10 else 2
        bound = f"at {'least' if self.at_least else 'most'} {self.limit:,} {self.unit}".rstrip()
        return f"goal: {self.what}: {bound}: {verdict}, {self.measured:,.{digits}f}"


@dataclass
class Table:
    """Rows of figures: the first column names what was measured, the others hold a value each."""

    title: str
    head: str
    columns: Sequence[Column]
    rows: list[tuple[str, list[Value]]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, label: str, *values: Value) -> None:
        assert len(values) == len(self.columns)
        self.rows.append((label, list(values)))

    def lines(self) -> Iterator[str]:
        cells = [[self.head, *(c.name for c in self.columns)]]
        for label, values in self.rows:
            cells.append([label, *(c.text(v) for c, v in zip(self.columns, values, strict=True))])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        yield self.title
        yield _row(cells[0], widths)
        yield _row(["-" * width for width in widths], widths)
        yield from (_row(row, widths) for row in cells[1:])
        yield from (f"  {line}" for line in [*map(str, self.goals), *self.notes])


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    aligned = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
    return "  " + "  ".join(aligned)


def progress(text: str) -> None:
    print(f"bench: {monotonic() - _BEGAN_AT:4.0f} s  {text}", file=sys.stderr, flush=True)


def spread_percent(values: Sequence[float]) -> float:
    """The distance between the rounds, in percent of their median: the machine's noise may be as large."""
    return 100 * (max(values) - min(values)) / statistics.median(values)
