"""What must be asked of the upstream before a query may be answered: as little as can have changed.

In: what is known of a session and when it was learned, a query and when it came. Out: a `Plan`.
Always: pure; times are seconds of one monotonic clock, given by the caller. `plan` is the whole decision.

The promise (DESIGN 6): an answer reflects every task's state at some instant not older than `max_age` before the query
came, and everything that passed through before it came; a task made or deleted elsewhere within
`full_crawl_interval`. The facts it is kept with (DESIGN 2, 6): a terminal task changes no more; a live one can be
asked for by its id; a server that lists in order of creation shows what is new on its last page, or its first.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

import msgspec

from gateway.core.index import Index
from gateway.core.knowledge import NEVER, NOTED_ID_CHARS_MAX, Knowledge, Listing
from gateway.core.query import Query
from gateway.core.task import Task

_COLD_IDS_MAX: Final = 100  # asked for one by one where nothing is known of what a crawl would cost


class Plan(msgspec.Struct, frozen=True):
    """What to ask, and why: all pages; or the page where new tasks appear, and single tasks."""

    reason: str
    crawl: bool = False
    look: bool = False
    tasks: Sequence[str] = ()

    @property
    def nothing(self) -> bool:
        return not (self.crawl or self.look or self.tasks)


FRESH: Final = Plan("fresh")


class Ages(msgspec.Struct, frozen=True):
    """How old things may be, in seconds (`index.max_age`, `index.full_crawl_interval`)."""

    max_age_s: float
    full_crawl_interval_s: float


def oldest_of(known: Knowledge, came_at: float, ages: Ages) -> float:
    """Since when what a query that came at `came_at` is answered by must be known."""
    return max(came_at - ages.max_age_s, min(known.doubted_at, came_at))


def plan(known: Knowledge, index: Index, query: Query, came_at: float, ages: Ages) -> Plan:
    """What must be asked before `query`, which came at `came_at`, may be answered from `index`."""
    oldest, doubted_at = oldest_of(known, came_at, ages), min(known.doubted_at, came_at)
    oldest_crawl = came_at - ages.full_crawl_interval_s
    if (
        query.task_ids is not None
        and known.asks_by_id
        and max(map(len, query.task_ids), default=0) <= NOTED_ID_CHARS_MAX
    ):
        named = [i for i in query.task_ids if not _is_settled(known, index, i, came_at, oldest, oldest_crawl)]
        # Where there is one page, it tells more of a task that nobody here has seen: whether it is this session's.
        if len(named) + any(index.get(i) is None for i in named) <= (known.pages or _COLD_IDS_MAX):
            return Plan("only the tasks that are named", tasks=named)
    if known.crawled_at == NEVER:
        return Plan("nothing is known yet", crawl=True)
    if known.crawled_at < oldest:
        if known.crawled_at < oldest_crawl:
            return Plan("full_crawl_interval is over", crawl=True)
        if known.crawled_at < doubted_at:
            return Plan("something passed unread", crawl=True)
        if known.listing is Listing.NEITHER:
            return Plan("the upstream lists in no order of creation", crawl=True)
        if not known.asks_by_id:
            return Plan("the upstream does not know tasks/get", crawl=True)
    if known.unlisted and known.unlisted_at < max(min(oldest, oldest_crawl), doubted_at):
        return Plan("tasks that no list shows must be asked for again", crawl=True)
    if suspects := [i for i, suspicion in known.suspect.items() if suspicion.since <= came_at]:
        by_id = known.asks_by_id
        return Plan("tasks that may be gone", crawl=not by_id, tasks=suspects if by_id else ())
    look = max(known.looked_at, known.crawled_at) < oldest
    if not look and known.live_at >= oldest:
        return FRESH
    by_pages = known.crawled_at >= oldest
    live = chain.from_iterable(index.live(query, among=known.unlisted if by_pages else None))
    due_ones = (i for i in live if known.reported_at(i) < oldest)
    if by_pages:
        return Plan("only the tasks that no list shows", tasks=list(due_ones) if known.asks_by_id else ())
    due = list(islice(due_ones, known.pages))
    if look + len(due) >= known.pages:
        return Plan("reading all pages costs no more", crawl=True)
    return Plan("only what can have changed", look=look, tasks=due)


def _is_settled(
    known: Knowledge, index: Index, task_id: str, came_at: float, oldest: float, oldest_crawl: float
) -> bool:
    """Whether a task's state, or that there is none, is known well enough."""
    task, suspicion = index.get(task_id), known.suspect.get(task_id)
    if suspicion is not None and (task is None or suspicion.since <= came_at):
        return False
    if task is None:
        return max(known.gone.get(task_id, NEVER), known.crawled_at) >= oldest
    terminal_since = min(oldest, max(oldest_crawl, known.doubted_at))
    return known.confirmed_at(task_id) >= (terminal_since if task.is_terminal else oldest)


def overdue(known: Knowledge, shown: Iterable[Task], now: float, now_unix_s: float) -> list[str]:
    """Of the tasks that would be shown, those whose `createdAt + ttl` has passed since they were last reported.

    A task that was reported after that moment is kept by its server for reasons of its own; when it goes is then
    as unknown as any deletion elsewhere.
    """
    if not known.asks_by_id:
        return []
    out = []
    for task in shown:
        expires_s = task.expires_unix_s
        if expires_s is not None and now_unix_s >= expires_s > now_unix_s - (now - known.confirmed_at(task.id)):
            out.append(task.id)
    return out
