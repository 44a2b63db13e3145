"""Plays rows: one gateway, the upstream behind it, and victims before, beside and behind each row.

A row begins with two upstream connections in the pool, both used by victims, and ends with victims on the connections
that it used. After a fault all are closed, so that one row cannot harm the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from tests.attack.judge import Scene, judge_request, judge_response
from tests.attack.readers import read_responses
from tests.attack.rows import Outcome, Pieces, Request, Response
from tests.attack.upstream import Upstream
from tests.attack.victim import Victim
from tests.peer import Client

PATIENCE_S: Final = 3.0
BRIEFLY_S: Final = 0.02  # for bytes that perhaps nobody answers
POOLED_MIN: Final = 2
_GOES_ON: Final = (200, 403)  # answers behind which a connection may serve another request


class Stage:
    """Where rows are played. `authority`: what the gateway sends as `Host`."""

    def __init__(self, port: int, upstream: Upstream, authority: bytes) -> None:
        self._port = port
        self._upstream = upstream
        self._authority = authority
        self._numbers = count(1)
        self._clients: list[Client] = []
        self._victims: list[Victim] = []
        self._clean = False

    async def begin(self) -> None:
        self._upstream.open()

    # ---- rows ----

    async def request(self, row: Request, followed: bool = False, with_victims: bool = True) -> list[str]:
        """Play a row of the table of requests; `followed`: another request stands behind it on its own connection."""
        await self._begin()
        behind = self._victim() if followed else None
        answers = max(_answers(outcome, followed) for outcome in row.may)
        methods = [seen.method for seen in max((outcome.seen for outcome in row.may), key=len)] + [b"POST"] * 2

        must_end = not any(outcome.keeps for outcome in row.may)

        def whole(received: bytes) -> bool:
            finals = read_responses(received, methods).finals
            if must_end and finals and finals[-1].status not in _GOES_ON:
                return False
            return len(finals) >= answers

        pieces = (*row.sent, behind.request) if behind is not None else row.sent
        hostile, found = await self._play(pieces, row.then, whole, with_victims)
        return await self._end(found, hostile, partial(judge_request, row), behind)

    async def response(self, row: Response, with_victims: bool = True) -> list[str]:
        await self._begin()
        method = method_of(row.ask)
        self._upstream.hostile, self._upstream.early = (row.sent, row.then), row.early
        hostile, found = await self._play(row.ask, "open", _answered(method), with_victims)
        return await self._end(found, hostile, partial(judge_response, row, method))

    async def anything(self, sent: Pieces, answered: tuple[Pieces, str] | None = None) -> list[str]:
        """Play any bytes. Victims are untouched, and the upstream's reader reads all."""
        await self._begin()
        self._upstream.hostile = answered
        hostile, found = await self._play(sent, "open", _answered(method_of(sent)), briefly=True)
        return await self._end(found, hostile, lambda _: [])

    async def _play(
        self, sent: Pieces, then: str, whole: Callable[[bytes], bool], with_victims: bool = True, briefly: bool = False
    ) -> tuple[Client, list[str]]:
        """Send the hostile bytes with a victim beside them and two behind.

        Wait until what came is `whole` or the connection has ended; `briefly`: perhaps nobody answers, and the hostile
        client leaves.
        """
        found: list[str] = []
        beside = await self._beside() if with_victims else None
        hostile = await self._client()
        await hostile.play(sent, then)
        ended = await hostile.within(
            BRIEFLY_S if briefly else PATIENCE_S, lambda: hostile.end != "open" or whole(bytes(hostile.received))
        )
        if briefly:
            hostile.cut()
        elif not ended:
            found.append(f"nothing happened for {PATIENCE_S:g} s")
        await self._upstream.played()
        if beside is not None:
            found += await beside.released()
            found += await self.pair()
        await self._upstream.settled(PATIENCE_S)
        return hostile, found

    async def _begin(self) -> None:
        """Have two connections in the pool that victims have used: the last row's, where nothing was wrong with it."""
        for link in self._upstream.links:
            link.forget()
        self._upstream.links = [link for link in self._upstream.links if not link.left.done()]
        self._upstream.arrivals.clear()
        if not self._clean or len(self._upstream.links) < POOLED_MIN:
            await self.clear()
            assert not await self.pair(), "a victim is not served, though nobody is hostile"
        self._clean = False  # until the row has ended

    async def _end(
        self, found: list[str], hostile: Client, judge: Callable[[Scene], list[str]], behind: Victim | None = None
    ) -> list[str]:
        scene = Scene(self._upstream, self._authority, hostile, self._victims, behind)
        found += scene.common() + judge(scene)
        self._leave()
        self._clean = not found
        return found

    def _leave(self) -> None:
        for client in self._clients:
            client.cut()
        self._clients, self._victims = [], []
        self._upstream.hostile, self._upstream.early = None, False

    async def clear(self) -> None:
        """Close everything, so that nothing of this row is left for the next."""
        self._leave()
        await self._upstream.reset()

    # ---- victims ----

    def _victim(self) -> Victim:
        victim = Victim(next(self._numbers))
        self._upstream.answers[victim.target] = victim.answer
        return victim

    async def _client(self) -> Client:
        client = await Client.connect(self._port)
        self._clients.append(client)
        return client

    async def _beside(self) -> "Beside":
        victim = self._victim()
        self._victims.append(victim)
        beside = Beside(victim, await self._client(), self._upstream)
        await beside.begin()
        return beside

    async def pair(self) -> list[str]:
        """The faults of two victims at once, so that each takes its own upstream connection."""
        first, second = await self._beside(), await self._beside()
        return await first.released() + await second.released()


@dataclass
class Beside:
    """A victim whose answer the upstream holds."""

    _victim: Victim
    _client: Client
    _upstream: Upstream
    _arrived: bool = False

    async def begin(self) -> None:
        """Send the request, and wait until it is at the upstream."""
        self._upstream.hold(self._victim.target)
        await self._client.play((self._victim.request,))
        self._arrived = await self._upstream.has(self._victim.target, PATIENCE_S)

    async def released(self) -> list[str]:
        """Have it answered; the faults in the answer."""
        self._upstream.release(self._victim.target)
        client, method = self._client, self._victim.method
        answered = _answered(method)
        await client.within(
            PATIENCE_S if self._arrived else 0, lambda: client.end != "open" or answered(bytes(client.received))
        )
        return self._victim.wrongs_below(read_responses(bytes(client.received), [method], client.end == "fin"))


def _answers(outcome: Outcome, followed: bool) -> int:
    goes_on = not outcome.refused or outcome.keeps
    return len(outcome.seen) + bool(outcome.refused) + (followed and goes_on)


def _answered(method: bytes) -> Callable[[bytes], bool]:
    """Whether what came has a response to the only request."""
    return lambda received: bool(read_responses(received, [method]).finals)


def method_of(sent: Pieces) -> bytes:
    """The method of the first request, as far as there is one."""
    return next((p for p in sent if isinstance(p, bytes) and p), b"").lstrip(b"\r\n").partition(b" ")[0]
