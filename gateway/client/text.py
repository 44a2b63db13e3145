"""Tasks as a table for a terminal of 80 columns: control characters are escaped and long text is cut."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from gateway import errors

TaskFields: TypeAlias = dict[str, Any]

_TASK: Final = "  {:<{id}} {:<14} {:<11}  {:<11}  {}"
ID_CHARS: Final = 8  # of an id, where that tells the tasks apart
SHOWN_CHARS_MAX: Final = 300  # of a text that a server sent


def shown(text: str) -> str:
    return errors.shown(text, SHOWN_CHARS_MAX)


def table(tasks: list[TaskFields], whole_ids: bool = False, marks: Mapping[str, str] | None = None) -> Iterator[str]:
    """The tasks as lines, under a head. `marks` are words for what changed, by id."""
    ids = [_cell(task, "taskId") for task in tasks]
    width = ID_CHARS if not whole_ids else max([ID_CHARS, *map(len, ids)])
    yield _TASK.format("TASK", "STATUS", "CREATED", "CHANGED", "MESSAGE", id=width).rstrip()
    for task, task_id in zip(tasks, ids, strict=True):
        created, changed = (_cell(task, name)[5:16].replace("T", " ") for name in ("createdAt", "lastUpdatedAt"))
        mark = (marks or {}).get(task_id, "")
        words = " ".join(filter(None, [mark, _cell(task, "statusMessage")]))
        yield _TASK.format(task_id[:width], _cell(task, "status"), created, changed, words, id=width).rstrip()


def _cell(task: Mapping[str, Any], name: str) -> str:
    value = task.get(name)
    return "" if value is None else shown(str(value))
