"""What is known of one task: one entry.

In: what the server said last, as of when, and what makes it stale. Out: its state, and what it takes in bytes.
Always: an entry changes in its index alone (index.py); what changes it stands in one table (reconciliation.py).
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from gateway.mcp.task import NO_END, NO_STAMP, UNKNOWN, Stamp, Task, text_bytes

TASK_OVERHEAD_BYTES = 205
"""What a task takes beside its raw JSON and its id (tests/rules/test_index_memory.py, `make bench`)."""

_NUMBER_BYTES: Final = 32  # of an instant of its own
STAMP_BYTES: Final = 190  # of a stamp of its own
_ABSENT_BYTES: Final = 350  # of a task that is not there beside its id, at most (tests/rules/test_reconciliation.py)
_STALE_BYTES: Final = 250  # of what makes it stale
UNLISTED_BYTES: Final = 100
UNLISTED: Final = 0


class Source(IntEnum):
    """Who has said that a task is stale. Of two the higher one stays."""

    BY_ERROR = 0  # it may not be there: it is asked for only if the index has it
    ELSEWHERE = 1  # an answer to the caller at another time (task_ids_seen_by_caller.py): its error fails no query
    TO_ALL = 2  # a page, or a message to everybody
    TO_CALLER = 3  # other replicas cannot know of it


class Stale(msgspec.Struct, gc=False):
    """A task must be asked for again: something else was said of it than the index says, or answers overlapped."""

    blocks_from: int  # queries that came from then on wait for it; or ALL, or PUT_OFF (reconciliation.py)
    invalidated: int  # when that was said last: an answer asked for later ends it
    source: Source = Source.TO_CALLER
    method: str | None = None  # of the request that made it, or of what another replica has told
    made: int = 0  # when a result made it: the first answer asked for later may show a new task under an old id
    denied: int = 0  # when something has denied it, since then
    failed: int = 0  # own requests for it, as the index lacks it


class TaskEntry(Task, gc=False):
    """What is known of one task: what the server said last, as of when, and what makes it stale.

    Its state is one of four, each stale or not; in the last two `raw` is empty:

        LISTED    it is there, and a page has shown this incarnation
        UNLISTED  it is there, and no page has since the last crawl began
        GONE      an answer said so
        MARKED    nothing is known but that it is stale
    """

    told: Stamp = NO_STAMP  # when it was asked for, and came or was shown to a client, that it is there, or gone
    listed: int = UNLISTED  # the number of the last crawl whose pages have shown it
    stale: Stale | None = None

    @property
    def is_gone(self) -> bool:
        return not self.raw and self.told is not NO_STAMP

    @property
    def is_unlisted(self) -> bool:
        return self.raw != b"" and self.listed == UNLISTED


Changed: TypeAlias = Callable[[TaskEntry | None, TaskEntry], None]  # what was known of a task, and what will be


def absent(task_id: str, told: Stamp = NO_STAMP, stale: Stale | None = None) -> TaskEntry:
    return TaskEntry(task_id, "", UNKNOWN, UNKNOWN, b"", told=told, stale=stale)


def size_of(entry: TaskEntry) -> int:
    stale_bytes = 0 if entry.stale is None else _STALE_BYTES
    if not entry.raw:
        return text_bytes(entry.id) + _ABSENT_BYTES + stale_bytes if entry.is_gone or stale_bytes else 0
    instants = {entry.created, entry.updated} - {UNKNOWN}
    own_bytes = _NUMBER_BYTES * (len(instants) + (entry.expires_unix_s != NO_END)) + STAMP_BYTES * entry.told.is_alone
    own_bytes += stale_bytes + UNLISTED_BYTES * (entry.listed == UNLISTED)
    return len(entry.raw) + text_bytes(entry.id) + TASK_OVERHEAD_BYTES + own_bytes
