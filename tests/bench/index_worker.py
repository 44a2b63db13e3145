"""An index in a process of its own, so that its memory can be told from the rest, and its neighbours' from it.

    queries     microseconds of random queries of each kind, of taking in a page as a crawl does, of changing its tasks
    unlisted    microseconds of a query's plan, and of a crawl's end, where no list shows any task and ten are live
    memory      bytes per task: growth of the resident set, or what tracemalloc saw allocated; and the index's estimate

Tasks come as they do in the gateway: out of the bytes of a `tasks/list` result, a page of 100 at a time. Times are CPU
time of the thread, garbage collection included: the index never waits, so that is what it takes on a machine that has
nothing else to do. Of a query the better of `REPEATS` counts, when what it reads is in the processor's cache.
"""

import gc
import itertools
import os
import random
import statistics
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from time import thread_time_ns
from typing import Any, Final

import msgspec
import orjson

from gateway.demo.legacy import history, timestamp
from gateway.mcp.observe import Observation
from gateway.mcp.task import Task
from gateway.mcp.task import parse as parse_task
from gateway.tasks import freshness
from gateway.tasks.criteria import Query
from gateway.tasks.cursor import Position
from gateway.tasks.freshness import Ages
from gateway.tasks.index import TASK_OVERHEAD_BYTES, Index
from gateway.tasks.knowledge import Listing, Record
from tests.bench import child, proc
from tests.bench.questions import KINDS, Question, questions

PAGE: Final = 100
PAGES_TIMED: Final = 50
PLANS_TIMED: Final = 50
LIVE: Final = 10
REPEATS: Final = 2
LIVE_TASK: Final = {
    "status": "working", "createdAt": "2025-11-25T10:30:00Z", "lastUpdatedAt": "2025-11-25T10:30:00Z", "ttl": None
}  # fmt: skip
WARM_UP_TASKS: Final = 1_000
SEED: Final = 1904


def pages(count: int, seed: int, until: datetime) -> Iterator[bytes]:
    """The results of `tasks/list` that show a history of `count` tasks."""
    tasks = history(random.Random(seed), count, int(until.timestamp() * 1000))
    for _ in range(0, count, PAGE):
        some = list(itertools.islice(tasks, PAGE))
        yield orjson.dumps({"tasks": some})


class _Page(msgspec.Struct):
    tasks: list[msgspec.Raw]


_page = msgspec.json.Decoder(_Page)


def parse(page: bytes) -> list[Task]:
    """The tasks of a result, read as the gateway reads them."""
    return [parse_task(raw) for raw in _page.decode(page).tasks]


def filled(count: int, until: datetime, seed: int = SEED) -> Index:
    """An index of a history of `count` tasks."""
    index = _empty()
    for page in pages(count, seed, until):
        _put(index, parse(page))
    return index


def _empty() -> Index:
    index = Index()
    index.default_method = "tools/call"
    return index


def queries(count: int) -> dict[str, Any]:
    """How long queries and pages take on `count` tasks."""
    until = datetime.now(UTC)
    index, times_us, some = _crawled(count, until)
    gc.collect()
    kinds = {kind: _summary([_query_us(index, question) for question in questions(kind, until)]) for kind in KINDS}
    times_us["change"] = []
    for page in some:
        changed = parse(_changed(page, until))
        times_us["change"].append(_us(_put, index, changed))
    return {"kinds": kinds, "pages": {name: _summary(us) for name, us in times_us.items()}}


def _crawled(count: int, until: datetime) -> tuple[Index, dict[str, list[float]], list[bytes]]:
    """A filled index; what reading and putting each of its last pages took; some pages from all over it."""
    index = _empty()
    read, put, some = [], [], []
    page_count = -(-count // PAGE)
    for number, page in enumerate(pages(count, SEED, until)):
        read.append(_us(parse, page))
        put.append(_us(_put, index, parse(page)))
        if number % max(1, page_count // PAGES_TIMED) == 0:
            some.append(page)
    return index, {"read": read[-PAGES_TIMED:], "put": put[-PAGES_TIMED:]}, some


def _changed(page: bytes, at: datetime) -> bytes:
    """The same tasks, all of them updated."""
    tasks = orjson.loads(page)["tasks"]
    change = {"lastUpdatedAt": timestamp(int(at.timestamp() * 1000)), "statusMessage": "changed"}
    return orjson.dumps({"tasks": [{**task, **change} for task in tasks]})


def _summary(times_us: list[float]) -> dict[str, float]:
    return {"median_us": statistics.median(times_us), "max_us": max(times_us)}


def _query_us(index: Index, question: Question) -> float:
    return min(_us(index.select, Position(question.query, question.after), PAGE) for _ in range(REPEATS))


def _put(index: Index, tasks: list[Task]) -> None:
    index.put_all(tasks)


def _us(work: Callable[..., object], *arguments: object) -> float:
    began_ns = thread_time_ns()
    work(*arguments)
    return (thread_time_ns() - began_ns) / 1000


def unlisted(count: int) -> dict[str, float]:
    """What a query costs before it comes to the index, and a crawl's end, where an empty list is all that it saw."""
    record = Record()
    for page in pages(count, SEED, datetime.now(UTC)):
        done = [task for task in parse(page) if task.is_terminal]
        record.take(Observation(tasks=done), 0.0, 0.0)
    live = [parse_task(orjson.dumps({**LIVE_TASK, "taskId": f"live-{number}"})) for number in range(LIVE)]
    record.take(Observation(tasks=live), 0.0, 0.0)

    def crawl(at: float) -> None:
        record.begin_crawl(at)
        list(record.unseen(at))
        record.known.end_crawl(at, at, 1, [None], Listing.NEITHER)
        record.known.unlisted_as_of = at  # as if all had been asked for

    crawls_us = [_us(crawl, float(at)) for at in range(1, PLANS_TIMED + 1)]

    def plan() -> None:
        asked = freshness.plan(record.known, record.index, Query(), PLANS_TIMED + 0.5, Ages(1.0, 3600.0))
        assert sorted(asked.tasks) == sorted(task.id for task in live), asked

    plans_us = [_us(plan) for _ in range(PLANS_TIMED)]
    return {"plan_us": statistics.median(plans_us), "crawled_us": statistics.median(crawls_us)}


def memory(count: int, copies: int, traced: bool) -> dict[str, float]:
    """Bytes per task of `copies` indexes of `count` tasks each."""
    until = datetime.now(UTC)
    warm = filled(WARM_UP_TASKS, until)  # what is loaded and allocated once
    gc.collect()
    if traced:
        tracemalloc.start()
    before = _used_bytes(traced)
    indexes = [filled(count, until, SEED + number) for number in range(copies)]
    gc.collect()
    used = _used_bytes(traced) - before
    own = sum(len(task.raw) + len(task.id) for index in indexes for i in index if (task := index.get(i)) is not None)
    tasks = count * copies
    return {
        "bytes": used / tasks,
        "own_bytes": own / tasks,
        "estimated_bytes": sum(index.size_bytes for index in indexes) / tasks,
        "estimated_overhead_bytes": TASK_OVERHEAD_BYTES,
        "warm_up_tasks": len(warm),
    }


def _used_bytes(traced: bool) -> int:
    return tracemalloc.get_traced_memory()[0] if traced else proc.rss_bytes(os.getpid())


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    """One measurement."""
    if command["do"] == "queries":
        return queries(command["tasks"])
    if command["do"] == "unlisted":
        return unlisted(command["tasks"])
    return memory(command["tasks"], command["copies"], command["traced"])


if __name__ == "__main__":
    child.run(child.serve({}, answer))
