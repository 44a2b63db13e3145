"""What must hold of what is known of a session, whatever happened: the rules that `tasks/reconciliation.py` states."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final
from unittest.mock import patch

from gateway.tasks.index import GROUP_BYTES
from gateway.tasks.reconciliation import PUT_OFF, Record
from gateway.tasks.task_entry import size_of

_EVENTS: Final = ("observe", "mark", "answered", "page_answered", "begin_crawl", "end_crawl")


def faults(record: Record) -> Iterator[str]:
    """What is wrong with what is known."""
    index = record.index
    if record.new_as_of < record.crawled.as_of:
        yield "the place of new tasks is known as of before the pages"
    for task in index.unlisted.values():
        if record.unlisted_as_of > task.told.as_of or (not task.is_terminal and record.live_as_of > task.told.as_of):
            yield f"{task.id} is known as of {task.told.as_of}: {record}"
    entries = index.entries
    for name, ids, derived in (
        ("stale", index.stale, {i: e.stale for i, e in entries.items() if e.stale is not None}),
        ("gone", index.gone, {i: e for i, e in entries.items() if e.is_gone}),
        ("unlisted", index.unlisted, {i: e for i, e in entries.items() if e.is_unlisted}),
    ):
        if ids != derived or any(ids[i] is not derived[i] for i in ids):
            yield f"{name}: {ids}, not {derived}"
    if len(index) != sum(1 for e in entries.values() if e.raw):
        yield f"{len(index)} tasks, not those of {entries}"
    for entry in entries.values():
        if not (entry.raw or entry.is_gone or entry.stale is not None):
            yield f"nothing is known of {entry}"
        stale = entry.stale
        if stale is not None and stale.blocks_from > stale.invalidated and stale.blocks_from != PUT_OFF:
            yield f"{entry}"
    groups_bytes = GROUP_BYTES * len(index._groups)
    if index.entry_bytes != groups_bytes + sum(map(size_of, entries.values())):
        yield f"{index.entry_bytes} bytes of {entries}"


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
