"""One gateway, the upstream behind it, and rows that are played before them with victims before, beside and behind.

In: a row. Out: what was wrong, one line for each; nothing is right. Always: each row begins with two connections to the
upstream in the gateway's pool, both of which victims have used; victims use every pooled connection when the row is
over; then all connections are closed, so that one row cannot hurt the next.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final

from tests.attack.client import Client
from tests.attack.judge import Scene, judge_request, judge_response
from tests.attack.readers import responses_by_h11, responses_by_llhttp
from tests.attack.rows import Outcome, Pieces, Request, Response
from tests.attack.upstream import HOSTILE, Upstream
from tests.attack.victim import TARGET, Victim

PATIENCE_S: Final = 3.0


class Stage:
    """Where rows are played. `authority`: what the gateway sends as `Host`."""

    def __init__(self, port: int, upstream: Upstream, authority: bytes) -> None:
        self._port = port
        self._upstream = upstream
        self._authority = authority
        self._numbers = count(1)
        self._clients: list[Client] = []
        self._victims: list[Victim] = []
        self.patience_s = PATIENCE_S

    # ---- rows ----

    async def request(self, row: Request, followed: bool) -> list[str]:
        """Play a row of the table of requests; `followed`: another request stands behind it on its own connection."""
        behind = self._victim() if followed else None
        answers = max(_answers(outcome, followed) for outcome in row.may)
        methods = [seen.method for seen in max((outcome.seen for outcome in row.may), key=len)] + [b"POST"] * 2

        def whole() -> bool:
            reading = responses_by_llhttp(bytes(hostile.received), methods, hostile.end == "fin")
            return hostile.end != "open" or len(reading.finals) >= answers or bool(reading.fault)

        found = await self.pair()
        beside = await self._beside()
        hostile = await self._client()
        await hostile.send((*row.sent, behind.request) if behind is not None else row.sent, row.then)
        in_time = row.then == "rst" or await hostile.until(whole, self.patience_s)
        if all(outcome.refused and not outcome.keeps and outcome.code is None for outcome in row.may):
            await hostile.until(lambda: hostile.end != "open", self.patience_s)
        found += await beside.released()
        found += await self.pair()
        scene = self._scene(hostile, behind)
        found += scene.common()
        found += judge_request(row, scene)
        found += [] if in_time else [f"nothing happened for {self.patience_s:g} s"] if found else []
        await self.clear()
        return found

    async def response(self, row: Response) -> list[str]:
        """Play a row of the table of responses."""
        method = bytes(row.ask[0] if isinstance(row.ask[0], bytes) else b"").partition(b" ")[0]
        self._upstream.hostile, self._upstream.early = (row.sent, row.then), row.early

        def whole() -> bool:
            reading = responses_by_llhttp(bytes(hostile.received), [method], hostile.end == "fin")
            return hostile.end != "open" or bool(reading.finals) or bool(reading.fault)

        found = await self.pair()
        beside = await self._beside()
        hostile = await self._client()
        await hostile.send(row.ask)
        in_time = await hostile.until(whole, self.patience_s)
        await self._upstream.played()
        found += await beside.released()
        found += await self.pair()
        scene = self._scene(hostile, None)
        found += scene.common()
        found += judge_response(row, method, scene)
        found += [] if in_time else [f"nothing happened for {self.patience_s:g} s"] if found else []
        await self.clear()
        return found

    async def anything(self, sent: Pieces, answered: tuple[Pieces, str] | None, wait_s: float) -> list[str]:
        """Play bytes of which nothing is known: victims are untouched, and the readers of either side agree."""
        self._upstream.hostile = answered

        def whole() -> bool:
            reading = responses_by_llhttp(bytes(hostile.received), [method] * 9, hostile.end == "fin")
            return hostile.end != "open" or bool(reading.finals) or bool(reading.fault)

        method = b"".join(piece for piece in sent if isinstance(piece, bytes)).lstrip(b"\r\n").partition(b" ")[0]
        found = await self.pair()
        beside = await self._beside()
        hostile = await self._client()
        await hostile.send(sent)
        await hostile.until(whole, wait_s)
        await self._upstream.played()
        found += await beside.released()
        found += await self.pair()
        found += self._scene(hostile, None).common()
        await self.clear()
        return found

    async def clear(self) -> None:
        """Close everything, so that nothing of this row is left for the next."""
        for client in self._clients:
            client.close()
        await self._upstream.reset()
        self._clients, self._victims = [], []

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
        beside = Beside(victim, await self._client(), self._upstream, self.patience_s)
        await beside.begin()
        return beside

    async def pair(self) -> list[str]:
        """Two victims at once, so that each takes a connection to the upstream of its own: what is wrong with them."""
        first, second = await self._beside(), await self._beside()
        return await first.released() + await second.released()

    def _scene(self, hostile: Client, behind: Victim | None) -> Scene:
        return Scene(self._upstream, self._authority, hostile, self._victims, behind)


class Beside:
    """A victim whose answer the upstream holds."""

    def __init__(self, victim: Victim, client: Client, upstream: Upstream, wait_s: float) -> None:
        self._victim = victim
        self._client = client
        self._upstream = upstream
        self._wait_s = wait_s
        self._arrived = False

    async def begin(self) -> None:
        """Send the request, and wait until it is at the upstream."""
        self._upstream.hold(self._victim.target)
        await self._client.send((self._victim.request,))
        self._arrived = await self._upstream.has(self._victim.target, self._wait_s)

    async def released(self) -> list[str]:
        """Have it answered: what is wrong with the answer."""
        self._upstream.release(self._victim.target)
        client, methods = self._client, [self._victim.method]
        await client.until(
            lambda: client.end != "open" or bool(responses_by_llhttp(bytes(client.received), methods, False).finals),
            self._wait_s if self._arrived else 0,
        )
        data, ended = bytes(client.received), client.end == "fin"
        readings = [read(data, methods, ended) for read in (responses_by_llhttp, responses_by_h11)]
        return self._victim.wrongs_below(readings)


def _answers(outcome: Outcome, followed: bool) -> int:
    """How many answers an outcome has."""
    goes_on = not outcome.refused or outcome.keeps
    return len(outcome.seen) + bool(outcome.refused) + (followed and goes_on)


def is_victims(target: bytes) -> bool:
    """Whether a request is a victim's."""
    return target.startswith(TARGET)


def targets_of(arrived: Sequence[bytes]) -> list[bytes]:
    """The targets that are neither a victim's nor that of the hostile answer."""
    return [target for target in arrived if not is_victims(target) and target != HOSTILE]
