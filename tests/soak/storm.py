"""A storm: many clients at once, each exchange of a random kind, faults on both sides, and no pause.

Now and then the upstream is away, with all its connections. Every request and response has the number of its exchange.
What the upstream answers whole must arrive whole at a client that has not left. In the end nothing is left.
"""

import asyncio
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from tests.relay.http1 import Malformed
from tests.soak import hostile, plan
from tests.soak.census import Census, InProcess, Process
from tests.soak.plan import Conversation, Departure
from tests.soak.play import converse, forget_sessions, settled
from tests.soak.upstream import Upstream

CLIENTS: Final = 64
EXCHANGES_MAX: Final = 5  # on a connection
DEATHS: Final = 0.12
DEPARTURES: Final = 0.15
HALF: Final = 0.3  # of departures
SLOW: Final = 0.1
BEHIND: Final = 0.1
BEHIND_LAST: Final = 0.5
GROWTH_BYTES_MAX: Final = 16_000_000
EXAMPLES: Final = 3  # of each kind of finding
OUTAGE_EVERY: Final = 400  # exchanges
AWAY_S: Final = 0.02
_KINDS: Final = {**plan.KINDS, **hostile.KINDS}
_SMALL: Final = tuple(kind for kind in _KINDS if kind not in ("upload", "download"))
_NAMES: Final = (*_KINDS, *_SMALL, *_SMALL, *["filtered"] * 8)
# What a finding is called, by what it says; the first that fits.
_CALLED: Final = {
    "foreign": r"foreign|no exchange in this round",
    "whole, and lost": r"and lost|no response",
    "a cut that looks whole": r"ended cleanly|came whole|came as another",
    "whole and wrong": r"complete and wrong|another head|another list|no list|edited|capability|502 that says",
    "no HTTP": r"[Mm]alformed", "not in time": r"not within|Timeout", "sent twice": r"came twice",
}  # fmt: skip


@dataclass
class Report:
    exchanges: int = 0
    seconds: float = 0.0
    promised: int = 0
    grown_bytes: int = 0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.exchanges / self.seconds
        lines = [
            f"{self.exchanges} exchanges in {self.seconds:.1f} s, {rate:.0f}/s; {self.promised} answered whole; "
            f"memory grown by {self.grown_bytes / 1e6:.1f} MB; {len(self.findings)} findings"
        ]
        kinds = Counter(map(called, self.findings))
        for kind, count in kinds.most_common():
            lines.append(f"{count} {kind}:")
            shown = [finding for finding in self.findings if called(finding) == kind][:EXAMPLES]
            lines += [f"  {finding[:1200]}" for finding in shown]
        return "\n".join(lines)


def called(finding: str) -> str:
    return next((name for name, words in _CALLED.items() if re.search(words, finding)), "other")


def draw(seed: int, departures: float = DEPARTURES) -> Conversation:
    source = random.Random(seed)
    numbers = itertools.count(seed * 100)
    exchanges = [
        plan.exchange(source, next(numbers), _NAMES, DEATHS, _KINDS) for _ in range(source.randint(1, EXCHANGES_MAX))
    ]
    for one in exchanges:
        if one.is_hostile:
            one.death = None
    made = plan.conversation(source, exchanges, departures)
    if made.departure is not None and source.random() < HALF:
        made.departure = Departure(made.departure.at, made.departure.share, "fin", half=True)
    made.is_slow = source.random() < SLOW
    is_last = made.exchanges[-1].is_closing  # then what is behind it is not answered, but where it failed
    if made.departure is None and source.random() < (BEHIND_LAST if is_last else BEHIND):
        made.behind = hostile.WHOLE if is_last else source.choice(hostile.BEHIND)
    return made


async def blow(
    gate: InProcess | Process,
    upstream: Upstream,
    seed: int,
    exchanges: int,
    warm_up: int,
    draw: Callable[[int], Conversation] = draw,
) -> Report:
    """A storm behind another one that warms up. What is held then and was not before is among the findings."""
    storm = Storm(gate.port, upstream, gate.left, draw)
    warming = await storm.play(seed, warm_up)
    before = await calm(gate, upstream)
    report = await storm.play(seed + warm_up, exchanges)
    after = await calm(gate, upstream)
    try:
        after.check(before, GROWTH_BYTES_MAX)
    except AssertionError as more:
        report.findings.append(f"left: {more}")
    report.findings += warming.findings
    report.grown_bytes = after.memory_bytes - before.memory_bytes
    return report


async def calm(gate: InProcess | Process, upstream: Upstream) -> Census:
    """What is held when the connections that a storm may have spoilt are gone, and the clients end their sessions."""
    await upstream.deserted()
    await forget_sessions(gate.port, upstream)
    return await gate.count()


@dataclass
class Storm:
    """Plays conversations, `CLIENTS` at once, until so many exchanges were asked for."""

    _port: int
    _upstream: Upstream
    _left: Callable[[], Awaitable[str]]
    _draw: Callable[[int], Conversation] = draw

    async def play(self, seed: int, exchanges: int) -> Report:
        report, began_at = Report(), time.monotonic()
        seeds = itertools.count(seed)
        self._upstream.random = random.Random(seed)
        self._upstream.faults.clear()

        async def client() -> None:
            while report.exchanges < exchanges:
                await self._converse(next(seeds), report)

        await asyncio.gather(*(client() for _ in range(CLIENTS)), self._outages(report, exchanges))
        report.seconds = time.monotonic() - began_at
        report.findings += self._upstream.faults
        report.findings += await settled(self._upstream, self._left)
        return report

    async def _outages(self, report: Report, exchanges: int) -> None:
        """In a storm of all kinds, have the upstream go away now and then, and come back."""
        for at in range(OUTAGE_EVERY // 2, exchanges - CLIENTS, OUTAGE_EVERY) if self._draw is draw else ():
            while report.exchanges < at:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(AWAY_S)
            self._upstream.go_down("rst")
            await asyncio.sleep(AWAY_S)
            await self._upstream.start()

    async def _converse(self, seed: int, report: Report) -> None:
        conversation = self._draw(seed)
        report.exchanges += len(conversation.exchanges)
        self._upstream.expect(conversation.exchanges)
        try:
            found = await converse(self._port, conversation, self._upstream)
        except (AssertionError, OSError, Malformed) as error:
            found = [f"{type(error).__name__}: {error}"]
        report.promised += sum(e.number in self._upstream.promised for e in conversation.exchanges)
        self._upstream.forget(conversation.exchanges)
        kinds = ", ".join(e.kind for e in conversation.exchanges)
        how = f"{conversation.departure}, behind {conversation.behind!r}, slow {conversation.is_slow}"
        report.findings += [f"seed {seed} ({kinds}; {how}): {one}" for one in found]
