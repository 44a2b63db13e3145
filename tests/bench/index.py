"""Section `index`: what a page out of many tasks costs, and what an index of them takes.

How: random queries of five kinds (questions.py), 200 of each, for pages of 100 tasks, straight from the index in a
process of its own (index_worker.py). Each query is asked twice and the better time counts, so that the slowest is the
slowest query and not the moment when the machine was busy elsewhere. Rates are in index_rates.py.
"""

from typing import Any, Final

from tests.bench import index_rates, proc
from tests.bench.index_worker import PAGE, REPEATS
from tests.bench.options import Options
from tests.bench.processes import child
from tests.bench.questions import KINDS, PER_KIND
from tests.bench.report import Column, Goal, Table, progress, ratio

SIZES: Final = (1_000, 10_000, 50_000)
LARGE: Final = SIZES[-1]  # index.tasks_max, unless it is configured
TASKS_GROWN_MIN: Final = 50_000  # fewer are measured in several indexes: memory grows by arenas of 1 MiB
BYTES_GOAL: Final = 700
PAGE_US_GOAL: Final = 1_000
QUERY_US_GOAL: Final = 20_000
HOLD_US_GOAL: Final = 20_000


async def run(options: Options) -> list[Table]:
    straight, memory = {}, {}
    for count in SIZES:
        progress(f"index: {count:,} tasks, straight")
        straight[count] = await _ask("queries", tasks=count)
        progress(f"index: {count:,} tasks, memory")
        memory[count] = await _ask("memory", tasks=count, copies=max(1, TASKS_GROWN_MIN // count))
    return [_queries(straight), await index_rates.run(options), _pages(straight), _memory(memory)]


async def _ask(do: str, **arguments: Any) -> dict[str, Any]:
    async with child(proc.cores().measured, "index_worker") as worker:
        return await worker.ask(do, **arguments)


def _queries(straight: dict[int, Any]) -> Table:
    title = f"A page of {PAGE} tasks straight from the index, {PER_KIND} random queries of each kind"
    table = Table(title, "tasks, criteria", [Column("median us"), Column("slowest us")])
    for count, figures in straight.items():
        for kind in KINDS:
            table.add(f"{count:>9,}  {kind}", figures["kinds"][kind]["median_us"], figures["kinds"][kind]["max_us"])
        if count == LARGE:
            slowest_us = max(figures["kinds"][kind]["max_us"] for kind in KINDS)
            table.goals.append(Goal(f"slowest query of {count:,} tasks", QUERY_US_GOAL, "us", slowest_us))
    table.notes.append(f"CPU time, the better of {REPEATS}; every second query goes on behind a cursor")
    return table


def _pages(straight: dict[int, Any]) -> Table:
    table = Table(
        f"us to take in a page of {PAGE} tasks, as a crawl does at its end",
        "tasks in the index",
        [Column("read it, median"), Column("put new tasks, median"), Column("slowest")],
    )
    for count, figures in straight.items():
        read, put = (figures["pages"][what] for what in ("read", "put"))
        table.add(f"{count:,}", read["median_us"], put["median_us"], put["max_us"])
        if count == LARGE:
            page_us = read["median_us"] + put["median_us"]
            table.goals.append(Goal("to index a page, read included", PAGE_US_GOAL, "us", page_us))
            table.goals.append(Goal("slowest turn that takes in a page", HOLD_US_GOAL, "us", put["max_us"]))
    return table


def _memory(memory: dict[int, Any]) -> Table:
    table = Table(
        "Bytes of memory per indexed task",
        "tasks in the index",
        [
            Column("process growth"),
            Column("the index's estimate"),
            Column("growth / estimate", 2),
            Column("raw JSON and id"),
            Column("overhead measured"),
            Column("TASK_OVERHEAD_BYTES"),
        ],
    )
    for count, one in memory.items():
        grown, estimated, own = one["bytes"], one["estimated_bytes"], one["own_bytes"]
        rest = (own, grown - own, one["estimated_overhead_bytes"])
        table.add(f"{count:,}", grown, estimated, ratio(grown, estimated), *rest)
        table.goals.append(Goal(f"memory per task of {count:,}", BYTES_GOAL, "bytes", grown))
    table.notes.append(f"small indexes are measured several at a time, {TASKS_GROWN_MIN:,} tasks in all")
    return table
