"""What people read: tasks as a table, and text as wide as a terminal. Control characters are escaped."""

import shutil
import textwrap
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, Final, TextIO, TypeAlias
from unicodedata import east_asian_width

from gateway import errors
from gateway.mcp.task import EPOCH_UNIX_S, parse_instant

Json: TypeAlias = dict[str, Any]  # an object, such as a task

_TASK: Final = "  {:<{id}}  {:<14}  {:>4}  {:>7}  {}"
_AGES: Final = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_ALIKE_CHARS_MIN: Final = 4  # at the beginning of all ids, which is left out
ID_CHARS: Final = 8  # of an id, where that tells the tasks apart
SHOWN_CHARS_MAX: Final = 300  # of a text that a server sent
shown: Final = partial(errors.shown, chars_max=SHOWN_CHARS_MAX)


def columns_of(stream: TextIO) -> int | None:
    """How wide a terminal is; None if the stream is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def fitted(text: str, stream: TextIO) -> str:
    """A line, in several if a terminal is not so wide."""
    columns = columns_of(stream)
    return textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False) if columns else text


def table(tasks: list[Json], columns: int | None = None, marks: Mapping[str, str] | None = None) -> Iterator[str]:
    """The tasks as lines, under a head: whole, or in so many columns. `marks` are words for what changed, by id."""
    ids, now = [_cell(task, "taskId") for task in tasks], time.time()
    short = _shortened(ids) if columns and ids else ids
    width = max(map(len, ["TASK", *short]))
    yield _TASK.format("TASK", "STATUS", "AGE", "CHANGED", "MESSAGE", id=width)
    for task, task_id, shown_id in zip(tasks, ids, short, strict=True):
        ages = [_age(_cell(task, name), now) for name in ("createdAt", "lastUpdatedAt")]
        words = " ".join(filter(None, [(marks or {}).get(task_id, ""), _cell(task, "statusMessage")]))
        row = _TASK.format(shown_id, _cell(task, "status"), *ages, words, id=width).rstrip()
        ends = [*accumulate(2 if east_asian_width(character) in "WF" else 1 for character in row)]
        fits = len(row) if columns is None else bisect_right(ends, columns)  # some characters take two columns
        yield row if fits == len(row) else row[: fits - 1] + ">"


def _age(instant: str, now: float) -> str:
    if (at := parse_instant(instant)) is None:
        return "?"
    seconds = int(now - EPOCH_UNIX_S - at / 10**9)
    return next((f"{seconds // size}{unit}" for size, unit in _AGES if seconds >= size), "0s")


def _shortened(ids: list[str]) -> list[str]:
    """Ids as short as tells them apart: from their beginning on, or from where they differ."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(ids), max(ids), strict=False)))
    at, end = min(alike, min(map(len, ids)) - ID_CHARS), ID_CHARS
    at = at if at >= _ALIKE_CHARS_MIN and len(ids) > 1 else 0
    while len({each[at : at + end] for each in ids}) < len(set(ids)):
        end += 1
    return [".." * bool(at) + each[at : at + end] for each in ids]


def _cell(task: Mapping[str, Any], name: str) -> str:
    value = task.get(name)
    return "" if value is None else shown(str(value))
