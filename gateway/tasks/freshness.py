"""What must be asked of the upstream before a query may be answered: only what can have changed.

In: what is known of a session, and as of when; a query, and when it came. Out: a `Plan`.
Always: pure; times are seconds of one monotonic clock, given by the caller. `plan` is the whole decision; its picture
is in DESIGN 6.3.

The promise (DESIGN 6.1, 6.2): an answer reflects every task's state at some instant not older than `max_age` before the
query came, and everything that passed through before it came. A task made or deleted elsewhere shows within
`full_crawl_interval`. Three facts make it cheap (DESIGN 2, 6.6): a terminal task changes no more; a live task can be
asked for by its id; a list in order of creation shows new tasks on its last page, or its first.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from gateway.mcp.task import Task
from gateway.tasks.criteria import Query
from gateway.tasks.index import Index
from gateway.tasks.knowledge import Knowledge, Listing
from gateway.tasks.notes import NEVER, NOTED_ID_CHARS_MAX

_COLD_IDS_MAX: Final = 100  # asked for one by one before the first crawl, whose cost is unknown


class Plan(msgspec.Struct, frozen=True):
    """What to ask, and why: all pages; or the page where new tasks appear, and single tasks; or just knock."""

    reason: str
    crawl: bool = False
    look: bool = False
    tasks: Sequence[str] = ()
    knock: bool = False

    @property
    def reads(self) -> bool:
        """Whether it asks for pages."""
        return self.crawl or self.look or self.knock

    @property
    def nothing(self) -> bool:
        return not (self.reads or self.tasks)


FRESH: Final = Plan("fresh")
KNOCK: Final = Plan("the upstream has yet to accept this caller", knock=True)


class Ages(msgspec.Struct, frozen=True):
    """How old things may be, in seconds (`index.max_age`, `index.full_crawl_interval`)."""

    max_age_s: float
    full_crawl_interval_s: float


def oldest_of(known: Knowledge, came_at: float, ages: Ages) -> float:
    """The oldest instant that the answer to a query from `came_at` may reflect."""
    return max(came_at - ages.max_age_s, min(known.doubted_at, came_at))


def plan(known: Knowledge, index: Index, query: Query, came_at: float, ages: Ages) -> Plan:
    """What must be asked before `query`, which came at `came_at`, may be answered from `index`."""
    if known.refused_at != NEVER:
        return KNOCK
    oldest, doubted_at = oldest_of(known, came_at, ages), min(known.doubted_at, came_at)
    oldest_crawl = came_at - ages.full_crawl_interval_s
    ids, unlisted = query.task_ids, known.notes.unlisted
    if ids is not None and known.asks_by_id and max(map(len, ids), default=0) <= NOTED_ID_CHARS_MAX:
        named = [i for i in ids if not _is_settled(known, index, i, came_at, oldest, oldest_crawl)]
        # A crawl also tells whether an unknown task is of this session: that is worth one request.
        asked = len(named) + any(index.get(i) is None for i in named)
        if known.outgrown or asked <= (known.pages or _COLD_IDS_MAX):
            return Plan("only the tasks that are named", tasks=named)
    if known.pages_as_of == NEVER:
        return Plan("nothing is known yet", crawl=True)
    if known.pages_as_of < oldest:
        if known.pages_as_of < oldest_crawl:
            return Plan("full_crawl_interval is over", crawl=True)
        if known.pages_as_of < doubted_at:
            return Plan("something passed unread", crawl=True)
        if known.listing is Listing.NEITHER:
            return Plan("the upstream lists in no order of creation", crawl=True)
        if not known.asks_by_id:
            return Plan("the upstream does not know tasks/get", crawl=True)
    if unlisted and known.unlisted_as_of < max(min(oldest, oldest_crawl), doubted_at):
        return Plan("tasks that no list shows must be asked for again", crawl=True)
    if suspects := known.notes.suspects(came_at):
        by_id = known.asks_by_id
        return Plan("tasks that may be gone", crawl=not by_id, tasks=suspects if by_id else ())
    look = known.new_as_of < oldest
    if not look and known.live_as_of >= oldest:
        return FRESH
    by_pages = known.pages_as_of >= oldest
    live = index.live(query, among=unlisted if by_pages else None)
    due = (i for i in live if known.reported_at(i) < oldest)
    if by_pages:
        return Plan("only the tasks that no list shows", tasks=list(due) if known.asks_by_id else ())
    first_due = list(islice(due, known.pages))
    if look + len(first_due) >= known.pages:
        return Plan("reading all pages costs no more", crawl=True)
    return Plan("only what can have changed", look=look, tasks=first_due)


def _is_settled(
    known: Knowledge, index: Index, task_id: str, came_at: float, oldest: float, oldest_crawl: float
) -> bool:
    """Whether a task's state, or its absence, is known well enough."""
    task, note = index.get(task_id), known.notes.get(task_id)
    if note is not None and note.is_suspect and (task is None or note.suspect_from <= came_at):
        return False
    if task is None:
        return max(known.gone_at(task_id), known.pages_as_of) >= oldest
    oldest_terminal = min(oldest, max(oldest_crawl, known.doubted_at))
    return known.confirmed_at(task_id) >= (oldest_terminal if task.is_terminal else oldest)


def overdue(known: Knowledge, shown: Sequence[Task], now: float, now_unix_s: float) -> list[str]:
    """Of the tasks about to be shown, the ids of those whose `createdAt + ttl` has passed since their last report.

    If a task was reported after that moment, its server keeps it longer. It is then found gone like any task that is
    deleted elsewhere.
    """
    if not known.asks_by_id:
        return []
    due = [task for task in shown if task.expires_unix_s <= now_unix_s]
    return [task.id for task in due if task.expires_unix_s > now_unix_s - (now - known.confirmed_at(task.id))]
