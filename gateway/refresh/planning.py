"""What must be asked of the upstream before a query may be answered: what is marked, and what can have changed.

The promise (DESIGN 6.1, 6.2): an answer reflects every task's state at some instant not older than `max_age` before the
query came, and everything that passed through before it came. A task made or deleted elsewhere shows within
`full_crawl_interval`. Three facts make it cheap (DESIGN 2, 6.6): a terminal task changes no more; a live task can be
asked for by its id; a list in order of creation shows new tasks on its last page, or its first.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from gateway.mcp.task import Moment, Task
from gateway.query.criteria import OPEN, Query
from gateway.tasks.reconciliation import MARKED_ID_CHARS_MAX, Listing, Record

_COLD_IDS_MAX: Final = 100  # asked for one by one before the first crawl, whose cost is unknown
_NEW_MIN: Final = 2  # marked tasks that the index lacks: from so many on the page where new tasks appear is read


class Plan(msgspec.Struct, frozen=True):
    """What to ask, and why: all pages; or the last ones (`tail`), and single tasks; or whether the caller is served."""

    reason: str
    crawl: bool = False
    tail: bool = False
    tasks: Sequence[str] = ()
    check_access: bool = False

    @property
    def reads(self) -> bool:
        return self.crawl or self.tail or self.check_access

    @property
    def nothing(self) -> bool:
        return not (self.reads or self.tasks)


FRESH: Final = Plan("fresh")
ACCESS_CHECK: Final = Plan("the upstream has yet to accept this caller", check_access=True)


class Ages(msgspec.Struct, frozen=True):
    """How old things may be, in seconds (`index.max_age`, `index.full_crawl_interval`)."""

    max_age_s: float
    full_crawl_interval_s: float


class Need(msgspec.Struct, frozen=True):
    """How recent things must be for a query: not older than `max_age`, and asked for after the last doubt."""

    came: Moment
    oldest_s: float
    oldest_crawl_s: float
    doubted: int

    def met(self, as_of: Moment) -> bool:
        return as_of.at >= self.oldest_s and as_of.order > self.doubted

    def met_by_terminal(self, as_of: Moment) -> bool:
        """The same of a terminal task: it can only have gone."""
        return as_of.at >= min(self.oldest_s, self.oldest_crawl_s) and as_of.order > self.doubted


def need_of(record: Record, came: Moment, ages: Ages) -> Need:
    """How recent things must be for a query that came then. A doubt after it counts as if it were of then."""
    oldest_s, oldest_crawl_s = came.at - ages.max_age_s, came.at - ages.full_crawl_interval_s
    return Need(came, oldest_s, oldest_crawl_s, min(record.known.doubted, came.order))


def plan(record: Record, query: Query, came: Moment, ages: Ages, owns: Callable[[str], bool] = lambda _: True) -> Plan:
    """What must be asked before `query`, which came then, may be answered. `owns`: the caller may see it."""
    known, index = record.known, record.index
    if known.is_hidden(came.order):
        return ACCESS_CHECK
    need = need_of(record, came, ages)
    ids, unlisted, seeks = query.task_ids, record.unlisted, False
    if ids is not None and known.asks_by_id:
        named = [i for i in ids if not _is_settled(record, i, need) and owns(i)]
        # A crawl also tells whether an unknown task is of this session: that is worth one request.
        seeks = any(index.get(i) is None for i in named)
        asked = len(named) + seeks
        is_short = max(map(len, ids), default=0) <= MARKED_ID_CHARS_MAX
        if is_short and (known.outgrown or asked <= (known.pages or _COLD_IDS_MAX)):
            return Plan("only the tasks that are named", tasks=named)
    crawled = known.crawled.as_of
    is_crawled = need.met(crawled)
    if not is_crawled and (all_pages := _all_pages(record, need)) is not None:
        return all_pages
    if not is_crawled and seeks:  # the order in which the list seems to grow may be chance
        return Plan("reading all pages costs no more", crawl=True)
    if unlisted and not need.met_by_terminal(known.unlisted_as_of):
        return Plan("tasks that no list shows must be asked for again", crawl=True)
    marked = record.due(came.order)
    if marked and not known.asks_by_id:
        return Plan("tasks that may have changed", crawl=True)
    tail = not need.met(known.new_as_of)
    if not (tail or marked or not need.met(known.live_as_of)):
        return FRESH
    live = index.live(query, among=unlisted if is_crawled else None)
    stale = (t.id for t in live if not (record.is_due(t.id, came.order) or need.met(t.told.as_of)))
    new = [i for i in marked if index.get(i) is None]
    if len(new) >= _NEW_MIN and known.listing is not Listing.NEITHER and _may_be_listed(record, new, came):
        tail, marked = True, [i for i in marked if index.get(i) is not None]
    on_pages = [i for i in marked if (task := index.get(i)) is not None and task.crawl == record.crawl]
    if is_crawled and not tail:
        if on_pages and len(on_pages) >= known.pages:
            return Plan("reading all pages costs no more", crawl=True)
        if marked:
            return Plan("tasks that may have changed", tasks=[*marked, *stale])
        return Plan("only the tasks that no list shows", tasks=list(stale) if known.asks_by_id else ())
    due = [*marked, *islice(stale, known.pages)]
    if tail + len(due) - len(marked) + len(on_pages) >= known.pages:
        return Plan("reading all pages costs no more", crawl=True)
    return Plan("only what can have changed", tail=tail, tasks=due)


def may_match_all_live(query: Query) -> bool:
    """Whether every live task matches `query`, or may after a change."""
    return query.method_test is None and query.task_ids is None and query.created == OPEN


def _all_pages(record: Record, need: Need) -> Plan | None:
    """The plan to read all pages, as the last time is too long ago; None if less is enough."""
    known, crawled = record.known, record.known.crawled.as_of
    if not crawled.order:
        tail_failed = bool(known.crawled.came)  # the page where new tasks appear was not found
        return Plan("reading all pages costs no more" if tail_failed else "nothing is known yet", crawl=True)
    if crawled.at < need.oldest_crawl_s:
        return Plan("full_crawl_interval is over", crawl=True)
    if crawled.order <= need.doubted:
        return Plan("something passed unread", crawl=True)
    if known.listing is Listing.NEITHER:
        return Plan("the upstream lists in no order of creation", crawl=True)
    return None if known.asks_by_id else Plan("the upstream does not know tasks/get", crawl=True)


def _may_be_listed(record: Record, new: Sequence[str], came: Moment) -> bool:
    """Whether the page where new tasks appear has not been read since one of these was marked, or the query came."""
    looked = record.known.new_as_of.order
    return any(min(record.marks[i].last, came.order) > looked for i in new)


def _is_settled(record: Record, task_id: str, need: Need) -> bool:
    """Whether a task's state, or its absence, is known well enough."""
    task = record.index.get(task_id)
    if record.is_due(task_id, need.came.order):
        return False
    if task is None:
        gone = record.gone.get(task_id)
        return need.met(record.known.crawled.as_of) or (gone is not None and need.met(gone.as_of))
    return (need.met_by_terminal if task.is_terminal else need.met)(task.told.as_of)


def overdue(record: Record, shown: Sequence[Task], now: float, now_unix_s: float) -> list[str]:
    """The ids of tasks to be shown whose `createdAt + ttl` has passed since they were told: they may have gone."""
    if not record.known.asks_by_id:
        return []
    due = [task for task in shown if task.expires_unix_s <= now_unix_s]
    return [task.id for task in due if task.expires_unix_s > now_unix_s - (now - task.told.as_of.at)]
