"""What must hold of what is known of a session, whatever happened: the rules that `tasks/reconciliation.py` states."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final
from unittest.mock import patch

from gateway.mcp.task import text_bytes
from gateway.tasks.reconciliation import _MARK_BYTES, Record

_EVENTS: Final = ("tell", "mark", "take", "miss", "listed", "forget", "begin_crawl", "end_crawl")


def faults(record: Record) -> Iterator[str]:
    """What is wrong with what is known."""
    known, index = record.known, record.index
    if known.new_as_of < known.crawled.as_of:
        yield "the place of new tasks is known as of before the pages"
    for task_id in record.unlisted:
        task = index.get(task_id)
        if task is None or task.crawl == record.crawl:
            yield f"{task_id} is unlisted: {task}, crawl {record.crawl}"
        elif known.unlisted_as_of > task.told.as_of or (not task.is_terminal and known.live_as_of > task.told.as_of):
            yield f"{task_id} is known as of {task.told.as_of}: {known}"
    for task_id in record.gone:
        if index.get(task_id) is not None:
            yield f"{task_id} is gone, and in the index"
    for task_id, mark in record.marks.items():
        if mark.first > mark.last:
            yield f"{task_id}: {mark}"
    for ids, size_bytes in ((record.marks, record.marks.size_bytes), (record.gone, record.gone.size_bytes)):
        if size_bytes != sum(_MARK_BYTES + text_bytes(i) for i in ids):
            yield f"{size_bytes} bytes of {len(ids)} ids"


@contextmanager
def watched() -> Iterator[list[str]]:
    """The faults that are found in what is known, after each event."""
    found: list[str] = []

    def watching(event: str, happen: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(happen)
        def watch(record: Record, *given: Any, **more: Any) -> Any:
            out = happen(record, *given, **more)
            found.extend(f"after {event}{given}: {fault}" for fault in faults(record))
            return out

        return watch

    with ExitStack() as patches:
        for event in _EVENTS:
            patches.enter_context(patch.object(Record, event, watching(event, getattr(Record, event))))
        yield found
