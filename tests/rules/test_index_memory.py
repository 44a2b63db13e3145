"""What an index counts is what it takes, within a tenth, whatever strings servers and clients choose (DESIGN 7.7)."""

import gc
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import msgspec
import pytest

from gateway.mcp import task
from gateway.mcp.task import Moment, Stamp, Task
from gateway.query import cursor
from gateway.query.criteria import Query
from gateway.query.cursor import Position
from gateway.store import replicas
from gateway.tasks.index import METHODS_MAX, Index
from tests.rules import plain

COUNT: Final = 1000
ALPHABETS: Final = {"ASCII": "abc", "Latin-1": "aéü", "BMP": "aé語", "astral": "a語😀"}
_raw = msgspec.json.Decoder(msgspec.Raw)


@dataclass
class Shape:
    """How the tasks of one index look. Lengths are in characters."""

    alphabet: str
    id_chars: int
    status: Callable[[int], str]
    padding_chars: int
    digits: int  # of a second's fraction
    same: bool  # the last update is the creation
    method: Callable[[int], str | None]
    readable: bool
    ttl: Callable[[int], float | None]
    polled: bool  # by clients, one by one


def a_shape(seed: int) -> Shape:
    """A random shape. The first ones have each alphabet."""
    rng = random.Random(seed)
    many = rng.random() < 0.3
    return Shape(
        alphabet=list(ALPHABETS.values())[seed % 4],
        id_chars=rng.choice((5, 36, 200, 1000)),
        status=rng.choice((lambda n: "completed", lambda n: task.STATUSES[n % 5], lambda n: f"status-{n}" * 3)),
        padding_chars=rng.choice((0, 0, 100, 3000)),
        digits=rng.choice((0, 3, 6, 9, 100)),
        same=rng.random() < 0.5,
        method=rng.choice((lambda n: None, lambda n: f"m/{n if many else n % 3}", lambda n: f"m{n}" * 30)),
        readable=rng.random() < 0.9,
        ttl=rng.choice((lambda n: None, lambda n: 60_000.0)),
        polled=seed % 3 == 0,
    )


def reports(shape: Shape, seed: int) -> Iterator[tuple[bytes, str | None]]:
    """Tasks of a shape in any order, with their methods; a tenth of them twice."""
    rng = random.Random(seed)
    for number in rng.sample(range(COUNT), COUNT) + rng.sample(range(COUNT), COUNT // 10):
        digits = "." + "1" * (shape.digits - 1) + "7" if shape.digits else ""
        created = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}{digits}Z"
        updated = created if shape.same else created.replace("2026-01-01", "2026-01-02")
        times = (created, updated) if shape.readable else ("yesterday", created)
        rng.seed(f"{seed} {number}")
        rest = "".join(rng.choices(shape.alphabet, k=max(0, shape.id_chars - 5)))
        members = {"taskId": f"{number:05}{rest}", "status": shape.status(number), "ttl": shape.ttl(number)}
        members |= {"createdAt": times[0], "lastUpdatedAt": times[1], "x": "x" * shape.padding_chars}
        method = shape.method(number)
        yield json.dumps(members, ensure_ascii=False).encode(), None if method is None else method + ""


def read(raw: bytes, method: str | None) -> Task:
    """A task as a page of a crawl shows it, with strings of its own."""
    return task.parse(_raw.decode(raw), None if method is None else json.loads(json.dumps(method)))


def used(index: Index) -> None:
    """What else is done with the strings of an index: cursors, what replicas are told, walks, look-ups."""
    position = Position(Query(status=frozenset({"working", "completed"})))
    while (page := index.select(position, 50)).more:
        position = cursor.following(position, page.tasks)
        assert cursor.decode(cursor.encode(position)) == position
    for tasks in index.parts():
        assert len(replicas.entries_of(tasks)) <= len(tasks)
        assert [index.get(each.id) for each in tasks] == tasks


@pytest.mark.parametrize("seed", range(12))
def test_an_index_takes_what_it_counts(seed: int) -> None:
    """Characters beyond ASCII were counted at a fifth, and statuses and methods not at all."""
    shape = a_shape(seed)
    drawn = list(reports(shape, seed))
    used(filled(drawn[:100], shape.polled))  # what is allocated once
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = filled(drawn, shape.polled)
        used(index)
        gc.collect()
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.9 * took <= index.size_bytes <= 1.1 * took, shape
    for task_id in list(index):
        index.remove(task_id)
    assert index.size_bytes == 0


def filled(drawn: list[tuple[bytes, str | None]], polled: bool) -> Index:
    index, order = Index(), count(1000)
    for report in drawn:
        index.put(read(*report))
    for found in filter(None, map(index.get, index if polled else ())):
        asked = Moment(next(order), next(order) / 7)
        index.stamp(found, Stamp(asked, found.told.asked, next(order), is_own=True))
    return index


@pytest.mark.parametrize("told_first", [False, True])
def test_statuses_and_methods_that_others_choose_make_few_groups(told_first: bool) -> None:
    """A query of 20,000 tasks with 20,000 statuses took 300 ms."""
    index = Index()
    for number in range(1000):
        method = f"method/{number}" if number % 2 else "x" * 51
        if told_first:
            index.note_method(f"t-{number}", method)
        raw = plain.raw_task(f"t-{number}", f"status-{number}", f"2026-01-01T00:{number % 60:02}:00Z", None)
        index.put(task.parse(raw, None if told_first else method))
    assert len(index._groups) <= METHODS_MAX + 1
    assert index.select(Position(Query()), 1).total == 1000
    assert index.select(Position(Query(status=frozenset(task.STATUSES))), 1).total == 0
    # The first ones are known; the others are tasks of unknown method (DESIGN 5.3).
    known = index.select(Position(Query(methods=frozenset({"method/1"}))), 1000)
    assert known.total == 1000 - METHODS_MAX + 1
    assert index.method_of("t-1") == "method/1"
    assert index.method_of("t-0") is index.method_of("t-999") is None
