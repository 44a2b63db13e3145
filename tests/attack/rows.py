"""A row of the tables: bytes, and what they may do. A row is data, and allows only what it states."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tests.relay.messages import call, dumps

Pairs: TypeAlias = tuple[tuple[bytes, bytes], ...]
Pieces: TypeAlias = tuple[bytes | float, ...]
"""What is sent, in order; a number is a pause, in seconds."""

PING: Final = dumps(call("ping"))
JSON: Final = b"Content-Type: application/json"
CHUNKED: Final = b"Transfer-Encoding: chunked"
BAD: Final = frozenset({400})


# ---- requests ----


@dataclass(frozen=True)
class Seen:
    """A request as a reader behind the gateway must see it.

    `has` and `lacks` are fields and names of fields, in lower case. `trailers` None: any that the gateway may pass.
    `alone`: no other client's request may follow on its connection.
    """

    method: bytes = b"GET"
    target: bytes = b"/mcp"
    body: bytes = b""
    has: Pairs = ()
    lacks: tuple[bytes, ...] = ()
    trailers: Pairs | None = None
    alone: bool = False


@dataclass(frozen=True)
class Outcome:
    """One thing that may happen to a hostile request.

    `seen` reaches the upstream and is answered. What is behind that is `refused` with one of these statuses, or, if it
    is `silent`, the connection ends without a word. Of a message that is refused, `cut` says that the upstream may have
    seen a beginning, on a connection that then ends. `keeps`: the connection may go on after the refusal.
    `unanswered`: the client has left, and need not be answered.
    """

    seen: tuple[Seen, ...] = ()
    refused: frozenset[int] = frozenset()
    silent: bool = False
    cut: bool = False
    keeps: bool = False
    unanswered: bool = False


@dataclass(frozen=True)
class Request:
    """A hostile request, or several; `whole`: what is behind is a request of its own. `then`: nothing, FIN or RST."""

    id: str
    sent: Pieces
    may: tuple[Outcome, ...]
    whole: bool = True
    then: str = "open"


def raw(start: bytes, *fields: bytes, body: bytes = b"", host: bytes | None = b"localhost") -> bytes:
    """A request of these very bytes; no field is added but `Host`."""
    lines = [start, *([b"Host: " + host] if host is not None else []), *fields]
    return b"\r\n".join([*lines, b"", body])


def get(*fields: bytes, target: bytes = b"/mcp", method: bytes = b"GET", body: bytes = b"") -> bytes:
    return raw(method + b" " + target + b" HTTP/1.1", *fields, body=body)


def held(*fields: bytes, body: bytes) -> bytes:
    """A POST of JSON, which the gateway reads to its end before any of it goes up; framed as the fields say."""
    return get(JSON, *fields, method=b"POST", body=body)


def streamed(*fields: bytes, body: bytes) -> bytes:
    """A PUT whose pieces the gateway passes as they come; framed as the fields say."""
    return get(*fields, method=b"PUT", body=body)


# The two ways of a body through the gateway, by the method that takes it.
WAYS: Final = {"held": (held, b"POST"), "streamed": (streamed, b"PUT")}


def refused(name: str, sent: bytes | Pieces, *statuses: int, cut: bool = False, whole: bool = True) -> Request:
    """A row that gets one of these statuses, by default 400, and does not reach the upstream."""
    outcome = Outcome(refused=frozenset(statuses) or BAD, cut=cut, keeps=403 in statuses)
    return Request(name, _pieces(sent), (outcome,), whole=whole)


def forbidden(name: str, sent: bytes) -> Request:
    """A row that is answered with 400 though every reader reads it alike: the connection may go on."""
    return Request(name, (sent,), (Outcome(refused=BAD, keeps=True),))


def passes(name: str, sent: bytes | Pieces, *seen: Seen, whole: bool = True) -> Request:
    """A row that must reach the upstream as `seen`, which is a plain GET unless it is given."""
    return Request(name, _pieces(sent), (Outcome(seen or (Seen(),)),), whole=whole)


def either(name: str, sent: bytes | Pieces, *seen: Seen, statuses: Iterable[int] = BAD, cut: bool = False) -> Request:
    """A row that may reach the upstream as `seen`, or be refused."""
    outcomes = (Outcome(seen or (Seen(),)), Outcome(refused=frozenset(statuses), cut=cut, keeps=403 in statuses))
    return Request(name, _pieces(sent), outcomes)


def bad_behind(name: str, sent: bytes, *seen: Seen, statuses: Iterable[int] = BAD, keeps: bool = False) -> Request:
    """A row that reaches the upstream as `seen`; what is behind that is refused with one of these statuses."""
    return Request(name, (sent,), (Outcome(seen, frozenset(statuses), keeps=keeps),))


def stops(name: str, sent: bytes | Pieces, *seen: Seen, then: str = "fin", cut: bool = False) -> Request:
    """A row that ends too early behind `seen`: the rest is refused, or nothing is said of it."""
    outcome = Outcome(seen, frozenset({400, 408}), silent=True, cut=cut, unanswered=True)
    return Request(name, _pieces(sent), (outcome, replace(outcome, seen=())), whole=False, then=then)


def _pieces(sent: bytes | Pieces) -> Pieces:
    return (sent,) if isinstance(sent, bytes) else sent


# ---- responses ----


@dataclass(frozen=True)
class Got:
    """One answer that the client may get: a status and, unless it is None, the very body.

    `reason` None: any. `has` and `lacks` as in `Seen`. `before`: the statuses of the 1xx responses before it,
    None: any. `error`: the body is a JSON-RPC error.
    """

    status: int
    body: bytes | None = None
    reason: bytes | None = None
    has: Pairs = ()
    lacks: tuple[bytes, ...] = ()
    trailers: Pairs | None = None
    before: tuple[int, ...] | None = None
    error: bool = False


CUT: Final = Got(0)
"""The connection ends before the answer is whole."""
BROKEN: Final = Got(502, error=True)
OK: Final = Got(200, b"ok")


@dataclass(frozen=True)
class Response:
    """A hostile answer: what the upstream sends, and how its connection ends then.

    `alone`: no other exchange may follow on that connection. `early`: it is sent before the request is whole.
    `crawled`: the gateway asks in its own name, as often as it needs to.
    """

    id: str
    sent: Pieces
    may: tuple[Got, ...]
    ask: Pieces = (b"GET /hostile HTTP/1.1\r\nHost: localhost\r\n\r\n",)
    then: str = "open"
    alone: bool = False
    early: bool = False
    crawled: bool = False


def answer(start: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    """A response of these very bytes."""
    return b"\r\n".join([start, *fields, b"", body])


def ok(*fields: bytes, body: bytes = b"") -> bytes:
    return answer(b"HTTP/1.1 200 OK", *fields, body=body)


POISON: Final = ok(b"Content-Length: 6", body=b"POISON")
"""A whole response that nobody asked for."""


def ask(message: object, session: str = "") -> Pieces:
    """A POST for the hostile answer that carries a message."""
    data = dumps(message)
    fields = [JSON, b"Accept: application/json, text/event-stream", b"Content-Length: %d" % len(data)]
    if session:
        fields.append(b"Mcp-Session-Id: " + session.encode())
    return (raw(b"POST /hostile HTTP/1.1", *fields, body=data),)


def asked(method: bytes) -> Pieces:
    """A request for the hostile answer without a body."""
    return (raw(method + b" /hostile HTTP/1.1"),)


def gives(name: str, sent: bytes | Pieces, *may: Got, **more: object) -> Response:
    return Response(name, _pieces(sent), may, **more)  # type: ignore[arg-type]
