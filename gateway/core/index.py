"""The tasks of one session, in both orders, so that a page costs what the page costs.

In: reports of tasks, as they are observed or crawled. Out: pages of a `Query`, with how many tasks match.
Always: one entry for a task id; never backwards (`Task.supersedes`); every group holds exactly the tasks of one
status and one method, as a `Plane` of their instants. A query by status and method touches only the groups that
match; whatever its ranges and its order are, its total and its page come from the planes.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from gateway.core.plane import Plane
from gateway.core.query import Query
from gateway.core.runs import OPEN
from gateway.core.shards import Shards
from gateway.core.task import TERMINAL, Key, Task, digest

TASK_OVERHEAD_BYTES = 440
"""What a task costs beside its raw JSON and its id, measured by `make bench`."""

_AT_ONCE: Final = 1000

_Group: TypeAlias = tuple[str, str | None]  # of one status and one method


class Page(msgspec.Struct):
    """Some tasks in order, how many match in all, and whether more follow."""

    tasks: list[Task]
    total: int
    more: bool


class Index:
    """The tasks of one session."""

    def __init__(self) -> None:
        self.default_method: str | None = None
        """The method of tasks that nobody saw being made (DESIGN 5.3)."""
        self._tasks = Shards()
        self._groups: dict[_Group, Plane] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def parts(self) -> Iterator[list[Task]]:
        """All tasks, some at a time; what changes meanwhile may be in or not."""
        return self._tasks.parts()

    def dismantle(self) -> Iterator[None]:
        """Free it bit by bit, because a million tasks freed at once hold everything up; it is of no use any more."""
        for group in self._groups.values():
            yield from group.dismantle()
        yield from self._tasks.dismantle()

    def get(self, task_id: str) -> Task | None:
        """The task of that id, if it is here."""
        return self._tasks.get(task_id)

    def put(self, report: Task) -> None:
        """Take in a report of a task, unless what is here is newer, or the same."""
        self.put_all((report,))

    def put_all(self, reports: Iterable[Task]) -> None:
        """As `put`, for several at once, which takes half the time."""
        fresh: dict[_Group, dict[str, Task]] = {}
        for report in reports:
            known = self._tasks.add(report)
            latest = report if known is None else self._latest(known, report, fresh)
            if latest is not None:
                self.size_bytes += size_of(latest)
                fresh.setdefault((latest.status, latest.method), {})[latest.id] = latest
        for group, tasks in fresh.items():
            if tasks:
                if group not in self._groups:
                    self._groups[group] = Plane(self._tasks.created_of)
                self._groups[group].add_all([(task.created, task.updated) for task in tasks.values()])

    def _latest(self, known: Task, report: Task, fresh: dict[_Group, dict[str, Task]]) -> Task | None:
        """What is now known of a task, instead of what was known; None if that is the same."""
        latest = report if report.supersedes(known) else known
        method = report.method or known.method
        if latest.raw == known.raw and method == known.method:
            return None
        latest = msgspec.structs.replace(latest, method=method, crawl=known.crawl)
        self._tasks[known.id] = latest
        self.size_bytes -= size_of(known)
        if fresh.get((known.status, known.method), {}).pop(known.id, None) is None:
            self._take_out(known)
        return latest

    def mark(self, task_id: str, crawl: int) -> bool:
        """Note that crawl number `crawl` has listed a task; whether it had not before."""
        task = self._tasks.get(task_id)
        if task is None or task.crawl == crawl:
            return False
        task.crawl = crawl
        return True

    def remove(self, task_id: str) -> bool:
        """Forget a task. False if it is not here."""
        task = self._tasks.pop(task_id)
        if task is None:
            return False
        self._take_out(task)
        self.size_bytes -= size_of(task)
        return True

    def _take_out(self, task: Task) -> None:
        """Out of its group."""
        group = self._groups[task.status, task.method]
        group.remove(task.created, task.updated)
        if group.is_empty:
            del self._groups[task.status, task.method]

    def live(self, query: Query, among: Collection[str] | None = None) -> Iterator[list[str]]:
        """The ids of the tasks that may still change, and that may match `query` then; some at a time.

        Of those in `among`, if it is given.
        """
        groups = [
            group
            for (status, method), group in self._groups.items()
            if status not in TERMINAL and query.accepts_method(method or self.default_method)
        ]
        named = [ids for ids in (query.task_ids, among) if ids is not None]
        fewest = min(named, key=len, default=None)
        if fewest is not None and len(fewest) < sum(group.count(OPEN, OPEN) for group in groups):
            known = filter(None, map(self._tasks.get, fewest))
            yield [t.id for t in known if query.may_match(t, self.default_method) and all(t.id in ids for ids in named)]
            return
        for group in groups:
            keys = group.walk("createdAt", False, query.created, (None, query.updated[1]), None)
            while some := [key.id for key in islice(keys, _AT_ONCE)]:
                yield [i for i in some if all(i in ids for ids in named)] if named else some

    def select(self, query: Query, after: Key | None, limit: int, shown: frozenset[int] = frozenset()) -> Page:
        """The first `limit` tasks that match, behind the place `after`, without those whose digests are in `shown`."""
        if query.task_ids is not None:
            found = [t for i in query.task_ids if (t := self._tasks.get(i)) and query.matches(t, self.default_method)]
            return page_of(query, found, after, limit, shown)
        groups = [
            group
            for (status, method), group in self._groups.items()
            if (query.status is None or status in query.status) and query.accepts_method(method or self.default_method)
        ]
        total = sum(group.count(query.created, query.updated) for group in groups)
        runs = [group.walk(query.by, query.descending, query.created, query.updated, after) for group in groups]
        keys: Iterator[Key] = runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=query.descending)
        if shown:
            keys = (key for key in keys if digest(key.id) not in shown)
        tasks = [self._tasks[key.id] for key in islice(keys, limit + 1)]
        return Page(tasks[:limit], total, len(tasks) > limit)


def page_of(query: Query, matching: list[Task], after: Key | None, limit: int, shown: frozenset[int]) -> Page:
    """A page out of all tasks that match, in no order."""
    rest = [
        task
        for task in matching
        if (after is None or _follows(query, query.place(task), after)) and not (shown and digest(task.id) in shown)
    ]
    pick = heapq.nlargest if query.descending else heapq.nsmallest
    tasks = pick(limit + 1, rest, key=query.place)
    return Page(tasks[:limit], len(matching), len(tasks) > limit)


def _follows(query: Query, place: Key, after: Key) -> bool:
    return bool(place < after if query.descending else place > after)


def size_of(task: Task) -> int:
    """Bytes of memory that a task takes."""
    return len(task.raw) + len(task.id) + TASK_OVERHEAD_BYTES
