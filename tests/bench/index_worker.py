"""An index in a process of its own, so that its memory can be told from the rest, and its neighbours' from it.

    queries     microseconds of random queries of each kind, and of taking in a page as a crawl does
    memory      bytes per task: growth of the resident set

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

from gateway.demo.legacy_server import history
from gateway.mcp.task import NO_STAMP, Task
from gateway.mcp.task import parse as parse_task
from gateway.query.cursor import Position
from gateway.tasks.index import Index
from gateway.tasks.task_entry import TaskEntry
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


def queries(count: int) -> dict[str, Any]:
    """Of each kind of query, and of reading and putting each of the last pages: the median, and the slowest."""
    until, index = datetime.now(UTC), _empty()
    read, put = list[float](), list[float]()
    for page in pages(count, SEED, until):
        read.append(_us(parse, page))
        put.append(_us(put_all, index, parse(page)))
    gc.collect()
    times_us = {kind: [_query_us(index, question) for question in questions(kind, until)] for kind in KINDS}
    times_us |= {"read it": read[-PAGES_TIMED:], "put new tasks": put[-PAGES_TIMED:]}
    return {name: {"median_us": statistics.median(us), "max_us": max(us)} for name, us in times_us.items()}


def put_all(index: Index, tasks: list[Task]) -> None:
    for task in tasks:
        index.set(entry := TaskEntry(*msgspec.structs.astuple(task)))
        index.stamp(entry, NO_STAMP, 1)


def _empty() -> Index:
    index = Index()
    index.default_method = "tools/call"
    return index


def _query_us(index: Index, question: Question) -> float:
    return min(_us(index.select, Position(question.query, question.after), PAGE) for _ in range(REPEATS))


def _us(work: Callable[..., object], *arguments: object) -> float:
    began_ns = thread_time_ns()
    work(*arguments)
    return (thread_time_ns() - began_ns) / 1000


def memory(count: int) -> dict[str, float]:
    until = datetime.now(UTC)
    indexes = [_empty(), _empty()]
    before = 0
    for index, tasks in zip(indexes, (_WARM_UP_TASKS, count), strict=True):  # first what is loaded and allocated once
        gc.collect()
        before = proc.rss_bytes(os.getpid())
        for page in pages(tasks, SEED, until):
            put_all(index, parse(page))
    gc.collect()
    return {"bytes": (proc.rss_bytes(os.getpid()) - before) / count}


async def answer(command: dict[str, Any]) -> dict[str, Any]:
    """One measurement."""
    return (queries if command["do"] == "queries" else memory)(command["tasks"])


if __name__ == "__main__":
    child.run(child.serve({}, answer))
