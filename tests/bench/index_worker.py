"""An index in a process of its own, so that its memory can be told from the rest, and its neighbours' from it.

    queries     microseconds of random queries of each kind, and of taking in a page as a crawl does
    memory      bytes per task: growth of the resident set, and the index's estimate

Tasks come out of the bytes of a `tasks/list` result, a page of 100 at a time. Times are CPU time of the thread, garbage
collection included. Of a query the better of `REPEATS` counts, when what it reads is in the processor's cache.
"""

import gc
import itertools
import os
import random
import statistics
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from time import thread_time_ns
from typing import Any, Final

import msgspec
import orjson

from gateway.demo.legacy import history
from gateway.mcp.task import Task
from gateway.mcp.task import parse as parse_task
from gateway.query.cursor import Position
from gateway.tasks.index import TASK_OVERHEAD_BYTES, Index
from tests.bench import child, proc
from tests.bench.questions import KINDS, Question, questions

PAGE: Final = 100
PAGES_TIMED: Final = 50
REPEATS: Final = 2
_WARM_UP_TASKS: Final = 1_000
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


def put_all(index: Index, tasks: list[Task]) -> None:
    for task in tasks:
        index.put(task)


def filled(count: int, until: datetime, seed: int = SEED) -> Index:
    index = _empty()
    for page in pages(count, seed, until):
        put_all(index, parse(page))
    return index


def _empty() -> Index:
    index = Index()
    index.default_method = "tools/call"
    return index


def queries(count: int) -> dict[str, Any]:
    until = datetime.now(UTC)
    index, times_us = _crawled(count, until)
    gc.collect()
    kinds = {kind: _summary([_query_us(index, question) for question in questions(kind, until)]) for kind in KINDS}
    return {"kinds": kinds, "pages": {name: _summary(us) for name, us in times_us.items()}}


def _crawled(count: int, until: datetime) -> tuple[Index, dict[str, list[float]]]:
    """A filled index, and what reading and putting each of its last pages took."""
    index = _empty()
    read, put = [], []
    for page in pages(count, SEED, until):
        read.append(_us(parse, page))
        put.append(_us(put_all, index, parse(page)))
    return index, {"read": read[-PAGES_TIMED:], "put": put[-PAGES_TIMED:]}


def _summary(times_us: list[float]) -> dict[str, float]:
    return {"median_us": statistics.median(times_us), "max_us": max(times_us)}


def _query_us(index: Index, question: Question) -> float:
    return min(_us(index.select, Position(question.query, question.after), PAGE) for _ in range(REPEATS))


def _us(work: Callable[..., object], *arguments: object) -> float:
    began_ns = thread_time_ns()
    work(*arguments)
    return (thread_time_ns() - began_ns) / 1000


def memory(count: int, copies: int) -> dict[str, float]:
    until = datetime.now(UTC)
    warm = filled(_WARM_UP_TASKS, until)  # what is loaded and allocated once
    gc.collect()
    before = proc.rss_bytes(os.getpid())
    indexes = [filled(count, until, SEED + number) for number in range(copies)]
    gc.collect()
    used = proc.rss_bytes(os.getpid()) - before
    own = sum(len(task.raw) + len(task.id) for index in indexes for i in index if (task := index.get(i)) is not None)
    tasks = count * copies
    return {
        "bytes": used / tasks,
        "own_bytes": own / tasks,
        "estimated_bytes": sum(index.size_bytes for index in indexes) / tasks,
        "estimated_overhead_bytes": TASK_OVERHEAD_BYTES,
        "warm_up_tasks": len(warm),
    }


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    """One measurement."""
    if command["do"] == "queries":
        return queries(command["tasks"])
    return memory(command["tasks"], command["copies"])


if __name__ == "__main__":
    child.run(child.serve({}, answer))
