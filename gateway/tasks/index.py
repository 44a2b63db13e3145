"""The tasks of one session, sorted by creation and by last update: the cost of a page is that of its own tasks.

In: reports of tasks, observed or crawled. Out: pages of a `Query`, with the number of tasks that match.
Always: one entry for a task id; never backwards (`Task.supersedes`); a group has exactly the tasks of one status and
one method, as a `Plane` of their instants. A query touches only the groups whose status and method match. Its total
and its page come from their planes, whatever its ranges and its order are. Only a query with task ids, or with a test
of each task, looks at tasks one by one.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from gateway.mcp.task import TERMINAL, SortKey, Task, digest
from gateway.tasks.criteria import Query
from gateway.tasks.plane import Plane
from gateway.tasks.runs import OPEN
from gateway.tasks.shards import Shards

TASK_OVERHEAD_BYTES = 440
"""What a task costs beside its raw JSON and its id, measured by `make bench`."""

_AT_ONCE: Final = 1000
_TOLD_OVERHEAD_BYTES: Final = 200

_Group: TypeAlias = tuple[str, str | None]  # a status and a method


class QueryPage(msgspec.Struct):
    """A page of a query: its tasks in order, how many match in all, and whether more follow."""

    tasks: list[Task]
    total: int
    more: bool


class Index:
    """The tasks of one session."""

    def __init__(self) -> None:
        self.default_method: str | None = None
        """The method of a task whose request did not pass here (DESIGN 5.3)."""
        self._told: dict[str, str] = {}  # methods of tasks that are not here, by id
        self._tasks = Shards()
        self._groups: dict[_Group, Plane] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def parts(self) -> Iterator[list[Task]]:
        """All tasks, some at a time. A task that is added meanwhile may be missing."""
        return self._tasks.parts()

    def dismantle(self) -> Iterator[None]:
        """Free the memory bit by bit: a million tasks at once delay all clients. Nothing else works afterwards."""
        for group in self._groups.values():
            yield from group.dismantle()
        yield from self._tasks.dismantle()

    def get(self, task_id: str) -> Task | None:
        """The task of an id; None if there is none."""
        return self._tasks.get(task_id)

    def tell_method(self, task_id: str, method: str) -> None:
        """Another replica saw which request made a task."""
        known = self._tasks.get(task_id)
        if known is not None:
            self.put(msgspec.structs.replace(known, method=known.method or method))
        elif task_id not in self._told:
            self._told[task_id] = method
            self.size_bytes += _told_bytes(task_id)

    def method_of(self, task_id: str) -> str | None:
        """The method of a task, in the index or not; None if it is unknown."""
        known = self._tasks.get(task_id)
        return self._told.get(task_id) if known is None else known.method

    def _with_method(self, report: Task) -> Task:
        """A report with the method that another replica saw."""
        method = self._told.pop(report.id, None)
        if method is None:
            return report
        self.size_bytes -= _told_bytes(report.id)
        return msgspec.structs.replace(report, method=report.method or method)

    def put(self, report: Task) -> None:
        """Take in a report of a task, unless the same or a newer one is here."""
        self.put_all((report,))

    def put_all(self, reports: Iterable[Task]) -> None:
        """Take in several reports, as `put` does, in half the time."""
        fresh: dict[_Group, dict[str, Task]] = {}
        if self._told:
            reports = map(self._with_method, reports)
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
        """The task as it is known after a report; None if the report changes nothing."""
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
        """Note that crawl number `crawl` has listed a task. False if it had already, or if the task is not here."""
        task = self._tasks.get(task_id)
        if task is None or task.crawl == crawl:
            return False
        task.crawl = crawl
        return True

    def remove(self, task_id: str) -> bool:
        """Remove a task. False if it is not here."""
        if self._told.pop(task_id, None) is not None:
            self.size_bytes -= _told_bytes(task_id)
        task = self._tasks.pop(task_id)
        if task is None:
            return False
        self._take_out(task)
        self.size_bytes -= size_of(task)
        return True

    def _take_out(self, task: Task) -> None:
        """Remove a task from its group."""
        group = self._groups[task.status, task.method]
        group.remove(task.created, task.updated)
        if group.is_empty:
            del self._groups[task.status, task.method]

    def live(self, query: Query, among: Collection[str] | None = None) -> Iterator[list[str]]:
        """The ids of the live tasks that match `query` or may match it after a change, some at a time.

        With `among`, only those in it.
        """
        groups = [
            group
            for (status, method), group in self._groups.items()
            if status not in TERMINAL
            and (query.method_test is None or query.method_test(method or self.default_method))
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

    def select(self, query: Query, after: SortKey | None, limit: int, shown: frozenset[int] = frozenset()) -> QueryPage:
        """The first `limit` tasks that match, behind `after`, without those whose digests are in `shown`."""
        if query.task_ids is not None or query.task_test is not None:
            found = [task for task in self._candidates(query) if query.matches(task, self.default_method)]
            return page_of(query, found, after, limit, shown)
        groups = self._matching_groups(query)
        total = sum(group.count(query.created, query.updated) for group in groups)
        runs = [group.walk(query.by, query.descending, query.created, query.updated, after) for group in groups]
        keys: Iterator[SortKey] = runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=query.descending)
        if shown:
            keys = (key for key in keys if digest(key.id) not in shown)
        tasks = self._tasks.all_of(islice(keys, limit + 1))
        return QueryPage(tasks[:limit], total, len(tasks) > limit)

    def _matching_groups(self, query: Query) -> list[Plane]:
        """The groups of each status and method for which the criteria hold."""
        return [
            group
            for (status, method), group in self._groups.items()
            if (query.status_test is None or query.status_test(status))
            and (query.method_test is None or query.method_test(method or self.default_method))
        ]

    def _candidates(self, query: Query) -> Iterator[Task]:
        """The tasks that may match, for a query that looks at tasks one by one."""
        if query.task_ids is not None:
            yield from filter(None, map(self._tasks.get, query.task_ids))
            return
        for group in self._matching_groups(query):
            for key in group.walk(query.by, False, query.created, query.updated, None):
                yield self._tasks[key.id]


def page_of(query: Query, matching: list[Task], after: SortKey | None, limit: int, shown: frozenset[int]) -> QueryPage:
    """The page of a query, from all tasks that match, in any order."""
    rest = [
        task
        for task in matching
        if (after is None or _follows(query, query.sort_key(task), after)) and not (shown and digest(task.id) in shown)
    ]
    pick = heapq.nlargest if query.descending else heapq.nsmallest
    tasks = pick(limit + 1, rest, key=query.sort_key)
    return QueryPage(tasks[:limit], len(matching), len(tasks) > limit)


def _follows(query: Query, place: SortKey, after: SortKey) -> bool:
    return bool(place < after if query.descending else place > after)


def _told_bytes(task_id: str) -> int:
    return len(task_id) + _TOLD_OVERHEAD_BYTES


def size_of(task: Task) -> int:
    """Bytes of memory that a task takes."""
    return len(task.raw) + len(task.id) + TASK_OVERHEAD_BYTES
