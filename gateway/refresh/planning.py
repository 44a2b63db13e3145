"""What must be asked of the upstream before a query may be answered: what is marked, and what can have changed.

Always: what is left out is fresh enough for the promise (DESIGN 6.1, 6.2). Three facts make that cheap: a terminal task
changes no more; a live one can be asked for by its id; a list in order of creation shows new ones on its last page, or
its first.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from gateway.mcp.task import Moment
from gateway.query.criteria import OPEN, Query
from gateway.tasks.reconciliation import MARKED_ID_CHARS_MAX, Listing, Record
from gateway.tasks.task_entry import TaskEntry

_COLD_IDS_MAX: Final = 100  # asked for one by one before the first crawl, whose cost is unknown
_COSTS_NO_MORE: Final = "reading all pages costs no more"
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


def need_of(record: Record, came: Moment, max_age_s: float, full_crawl_interval_s: float) -> Need:
    """How recent things must be for a query that came then. A later doubt demands answers asked for since it came."""
    return Need(came, came.at - max_age_s, came.at - full_crawl_interval_s, min(record.doubted, came.order))


def plan(record: Record, query: Query, need: Need, owns: Callable[[str], bool] = lambda _: True) -> Plan:
    """What must be asked before `query` may be answered. `owns`: the caller may see the task."""
    named = None
    if record.needs_access_check(need.came.order):
        return ACCESS_CHECK
    if query.task_ids is not None and record.asks_by_id:
        named = [i for i in query.task_ids if not _is_fresh(record, i, need) and owns(i)]
    # A crawl also tells whether an unknown task is of this session: that is worth one request.
    seeks = any(record.index.get(i) is None for i in named or ())
    of_names = _named_tasks(record, query, named, seeks)
    found = of_names or _all_pages(record, need, seeks) or _changes(record, query, need) or FRESH
    # Whom the server has never accepted may name only tasks that are not his: then it is asked about him (7.5).
    return ACCESS_CHECK if found.nothing and not record.accepted else found


def _named_tasks(record: Record, query: Query, named: Sequence[str] | None, seeks: bool) -> Plan | None:
    if named is None or any(len(i) > MARKED_ID_CHARS_MAX for i in query.task_ids or ()):
        return None
    is_cheap = len(named) + seeks <= (record.last_crawl.pages or _COLD_IDS_MAX)
    return Plan("only the tasks that are named", tasks=named) if record.outgrown or is_cheap else None


def _all_pages(record: Record, need: Need, seeks: bool) -> Plan | None:
    crawled, why = record.crawled.as_of, ""
    is_crawled = need.met(crawled)
    if not is_crawled and not crawled.order:
        tail_failed = bool(record.crawled.came)  # the page where new tasks appear was not found
        why = _COSTS_NO_MORE if tail_failed else "nothing is known yet"
    elif crawled.at < need.oldest_crawl_s and not is_crawled:
        why = "full_crawl_interval is over"
    elif crawled.order <= need.doubted:
        why = "something passed unread"
    elif not is_crawled and record.last_crawl.listing is Listing.NEITHER:
        why = "the upstream lists in no order of creation"
    elif not is_crawled and not record.asks_by_id:
        why = "the upstream does not know tasks/get"
    elif not is_crawled and seeks:  # the order in which the list seems to grow may be chance
        why = _COSTS_NO_MORE
    elif record.index.unlisted and not need.met_by_terminal(record.unlisted_as_of):
        why = "tasks that no list shows must be asked for again"
    elif not record.asks_by_id and record.due(need.came.order):
        why = "tasks that may have changed"
    return Plan(why, crawl=True) if why else None


def _changes(record: Record, query: Query, need: Need) -> Plan | None:
    """The page where new tasks appear, stale tasks, and live ones, if that costs less than all pages."""
    index, came = record.index, need.came
    is_crawled, stale, tail = need.met(record.crawled.as_of), record.due(came.order), not need.met(record.new_as_of)
    last = record.last_crawl
    if not (tail or stale) and need.met(record.live_as_of):
        return None
    live = index.live(query) if index.unlisted or not is_crawled else ()  # a crawl has told of all that are listed
    known = set(stale)
    old = (t.id for t in live if not (t.id in known or need.met(t.told.as_of) or (is_crawled and not t.is_unlisted)))
    new = [i for i in stale if index.get(i) is None]
    looked = record.new_as_of.order  # one marked since may be on the page where new tasks appear
    may_be_listed = any(min(index.stale[i].invalidated, came.order) > looked for i in new)
    if len(new) >= _NEW_MIN and last.listing is not Listing.NEITHER and may_be_listed:
        tail, stale = True, [i for i in stale if index.get(i) is not None]
    on_pages = [i for i in stale if (task := index.get(i)) is not None and task.listed == record.crawl]
    if is_crawled and not tail:
        if on_pages and len(on_pages) >= last.pages:
            return Plan(_COSTS_NO_MORE, crawl=True)
        if stale:
            return Plan("tasks that may have changed", tasks=[*stale, *old])
        return Plan("only the tasks that no list shows", tasks=list(old) if record.asks_by_id else ())
    due = [*stale, *islice(old, last.pages)]
    if tail + len(due) - len(stale) + len(on_pages) >= last.pages:
        return Plan(_COSTS_NO_MORE, crawl=True)
    return Plan("only what can have changed", tail=tail, tasks=due)


def may_match_all_live(query: Query) -> bool:
    """Whether every live task matches `query`, or may after a change."""
    return query.methods is None and query.task_ids is None and query.created == OPEN


def _is_fresh(record: Record, task_id: str, need: Need) -> bool:
    """Whether a task's state, or its absence, is known well enough."""
    task, stale = record.index.get(task_id), record.index.stale.get(task_id)
    if stale is not None and stale.blocks_from <= need.came.order:
        return False
    if task is None:
        gone = record.index.gone.get(task_id)
        return need.met(record.crawled.as_of) or (gone is not None and need.met(gone.told.as_of))
    return (need.met_by_terminal if task.is_terminal else need.met)(task.told.as_of)


def overdue(record: Record, shown: Sequence[TaskEntry], now: float, now_unix_s: float) -> list[str]:
    """The ids of tasks to be shown whose `createdAt + ttl` has passed since they were told: they may have gone."""
    if not record.asks_by_id:
        return []
    due = [task for task in shown if task.expires_unix_s <= now_unix_s]
    return [task.id for task in due if task.expires_unix_s > now_unix_s - (now - task.told.as_of.at)]
