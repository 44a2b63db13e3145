"""The tasks of one session, sorted by creation and by last update: the cost of a page is that of its own tasks.

In: reports of tasks, observed or crawled. Out: pages of a `Query`, with the number of tasks that match.
Always: one entry for a task id: its last report (`Task.supersedes`); a group has exactly the tasks of one status and
one method, as a `Plane` of their instants. A query touches only the groups whose status and method match. Its total
and its page come from their planes, whatever its ranges and its order are. Only a query with task ids, or with a test
of each task, looks at tasks one by one.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from gateway.mcp.task import TERMINAL, UNKNOWN, Instant, SortKey, Task, digest, text_bytes
from gateway.tasks.criteria import Query
from gateway.tasks.cursor import Position
from gateway.tasks.pages import UNLIMITED, KeptPages, QueryPage, cut, page_of
from gateway.tasks.plane import Plane
from gateway.tasks.runs import OPEN
from gateway.tasks.shards import Shards

TASK_OVERHEAD_BYTES = 375
"""What a task takes beside its raw JSON and its id (tests/rules/test_index_memory.py, `make bench`)."""

GROUP_BYTES: Final = 1700  # of a group beside its tasks
METHOD_CHARS_MAX: Final = 50  # twice the longest request method of MCP
METHODS_MAX: Final = 16  # of one index: each makes groups, and clients choose them

_AT_ONCE: Final = 1000
_KEY_BYTES: Final = 80  # of a second sort key, and its places
_INT_BYTES: Final = 32
_FRACTION_BYTES: Final = 48 + 2 * 28  # beside its digits, of which seven bits take a byte
_NOTED_BYTES: Final = 40

_Group: TypeAlias = tuple[str, str | None]  # a status and a method


class Index:
    """The tasks of one session."""

    def __init__(self) -> None:
        self.default_method: str | None = None
        """The method of a task whose request did not pass here (DESIGN 5.3)."""
        self._noted: dict[str, str] = {}  # methods of tasks that are not here, by id
        self._methods: dict[str, str] = {}  # one string for a million tasks
        self._tasks = Shards()
        self._groups: dict[_Group, Plane] = {}
        self._pages = KeptPages()
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

    def note_method(self, task_id: str, method: str) -> None:
        """The method of the request that made a task, in the index or not, is known."""
        before, shared = self._tasks.get(task_id), self._shared(method)
        if shared is None:
            return
        if before is not None:
            self.put(msgspec.structs.replace(before, method=before.method or shared))
        elif task_id not in self._noted:
            self._noted[task_id] = shared
            self.size_bytes += _noted_bytes(task_id)

    def method_of(self, task_id: str) -> str | None:
        """The method of a task, in the index or not; None if it is unknown."""
        before = self._tasks.get(task_id)
        return self._noted.get(task_id) if before is None else before.method

    def _shared(self, method: str | None) -> str | None:
        """The one string for a method. None, which is an unknown method, if it is long, or beyond METHODS_MAX."""
        if method is None or len(method) > METHOD_CHARS_MAX:
            return None
        if len(self._methods) < METHODS_MAX:
            return self._methods.setdefault(method, method)
        return self._methods.get(method)

    def _with_method(self, report: Task) -> Task:
        """A report with its method as it is kept, or with the one that was noted."""
        noted = self._noted.pop(report.id, None)
        if noted is not None:
            self.size_bytes -= _noted_bytes(report.id)
        method = self._shared(report.method) or noted
        return report if method is report.method else msgspec.structs.replace(report, method=method)

    def put(self, report: Task) -> None:
        """Take in a report of a task, which is newer than the one that is here."""
        self.put_all((report,))

    def put_all(self, reports: Iterable[Task]) -> None:
        """Take in several reports, as `put` does, in half the time."""
        fresh: dict[_Group, dict[str, Task]] = {}
        for reported in reports:
            report = self._with_method(reported) if self._noted or reported.method is not None else reported
            before = self._tasks.add(report)
            latest = report if before is None else self._latest(before, report, fresh)
            if latest is not None:
                self.size_bytes += size_of(latest)
                fresh.setdefault((latest.status, latest.method), {})[latest.id] = latest
        for group, tasks in fresh.items():
            if tasks:
                if group not in self._groups:
                    self.size_bytes += GROUP_BYTES
                    self._groups[group] = Plane(self._tasks.created_of)
                self._groups[group].add_all([(task.created, task.updated) for task in tasks.values()])
                self.size_bytes += self._pages.forget(self._groups[group])

    def _latest(self, before: Task, report: Task, fresh: dict[_Group, dict[str, Task]]) -> Task | None:
        """The task as it is after a report; None if the report changes nothing."""
        latest = report if report.supersedes(before) else before
        method = report.method or before.method
        if latest.raw == before.raw and method == before.method:
            return None
        latest = msgspec.structs.replace(latest, method=method, crawl=before.crawl)
        self._tasks[before.id] = latest
        self.size_bytes -= size_of(before)
        if fresh.get((before.status, before.method), {}).pop(before.id, None) is None:
            self._take_out(before)
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
        if self._noted.pop(task_id, None) is not None:
            self.size_bytes -= _noted_bytes(task_id)
        task = self._tasks.pop(task_id)
        if task is None:
            return False
        self._take_out(task)
        self.size_bytes -= size_of(task)
        return True

    def _take_out(self, task: Task) -> None:
        """Remove a task from its group."""
        group = self._groups[task.status, task.method]
        self.size_bytes += self._pages.forget(group)
        group.remove(task.created, task.updated)
        if group.is_empty:
            del self._groups[task.status, task.method]
            self.size_bytes -= GROUP_BYTES

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
            there = filter(None, map(self._tasks.get, fewest))
            yield [t.id for t in there if query.may_match(t, self.default_method) and all(t.id in ids for ids in named)]
            return
        for group in groups:
            keys = group.walk("createdAt", False, query.created, OPEN, None)
            while some := [key.id for key in islice(keys, _AT_ONCE)]:
                yield [i for i in some if all(i in ids for ids in named)] if named else some

    def select(self, position: Position, limit: int, bytes_max: float = UNLIMITED) -> QueryPage:
        """The page at a position: `limit` tasks and `bytes_max` of JSON at most, but one task if there is any.

        The page of a position that comes again, the same small object, is kept.
        """
        query, limits = position.query, (limit, bytes_max)
        if query.task_ids is not None or query.task_test is not None:
            found = [task for task in self._candidates(query) if query.matches(task, self.default_method)]
            return page_of(position, found, *limits)
        groups = self._matching_groups(query)
        if position.comes_again and (kept := self._pages.find(position, limits, groups)) is not None:
            return kept
        page = self._select_from(groups, position, *limits)
        if position.comes_again:
            self.size_bytes += self._pages.keep(position, limits, groups, page)
        return page

    def walked_by(self, query: Query) -> int:
        """How many tasks `select` looks at one by one, beside those of the page."""
        if query.task_ids is not None:
            return len(query.task_ids)
        if query.task_test is None:
            return 0
        return sum(group.count(query.created, query.updated) for group in self._matching_groups(query))

    def _select_from(self, groups: list[Plane], position: Position, limit: int, bytes_max: float) -> QueryPage:
        query, after, shown = position.query, position.after, position.shown
        total = sum(group.count(query.created, query.updated) for group in groups)
        runs = [group.walk(query.by, query.descending, query.created, query.updated, after) for group in groups]
        keys: Iterator[SortKey] = runs[0] if len(runs) == 1 else heapq.merge(*runs, reverse=query.descending)
        if shown:
            keys = (key for key in keys if digest(key.id) not in shown)
        return cut(self._tasks.all_of(islice(keys, limit + 1)), total, limit, bytes_max)

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


def _noted_bytes(task_id: str) -> int:
    return text_bytes(task_id) + _NOTED_BYTES


def size_of(task: Task) -> int:
    """Bytes of memory that a task takes."""
    created, updated = task.created, task.updated
    size_bytes = len(task.raw) + text_bytes(task.id) + TASK_OVERHEAD_BYTES + _beyond(created.at)
    return size_bytes - _KEY_BYTES if updated is created else size_bytes + _beyond(updated.at)


def _beyond(at: Instant) -> int:
    """What an instant takes beyond a usual one."""
    if at == UNKNOWN:
        return -_INT_BYTES  # one for all
    if isinstance(at, Fraction):
        return _FRACTION_BYTES + (at.numerator.bit_length() + at.denominator.bit_length()) // 7 - _INT_BYTES
    return 0
