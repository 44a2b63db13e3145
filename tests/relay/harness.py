"""The comparison: one case, run directly and through the gateway, and what may differ between the two recordings.

A `Case` is a transcript: the bytes that the client and the upstream send, their order, and what each waits for.
`differences` permits what DESIGN 3 lists, and nothing else. The upstream sends a piece when the one before it has
arrived at the client, so that a piece held back is seen, and a late one is measured.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from tests.peer import Client, NotInTime, Peer
from tests.relay.http1 import Fields, Message
from tests.upstream import Upstream

LAG_MAX_S: Final = 0.8  # how much later than directly a piece may arrive through the gateway on a busy machine
LAG_TRIES: Final = 3  # a busy machine may hold a piece back even longer, but not each time


# ---- transcripts ----


class Run:
    """One run of a case: the client, the upstream, and the connection on which the upstream speaks now."""

    def __init__(self, client: Client, upstream: Upstream) -> None:
        self.client = client
        self.upstream = upstream
        self.speaking: Peer | None = None
        self.lags: list[float] = []

    def _sent(self) -> tuple[int, int]:
        """How many responses the upstream has begun so far, and the bytes of their bodies, all connections counted."""
        heads = payload = 0
        old_client = b"HTTP/1.0\r\n" in self.client.sent
        for peer in self.upstream.connections:
            methods = [request.method for request in peer.incoming.requests()]
            for response in peer.outgoing.responses(methods):
                heads += response.is_final or not old_client  # HTTP/1.0 has no 1xx (RFC 9110, 15.2)
                payload += len(response.body)
        return heads, payload

    def _came(self) -> tuple[int, int]:
        responses = self.client.responses()
        old_client = b"HTTP/1.0\r\n" in self.client.sent
        heads = [r for r in responses if r.is_final or not old_client]
        return len(heads), sum(len(r.body) for r in responses)

    async def in_step(self) -> None:
        """Wait until everything that the upstream has sent so far is at the client, and note how long it took."""
        began = time.monotonic()
        heads, payload = self._sent()

        def arrived() -> bool:
            came = self._came()
            return self.client.end != "open" or (came[0] >= heads and came[1] >= payload)

        await self.client.until(arrived, f"{heads} heads and {payload} bytes of bodies at the client")
        self.lags.append(time.monotonic() - began)

    async def play(self, step: "Step") -> None:
        kind, *given = step
        began = time.monotonic()
        match kind, given:
            case "client", pieces:
                await self.client.send(*pieces)
            case "arrives", numbers:
                self.speaking = await self.upstream.request(*numbers)
            case "begins", numbers:
                self.speaking = await self.upstream.head(*numbers)
            case "upstream hears", [data]:
                asked = self.upstream
                await asked.until(lambda: any(data in r.body for r in asked.requests), f"{data!r} at the upstream")
                self.lags.append(time.monotonic() - began)
            case "upstream", pieces:
                for piece in pieces:
                    await self.speaker.send(piece)
                    await self.in_step()
            case "upstream ends", [how]:
                self.speaker.stop(how)

    @property
    def speaker(self) -> Peer:
        assert self.speaking is not None
        return self.speaking


Step: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A transcript. `stays_open`: it ends with a response that goes on, or without one."""

    name: str
    steps: Sequence[Step]
    stays_open: bool = False


def _step(kind: str) -> Callable[..., Step]:
    return lambda *given: (kind, *given)


client = _step("client")  # the client sends these pieces
arrives = _step("arrives")  # the request of that number, or the first, is there whole: the upstream speaks there now
begins = _step("begins")  # the same of its head
upstream_hears = _step("upstream hears")  # these bytes of the body arrive at the upstream, before the rest is sent
upstream = _step("upstream")  # the upstream sends these pieces, each after the one before it has reached the client
upstream_ends = _step("upstream ends")  # the upstream closes that connection, in order ("fin") or by a reset ("rst")


def exchange(request: bytes | Sequence[bytes], response: bytes | Sequence[bytes], number: int = 1) -> list[Step]:
    """The client sends a request in these pieces; when it has arrived whole, the upstream sends a response in these."""
    asked = [request] if isinstance(request, bytes) else request
    answered = [response] if isinstance(response, bytes) else response
    return [client(*asked), arrives(number), upstream(*answered)]


# ---- recordings ----


@dataclass(frozen=True)
class Recording:
    """What happened in one run.

    `outcome` is how the last response ended: whole, cut, open (it goes on), or none (there was none).
    """

    requests: list[Message]
    responses: list[Message]
    outcome: str
    lags: list[float] = field(default_factory=list)


async def record(case: Case, listening: socket.socket, port: int | None) -> Recording:
    upstream_end = Upstream(listening)
    run = Run(await Client.connect(port or upstream_end.port), upstream_end)
    try:
        for step in case.steps:
            await run.play(step)
        if not case.stays_open:
            with contextlib.suppress(NotInTime):
                await run.client.until(lambda: _outcome(run.client) in ("whole", "cut"), "the end of the response")
        outcome = _outcome(run.client)
        # Whatever else is on its way comes before the end of a connection that the client has closed.
        run.client.finish()
        if not case.stays_open and run.client.end == "open":
            if port is None:
                for peer in upstream_end.connections:
                    peer.finish()
            await run.client.ends()
        return Recording(upstream_end.requests, run.client.responses(), outcome, run.lags)
    finally:
        await run.client.close()
        await upstream_end.close()


def _outcome(peer: Client) -> str:
    responses = peer.responses()
    if not responses:
        return "open" if peer.end == "open" else "none"
    last = responses[-1]
    if last.whole and last.is_final:
        return "whole"
    return "open" if peer.end == "open" else "cut"


# RFC 9110, 7.6.1. Transfer-Encoding is compared as framing.
_HOP_BY_HOP: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade"})
_FRAMING: Final = (b"content-length", b"transfer-encoding")


def differences(direct: Recording, relayed: Recording, authority: bytes) -> list[str]:
    """Where the recording through the gateway is not what DESIGN 3 makes of the direct one; `authority` is for `Host`.

    3.2: hop-by-hop fields are removed, `Host` is changed, framing fields change where framing does.
    3.3: on a request whose response is observed, `Accept-Encoding` may be narrowed.
    RFC 9110, 2.5: a gateway sends its own HTTP version. 15.2: no 1xx to a client of HTTP/1.0.
    RFC 9112, 3.2: an origin server is sent a path, without the authority that a target in absolute form has.
    """
    old_client = any(r.start.endswith(b"1.0") for r in direct.requests)
    answers = [r for r in direct.responses if r.is_final or not old_client]
    found = [
        *_differ("the outcome", direct.outcome, relayed.outcome),
        *_differ("the number of requests", len(direct.requests), len(relayed.requests)),
        *_differ("the number of responses", len(answers), len(relayed.responses)),
    ]
    for sent, came in zip(direct.requests, relayed.requests, strict=False):
        found += _differ("a request", _as_upstream_sees(sent, came, authority), _end_to_end(came))
    for sent, came in zip(answers, relayed.responses, strict=False):
        found += _differ("a response", _as_client_sees(sent, came, old_client), _end_to_end(came))
    return found


def late(direct: Recording, relayed: Recording) -> list[str]:
    """What took too long through the gateway."""
    return [
        f"{slow:.2f} s for what takes {quick:.2f} s directly"
        for quick, slow in zip(direct.lags, relayed.lags, strict=False)
        if slow > quick + LAG_MAX_S
    ]


def _differ(what: str, expected: object, got: object) -> list[str]:
    return [] if expected == got else [f"{what}:\n  expected {expected!r}\n  got      {got!r}"]


def _end_to_end(message: Message) -> Message:
    named = {part.strip().lower() for value in message.values(b"connection") for part in value.split(b",")}
    removed = (_HOP_BY_HOP | named) - {b"host", *_FRAMING}
    return replace(message, fields=tuple(f for f in message.fields if f[0].lower() not in removed))


def _as_upstream_sees(sent: Message, came: Message, authority: bytes) -> Message:
    fields = _end_to_end(sent).fields
    if sent.values(b"host"):
        fields = tuple((n, authority if n.lower() == b"host" else v) for n, v in fields)
    else:  # RFC 9112, 3.2: a request of HTTP/1.1 has a Host, and the gateway's are of HTTP/1.1
        at = [n.lower() for n, _ in came.fields].index(b"host")
        fields = (*fields[:at], (came.fields[at][0], authority), *fields[at:])
    narrowed = came.values(b"accept-encoding")
    if _is_observed(sent) and narrowed and _members(narrowed) <= _members(sent.values(b"accept-encoding")):
        fields = tuple((n, narrowed[0] if n.lower() == b"accept-encoding" else v) for n, v in fields)
    target = re.sub(rb"^http://[^/?]*", b"", sent.target)
    return replace(sent, start=b"%b %b HTTP/1.1" % (sent.method, target), fields=fields)


def _members(values: Iterable[bytes]) -> set[bytes]:
    return {part.strip() for value in values for part in value.split(b",")} | {b"identity"}


def _is_observed(request: Message) -> bool:
    is_json = any(v.lower().startswith(b"application/json") for v in request.values(b"content-type"))
    return request.method == b"GET" or (request.method == b"POST" and is_json)


def _as_client_sees(sent: Message, came: Message, old_client: bool) -> Message:
    expected = replace(_end_to_end(sent), start=b"HTTP/1.1" + sent.start[8:])
    if old_client:  # RFC 9112, 6.1: no transfer coding to HTTP/1.0
        fields = tuple(f for f in expected.fields if f[0].lower() != b"transfer-encoding")
        expected = replace(expected, fields=fields)
    if old_client and sent.framing == "chunked":
        return replace(expected, framing="close", trailers=())
    if sent.framing == "close" and came.framing == "chunked" and not old_client:
        kept = _without_framing(expected.fields) + _framing_of(came)
        return replace(expected, framing="chunked", fields=kept)
    return expected


def _without_framing(fields: Fields) -> Fields:
    return tuple(f for f in fields if f[0].lower() not in _FRAMING)


def _framing_of(message: Message) -> Fields:
    return tuple(f for f in message.fields if f[0].lower() in _FRAMING)


async def compare(case: Case, straight: socket.socket, listening: socket.socket, port: int) -> None:
    """Run a case directly and through the gateway, at once. Raises AssertionError: all differences.

    The upstream of the direct run listens on `straight`, that behind the gateway on `listening`.
    """
    for _ in range(LAG_TRIES):
        runs = [asyncio.create_task(record(case, *at)) for at in ((straight, None), (listening, port))]
        await asyncio.wait(runs)
        direct, relayed = (run.result() for run in runs)
        found = differences(direct, relayed, b"127.0.0.1:%d" % listening.getsockname()[1])
        assert not found, f"{case.name}:\n" + "\n".join(found)
        if not (found := late(direct, relayed)):
            return
    raise AssertionError(f"{case.name}:\n" + "\n".join(found))
