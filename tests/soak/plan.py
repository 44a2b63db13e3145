"""What happens in one conversation, drawn from its seed: who asks what, what the upstream answers, and who leaves when.

Every request names its exchange in `X-Request-Id`, which is no part of an identity (DESIGN 7), so that the upstream
knows the exchange of the crawler's requests, too.
"""

import gzip
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.relay.http1 import End
from tests.relay.messages import Json, call, dumps, filtered, initialized, notification, page, result, task
from tests.relay.wire import LAST_CHUNK, answer, chunk, event, post, request, response, stream

SESSIONS: Final = [f"soak-{n}" for n in range(6)]
TASKS_PER_SESSION: Final = 22
PAGE_SIZE: Final = 5
BODY_BYTES_MAX: Final = 600_000
EXACT: Final = b'"exact":123456789012345678901234567890.10'  # which no parser of numbers keeps
STATUSES: Final = ("working", "completed", "failed", "input_required", "cancelled")
MARK: Final = b"X-Exchange"
_OCTETS: Final = b"Content-Type: application/octet-stream"
_CHUNKED: Final = b"Transfer-Encoding: chunked"


def tasks_of(session: str) -> list[Json]:
    """The tasks of a session, in order of creation; they never change."""
    return [
        task(f"{session}-t{n:02}", STATUSES[n % 5], f"2026-01-01T00:00:{n:02}Z", statusMessage=f"é{n}")
        for n in range(TASKS_PER_SESSION)
    ]


TASKS: Final = {session: tasks_of(session) for session in SESSIONS}


def page_at(session: str, cursor: str | None) -> Json:
    """The page of a session's tasks that a cursor, which is its last task's id, leads to."""
    tasks = TASKS[session]
    start = 0 if cursor is None else [t["taskId"] for t in tasks].index(cursor) + 1
    shown = tasks[start : start + PAGE_SIZE]
    return page(shown, shown[-1]["taskId"] if start + PAGE_SIZE < len(tasks) else None)


def identity(session: str) -> list[bytes]:
    """The fields that identify a caller. Two callers share each session's id, and nothing else."""
    shared = SESSIONS.index(session) // 2
    return [b"Mcp-Session-Id: soak-%d" % shared, b"Authorization: Bearer " + session.encode()]


@dataclass(frozen=True)
class Death:
    """The upstream ends a connection: in a request, in its response, or behind it, when it is idle.

    `share` is how much of the request or response has passed; `nth` of the requests that the exchange causes is hit,
    and all behind it if it `persists`.
    """

    at: str
    share: float
    how: End
    nth: int = 1
    persists: bool = False

    def hits(self, count: int) -> bool:
        return count == self.nth or (self.persists and count > self.nth)


@dataclass(frozen=True)
class Departure:
    """The client leaves when so much of its requests is sent, or of all answers came; `half`: by FIN, and reads on."""

    at: str
    share: float
    how: End
    half: bool = False


@dataclass
class Exchange:
    """One request, and its answer. `answered` is empty where the gateway answers: then `tasks` is the right list."""

    number: int
    kind: str
    session: str
    asked: bytes
    answered: bytes = b""
    tasks: list[Json] | None = None
    is_edited: bool = False
    stays_open: bool = False
    death: Death | None = None
    is_cut: bool = False  # the client leaves before it has sent all of the request
    is_slow: bool = False  # the upstream reads the body of the request a little later
    is_hostile: bool = False  # the request or the response can be read in no way, or in two: all but another's is right

    @property
    def method(self) -> bytes:
        return self.asked.partition(b" ")[0]

    @property
    def is_closing(self) -> bool:
        return self.kind == "until the end"

    @property
    def is_safe(self) -> bool:
        return self.method in (b"GET", b"HEAD")


@dataclass
class Conversation:
    """Exchanges on one connection, pipelined or not; `cuts` split what is sent, `behind` is last. A slow one pauses."""

    exchanges: list[Exchange]
    pipelined: bool
    cuts: list[float]
    departure: Departure | None
    is_slow: bool = False
    behind: bytes = b""

    @property
    def sent_bytes(self) -> int:
        """How much of its requests the client sends."""
        asked_bytes = sum(len(e.asked) for e in self.exchanges)
        if self.departure is None or self.departure.at != "asking":
            return asked_bytes
        return int(self.departure.share * asked_bytes)


# ---- kinds of exchanges ----

Made = dict[str, Any]
"""What a kind makes of an exchange: its fields."""


class Dice:
    """Draws what an exchange is made of."""

    def __init__(self, source: random.Random, number: int) -> None:
        self.random = source
        self.number = number
        self.session = source.choice(SESSIONS)
        self.own = [*identity(self.session), b"X-Request-Id: %d" % number]

    def payload(self, bytes_max: int = 2000) -> bytes:
        """Bytes whose every place can be told from the next."""
        size = self.random.randrange(bytes_max)
        return (b"%d:%d;" % (self.number, size)).ljust(24, b".")[:24] + self.random.randbytes(size)

    def pieces(self, payload: bytes) -> list[bytes]:
        ends = sorted({0, len(payload), *(self.random.randrange(len(payload) + 1) for _ in range(3))})
        return [payload[a:b] for a, b in itertools.pairwise(ends)]

    def post(self, message: Json) -> bytes:
        return post(message, *self.own)

    def get(self, *fields: bytes) -> bytes:
        return request(fields=[*self.own, *fields])

    def framed(self, message: bytes, *fields: bytes) -> bytes:
        if self.random.random() < 0.5:
            return answer(message, *fields)
        head = response(b"", b"Content-Type: application/json", *fields, _CHUNKED)
        return head.replace(b"Content-Length: 0\r\n", b"") + b"".join(map(chunk, self.pieces(message))) + LAST_CHUNK

    def told(self, message: bytes, *fields: bytes) -> bytes:
        """A JSON message as a response: as JSON, or as the last event of a stream."""
        if self.random.random() < 0.5:
            return self.framed(message, *fields)
        first = event(b"", b"id: 0", b"retry: 5") + event(notification("notifications/message", data=self.number))
        body = first + event(message, b"event: message")
        return stream(*fields) + b"".join(map(chunk, self.pieces(body))) + LAST_CHUNK


def _json(dice: Dice) -> Made:
    text = dice.payload(3000).decode("latin-1")
    message = dumps(result(dice.number, {"content": [{"type": "text", "text": text}]}))
    return {"asked": dice.post(call("tools/call", dice.number, name="x")), "answered": dice.framed(message)}


def _events(dice: Dice) -> Made:
    events = [event(notification("notifications/progress", progress=n), b"id: %d" % n) for n in range(4)]
    events.append(event(result(dice.number, {"content": dice.number})))
    body = stream() + b"".join(chunk(piece) for e in events for piece in dice.pieces(e)) + LAST_CHUNK
    return {"asked": dice.post(call("tools/call", dice.number, name="x")), "answered": body}


def _chunks(dice: Dice) -> Made:
    head = response(b"", _OCTETS, _CHUNKED).replace(b"Content-Length: 0\r\n", b"")
    body = b"".join(map(chunk, dice.pieces(dice.payload(20_000)))) + b"0\r\nX-Sum: %d\r\n\r\n" % dice.number
    return {"asked": dice.get(), "answered": head + body}


def _until_the_end(dice: Dice) -> Made:
    head = response(b"", _OCTETS).replace(b"Content-Length: 0\r\n", b"")
    return {"asked": dice.get(), "answered": head + dice.payload(20_000)}


def _upload(dice: Dice) -> Made:
    body = dice.payload(BODY_BYTES_MAX)
    if dice.random.random() < 0.5:
        asked = request(b"PUT", fields=[*dice.own, _OCTETS], body=body)
    else:
        chunks = b"".join(map(chunk, dice.pieces(body[:100_000])))
        asked = request(b"PUT", fields=[*dice.own, _OCTETS, _CHUNKED]) + chunks + LAST_CHUNK
    return {"asked": asked, "answered": response(b"taken %d" % dice.number)}


def _download(dice: Dice) -> Made:
    return {"asked": dice.get(), "answered": response(dice.payload(BODY_BYTES_MAX), _OCTETS)}


def _stream(dice: Dice) -> Made:
    """A GET stream: it ends after some events, or stays open until somebody leaves."""
    notices = [notification("notifications/tasks/status", **t) for t in TASKS[dice.session][:3]]
    body = stream() + b"".join(chunk(event(n, b"id: %d" % i)) for i, n in enumerate(notices))
    stays_open = dice.random.random() < 0.6
    asked = dice.get(b"Accept: text/event-stream")
    return {"asked": asked, "answered": body if stays_open else body + LAST_CHUNK, "stays_open": stays_open}


def _encoded(dice: Dice) -> Made:
    text = dice.payload(4000).decode("latin-1")
    packed = gzip.compress(dumps(result(dice.number, {"text": text})), mtime=0)
    asked = dice.post(call("prompts/get", dice.number)).replace(b"Accept:", b"Accept-Encoding: gzip\r\nAccept:", 1)
    return {"asked": asked, "answered": answer(packed, b"Content-Encoding: gzip")}


def _initialize(dice: Dice) -> Made:
    message = dumps(result(dice.number, initialized()))
    message = message.replace(b'"serverInfo":{', b'"serverInfo":{' + EXACT + b",")
    given = identity(dice.session)[0]
    asked = dice.post(call("initialize", dice.number, protocolVersion="2025-11-25"))
    return {"asked": asked, "answered": dice.told(message, given), "is_edited": True}


def _filtered(dice: Dice) -> Made:
    parameter, member = dice.random.choice((("status", "status"), ("taskIds", "taskId")))
    values = sorted({t[member] for t in TASKS[dice.session]})
    wanted = dice.random.sample(values, dice.random.randint(1, 3))
    tasks = [t for t in reversed(TASKS[dice.session]) if t[member] in wanted]
    return {"asked": dice.post(filtered(dice.number, **{parameter: wanted})), "tasks": tasks}


def _listed(dice: Dice) -> Made:
    message = dumps(result(dice.number, page_at(dice.session, None)))
    return {"asked": dice.post(call("tasks/list", dice.number)), "answered": dice.told(message)}


def _got(dice: Dice) -> Made:
    one = dice.random.choice(TASKS[dice.session])
    asked = dice.post(call("tasks/get", dice.number, taskId=one["taskId"]))
    return {"asked": asked, "answered": dice.told(dumps(result(dice.number, one)))}


def _ended(dice: Dice) -> Made:
    gone = b"HTTP/1.1 204 No Content\r\nX-Number: %d\r\n\r\n" % dice.number
    return {"asked": request(b"DELETE", fields=dice.own), "answered": gone}


KINDS: Final[dict[str, Callable[[Dice], Made]]] = {
    "JSON": _json, "events": _events, "chunks": _chunks, "until the end": _until_the_end, "upload": _upload,
    "download": _download, "GET stream": _stream, "encoded": _encoded, "initialize": _initialize,
    "filtered": _filtered, "tasks/list": _listed, "tasks/get": _got, "DELETE": _ended,
}  # fmt: skip


# ---- conversations ----


def exchange(
    source: random.Random,
    number: int,
    names: Sequence[str],
    deaths: float,
    kinds: Mapping[str, Callable[[Dice], Made]],
) -> Exchange:
    """An exchange of one of these kinds. `deaths`: the share that meets a death."""
    kind = source.choice(names)
    dice = Dice(source, number)
    made = kinds[kind](dice)
    death = None
    if source.random() < deaths:
        at = source.choices(["request", "response", "behind"], [2, 6, 1])[0]
        nth = source.randint(1, 6) if kind == "filtered" else 1
        death = Death(at, source.random(), source.choice(["fin", "rst"]), nth, source.random() < 0.7)
    made["answered"] = marked(made.get("answered", b""), number)
    return Exchange(number, kind, dice.session, death=death, **made)


def marked(response: bytes, number: int) -> bytes:
    return response.replace(b"\r\n", b"\r\n%b: %d\r\n" % (MARK, number), 1)


def conversation(source: random.Random, exchanges: list[Exchange], departures: float) -> Conversation:
    """These exchanges on one connection, as far as it can carry them. `departures`: the share of early leavers."""
    # What stays open is the last of its connection, and what the end of the connection ends too.
    exchanges = exchanges[: next((i for i, e in enumerate(exchanges, 1) if _ends(e)), None)]
    departure = None
    if source.random() < departures:
        departure = Departure(source.choice(["asking", "hearing"]), source.random(), source.choice(["fin", "rst"]))
    last = exchanges[-1]
    if last.stays_open and last.death is not None and last.death.at == "request":
        last.death = replace(last.death, persists=True)  # or it is asked for again, and stays open
    if last.stays_open and departure is None and (last.death is None or last.death.at == "behind"):
        last.death = None
        departure = Departure("hearing", 1.0, source.choice(["fin", "rst"]))
    cuts = [source.random() for _ in range(source.randrange(4))]
    made = Conversation(exchanges, source.random() < 0.4, sorted(cuts), departure)
    mark_cut(made)
    return made


def mark_cut(made: Conversation) -> None:
    """Note which requests of a conversation are not sent whole."""
    sent_bytes = made.sent_bytes
    for one in made.exchanges:
        one.is_cut = sent_bytes < len(one.asked)
        sent_bytes -= len(one.asked)


def _ends(exchange: Exchange) -> bool:
    return exchange.is_closing or exchange.stays_open or exchange.is_hostile
