"""An index in a process of its own, so that its memory can be told from the rest, and its neighbours' from it.

    queries     microseconds of random queries of each kind, of taking in a page of 100 tasks, of changing 100
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

from gateway.core.index import TASK_OVERHEAD_BYTES, Index
from gateway.core.task import Task
from gateway.core.task import parse as parse_task
from gateway.demo.simulation import history
from tests.bench import child, proc
from tests.bench.questions import KINDS, Question, questions

PAGE: Final = 100
PAGES_TIMED: Final = 50
REPEATS: Final = 2
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
    index = Index()
    index.default_method = "tools/call"
    for page in pages(count, seed, until):
        for task in parse(page):
            index.put(task)
    return index


def queries(count: int) -> dict[str, Any]:
    """How long queries and pages take on `count` tasks."""
    until = datetime.now(UTC)
    index = filled(count, until)
    gc.collect()
    kinds = {}
    for kind in KINDS:
        times_us = [_query_us(index, question) for question in questions(kind, until)]
        kinds[kind] = {"median_us": statistics.median(times_us), "max_us": max(times_us)}
    return {"kinds": kinds, "pages": _pages(index, until)}


def _query_us(index: Index, question: Question) -> float:
    return min(_us(index.select, question.query, question.after, PAGE) for _ in range(REPEATS))


def _pages(index: Index, until: datetime) -> dict[str, dict[str, float]]:
    """Times of `PAGES_TIMED` pages: read from bytes, put into the index, put again with every task changed."""
    read, put, change = [], [], []
    for page in list(pages(PAGE * PAGES_TIMED, SEED + 1, until)):
        read.append(_us(parse, page))
        new, changed = parse(page), parse(page.replace(b'"pollInterval"', b'"changed":true,"pollInterval"'))
        put.append(_us(_put, index, new))
        change.append(_us(_put, index, changed))
        for task in new:
            index.remove(task.id)
    times = {"read": read, "put": put, "change": change}
    return {name: {"median_us": statistics.median(us), "max_us": max(us)} for name, us in times.items()}


def _put(index: Index, tasks: list[Task]) -> None:
    for task in tasks:
        index.put(task)


def _us(work: Callable[..., object], *arguments: object) -> float:
    began_ns = thread_time_ns()
    work(*arguments)
    return (thread_time_ns() - began_ns) / 1000


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
    return memory(command["tasks"], command["copies"], command["traced"])


if __name__ == "__main__":
    child.run(child.serve({}, answer))
