"""Section `hostile`: what the worst streams cost, and what the gateway holds for those that ask for all they may.

How: each stream of attacks.py goes through a gateway with all guards, on a connection of its own, and one that is quick
again and again. Its CPU time stands beside that of a plain body of as many bytes. A stream that takes more than 8 s is
left there. How long the loop was held is measured by a probe inside (probed.py) in CPU time, which other processes do
not lengthen; a ping every 2 ms on another connection sees it from outside, which they do.

Then 500 connections hold as much as they are allowed to, of one kind after the other, each before a gateway of its own;
memory is the growth over the same 500 connections when they hold nothing. Load and upstream move 2 GB meanwhile, and
delay every ping.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson

from gateway.config import Limits
from tests.bench import proc
from tests.bench.attacks import ATTACKS, MIB, NAMING, Attack, Side
from tests.bench.processes import BenchFailed, Child, child, free_address
from tests.bench.report import Column, Goal, Options, Table, progress

RATIO_GOAL: Final = 20
HELD_MS_GOAL: Final = 20
PING_MS_GOAL: Final = 50
ENOUGH_S: Final = 0.4  # of repetitions of one stream
IDLE_S: Final = 1.0
CALM_S: Final = 30.0
CALM_MS: Final = 10.0
PLAIN_BYTES_MIN: Final = 1024
HOLDERS: Final = 500
FILL_S: Final = 25.0
HOLD_S: Final = 4.0
SAMPLE_S: Final = 0.25
HEAD_BYTES: Final = 64_000
# All guards, with limits that no stream reaches: what is measured is the reading.
GUARDS: Final = {
    "own_tasks": True,
    "task_operations_per_second": 1e6,
    "task_operations_burst": 1_000_000,
    "task_ttl_max": "1h",
}
# The kinds of holders, as the load knows them, of how many bytes each is, and how many; of one there is more than fits.
HOLDING: Final = {
    "bodies that lack a byte": ("body", Limits().inspected_body_bytes_max - 1, HOLDERS),
    "pipelined requests": ("pipelined", MIB, HOLDERS),
    "responses that are not read": ("unread", 8 * MIB, HOLDERS),
    "events that do not end": ("event", Limits().inspected_event_bytes_max - 1, HOLDERS),
    "messages that lack a byte": ("result", Limits().inspected_body_bytes_max - 1, HOLDERS),
    "heads that lack a byte, in tiny fields": ("head", HEAD_BYTES, 1300),
    "heads that lack a byte, in 250 fields": ("fields", HEAD_BYTES, 1300),
    "heads with an open stream behind": ("streamed", HEAD_BYTES, 1300),
}


@dataclass
class Rig:
    """The processes, the time of a ping when nothing else goes on, and the plain bodies so far."""

    gate: Child
    attacker: Child
    pinger: Child
    idle_ms: float = 0.0
    plain: dict[tuple[Side, int], float] = field(default_factory=dict)  # CPU seconds for each byte, by size


@asynccontextmanager
async def _rig(upstream: Child, calm: Child, guards: dict[str, Any] | None = None) -> AsyncIterator[Rig]:
    """A gateway in front of the hostile upstream and a calm one, with a probe in it, and its clients."""
    config = {
        "listen": free_address(),
        "admin": {"listen": free_address()},
        "log": {"level": "error"},
        "index": {"max_age": "1h"},
        "guards": guards or {},
        "upstreams": [
            {"name": "hostile", "url": upstream.url},
            {"name": "calm", "url": calm.url, "match": {"prefix": "/ping"}},
        ],
    }
    with TemporaryDirectory(prefix="taskgate-bench-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_bytes(orjson.dumps(config))  # JSON is YAML too
        async with (
            child("probed", str(path), is_measured=True) as gate,
            child("load") as attacker,
            child("load") as pinger,
        ):
            rig = Rig(gate, attacker, pinger)
            await pinger.ask("ping", url=gate.url)
            await asyncio.sleep(IDLE_S)
            rig.idle_ms = (await pinger.ask("pinged"))["median_ms"]
            yield rig


async def _calm(rig: Rig) -> None:
    """Return when pings are quick: the work of an abandoned attack is over."""
    deadline = time.monotonic() + CALM_S
    while time.monotonic() < deadline:
        await rig.pinger.ask("ping", url=rig.gate.url)
        await asyncio.sleep(0.05)
        if (await rig.pinger.ask("pinged"))["slowest_ms"] < rig.idle_ms + CALM_MS:
            return


async def run(options: Options) -> list[Table]:
    async with child("upstream") as upstream, child("upstream") as calm:
        async with _rig(upstream, calm, GUARDS) as rig:
            streams = await _streams(rig, upstream)
        return [streams, await _holders(upstream, calm)]


# ---- streams ----


@dataclass(frozen=True)
class Cost:
    """What one stream has cost. `how` it ended: whole, cut, or too long; perhaps refused."""

    bytes: int
    cpu_s: float
    held_ms: float
    how: str


async def _cost(rig: Rig, attack: Attack, number: int) -> Cost:
    await rig.gate.ask("held")
    cpu_s, passed_bytes, done = await _passed(rig, attack.side, number=number)
    held_ms = (await rig.gate.ask("held"))["held_ms"]
    if done["how"] == "whole":
        cpu_s, passed_bytes = await _repeated(rig, attack.side, number=number)
    return Cost(passed_bytes, cpu_s, held_ms, f"{done['how']}, refused" if done["refused"] else done["how"])


async def _passed(rig: Rig, side: Side, **stream: Any) -> tuple[float, int, dict[str, Any]]:
    before_s = proc.cpu_seconds(rig.gate.pid)
    done = await rig.attacker.ask("one", url=rig.gate.url, **stream)
    return proc.cpu_seconds(rig.gate.pid) - before_s, done["sent" if side == "up" else "received"], done


async def _repeated(rig: Rig, side: Side, **stream: Any) -> tuple[float, int]:
    """The mean of the CPU time and of the bytes of one stream, passed again and again."""
    cpu_s, passed_bytes, count, began_at = 0.0, 0, 0, time.monotonic()
    while not count or time.monotonic() - began_at < ENOUGH_S:
        one_s, one_bytes, done = await _passed(rig, side, **stream)
        if done["how"] != "whole":
            raise BenchFailed(f"{stream}, {side}: {done['how']}")
        cpu_s, passed_bytes, count = cpu_s + one_s, passed_bytes + one_bytes, count + 1
    return cpu_s / count, passed_bytes // count


async def _plain(rig: Rig, side: Side, size_bytes: int) -> float:
    rounded = max(PLAIN_BYTES_MIN, 2 ** round(math.log2(size_bytes)))
    if (side, rounded) not in rig.plain:
        body = {"type": "application/octet-stream"} if side == "up" else {"path": "/bytes"}
        cpu_s, _ = await _repeated(rig, side, size=rounded, **body)
        rig.plain[side, rounded] = cpu_s / rounded
    return rig.plain[side, rounded]


async def _streams(rig: Rig, upstream: Child) -> Table:
    table = Table(
        "Hostile streams, all guards: CPU time beside a plain body of as many bytes, and the longest hold of the loop",
        "stream",
        [Column("MiB", 2), Column("x plain", 1), Column("held ms", 1), Column("us a unit", 1), Column("ended")],
    )
    worst_ratio = worst_held_ms = 0.0
    for number, attack in enumerate(ATTACKS):
        progress(f"hostile: {attack.name}")
        for one in (upstream, rig.attacker):
            await one.ask("make", number=number)
        cost = await _cost(rig, attack, number)
        await _calm(rig)
        size_bytes = max(cost.bytes, 0 if cost.how == "whole" else len(attack.make()))
        ratio = cost.cpu_s / size_bytes / await _plain(rig, attack.side, size_bytes)
        table.add(attack.name, cost.bytes / MIB, ratio, cost.held_ms, _unit_us(attack, cost), cost.how)
        worst_ratio = max(worst_ratio, 0 if attack.name == NAMING else ratio)
        worst_held_ms = max(worst_held_ms, cost.held_ms)
    table.goals.append(Goal("CPU beside a plain body, the worst", RATIO_GOAL, "x", worst_ratio))
    table.goals.append(Goal("hold of the loop, the longest", HELD_MS_GOAL, "ms", worst_held_ms))
    table.notes.append("a unit: a request, head, chunk, segment or event")
    return table


def _unit_us(attack: Attack, cost: Cost) -> float | None:
    """What a request, an event or a chunk costs of an attack that consists of these."""
    if not attack.units or not cost.bytes:
        return None
    return cost.cpu_s * 1e6 / (attack.units * min(1.0, cost.bytes / len(attack.make())))


# ---- holders ----


async def _holders(upstream: Child, calm: Child) -> Table:
    limit_mb = Limits().held_bytes_max // 10**6
    columns = [Column("grown MB", 1), Column("held ms", 1), Column("median ping ms", 2), Column("slowest ping ms", 1)]
    table = Table(
        f"{HOLDERS} connections (heads: 1,300) that hold as much as they may; held_bytes_max is {limit_mb} MB",
        "what they hold",
        [*columns, Column("refused or cut")],
    )
    for name, (kind, size_bytes, count) in HOLDING.items():
        progress(f"hostile: {count} connections: {name}")
        async with _rig(upstream, calm) as rig:
            held = await _hold(rig, kind, size_bytes, count)
        table.add(name, *(held[figure] for figure in ("grown_mb", "held_ms", "median_ms", "slowest_ms", "refused")))
        table.goals.append(Goal(f"a ping, {name}", PING_MS_GOAL, "ms", held["slowest_ms"]))
        table.goals.append(Goal(f"hold of the loop, {name}", PING_MS_GOAL, "ms", held["held_ms"]))
        table.goals.append(Goal(f"memory over the base, {name}", limit_mb, "MB", held["grown_mb"]))
    table.notes.append("grown: the largest resident set over that with as many idle connections, each answered a ping")
    return table


async def _hold(rig: Rig, kind: str, size_bytes: int, count: int) -> dict[str, Any]:
    """Memory before and while they hold, and how long pings take meanwhile."""
    await rig.attacker.ask("hold", url=rig.gate.url, count=count, streams=False)
    await asyncio.sleep(SAMPLE_S)
    base_bytes = largest_bytes = proc.rss_bytes(rig.gate.pid)
    await rig.gate.ask("held")
    await rig.pinger.ask("ping", url=rig.gate.url)
    await rig.attacker.ask("fill", kind=kind, bytes=size_bytes)
    began_at = grew_at = time.monotonic()
    while time.monotonic() < min(began_at + FILL_S, grew_at + HOLD_S):
        await asyncio.sleep(SAMPLE_S)
        now_bytes = proc.rss_bytes(rig.gate.pid)
        if now_bytes > largest_bytes + MIB:
            grew_at, largest_bytes = time.monotonic(), now_bytes
    pings, held = await rig.pinger.ask("pinged"), await rig.gate.ask("held")
    released = await rig.attacker.ask("release")
    return {"grown_mb": (largest_bytes - base_bytes) / 1e6, **pings, **held, **released}
