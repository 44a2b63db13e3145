"""A server of the 2025-11-25 era behind the gateway: real HTTP, on connections of the virtual loop, without sockets.

Its answers are true at the moment of sending. It notes every request of the gateway's own, and whether the same was
being asked already. What may go wrong with a request (`Fault.kind`):

    drop       the request is carried out, then the connection is cut
    unheard    the connection is cut at once
    half       the response breaks off
    401, 403, 404, 429, 500, 429 in 3, 503 at 3
               that status; with `Retry-After`, in seconds or as a date, to the gateway's own requests alone. These get
               no 404, and what makes the gateway forget only of servers that list it
    error      a JSON-RPC error
    code N     the JSON-RPC error of that code; `null`: its id is null, in the answer to one of the gateway's own
    status N   that status, without a body, or with the JSON-RPC error of the code behind it
    stale N    a cursor is refused with that code, or status
    text id, other id
               the id of the response is a text: the same number, or something else
    empty      the last page names an empty cursor
    expired    `-32602 Invalid cursor`, of a `tasks/list` with a cursor
    hang       the answer comes after `HANG_S`, which is longer than the gateway waits
    encoded    the response to a client's request is in an encoding that the gateway cannot read
    large      the message is larger than the gateway reads: the response to a client's request, or a notification
    illegible  the response to a client's request has a control character, which only some clients read
    latin      the response, and each task in it, is no UTF-8
    short      the response to a client's request is gzip, whose end is missing
    gzip       the response to a client's request is gzip
    nan, bom   the response has a number that JSON lacks; it begins with a byte order mark
    stall      the response stops in its middle for `STALL_S`
    resume     the stream of a client's request ends without the response: the client asks for it with `Last-Event-ID`
"""

import asyncio
import gzip
import re
import time
import zlib
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from operator import itemgetter
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec

from tests.model.history import PUT_OFF, Fault, Setting
from tests.model.truth import (
    AFTER_ALL,
    BEFORE_ALL,
    EXACT,
    TERMINAL,
    Brief,
    Moment,
    Moments,
    ServerSession,
    State,
    Truth,
    Violation,
    instant,
    method_names,
    task_id,
)
from tests.model.virtual import TICK_S, WIRE_S, Transport, VirtualLoop
from tests.own_ids import is_own
from tests.upstream import Served, fields_of

Json: TypeAlias = dict[str, Any]

PORT: Final = 3001  # and those behind it
HANG_S: Final = 45.0
STALL_S: Final = 1.25
INVALID_PARAMS: Final = -32602
DROPS: Final = ("drop", "unheard", "half")
READ_BYTES_MAX: Final = 8192  # of a message, by the gateway
STATUS_NOTIFICATION: Final = "notifications/tasks/status"
_ENCODED: Final = b"Content-Encoding: secret\r\n"
_GZIP: Final = b"Content-Encoding: gzip\r\n"
_NO_NUMBERS: Final = (b"NaN", b"Infinity", b"-Infinity")  # as Python's `json.dumps` writes them
_LACKS: Final = {  # what stands for EXACT in what was read leniently
    "nan": b"null", "latin": '"\ufffd"'.encode(), "bom": b"1.2345678901234568e+29",
}  # fmt: skip
_REASONS: Final = {
    200: b"OK", 202: b"Accepted", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 429: b"Too Many Requests",
    500: b"Server Error", 503: b"Service Unavailable",
}  # fmt: skip
DENIALS: Final = (INVALID_PARAMS, -32002)  # codes: of the gateway's `tasks/get` they are no fault, but an answer
_STATUS_AND_CODE: Final = re.compile(r"(status \d+) .*")
_STRANGERS: Final = 12  # tasks of others, in a list that is cut from everybody's
_EMPTY: Final = b',"nextCursor":""'
NO_CREDENTIALS: Final = ("", "Bearer", "Bearer undefined", "Basic Og==", ";sid=")
"""What callers have who have no credentials, each in his own way."""
_OF_CLIENTS: Final = ("encoded", "large", "illegible", "short", "gzip", "resume", "404")


def digest(body: bytes) -> str:
    """The value of `Content-Digest` (RFC 9530)."""
    return f"sha-256=:{b64encode(sha256(body).digest()).decode()}:"


class Refusal(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, text: str, lives: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.data = {"data": {"lives": lives}} if lives else {}  # how many tasks have had the id, which none has now


@dataclass(eq=False)
class Own:
    """A request of the gateway's own. `outcome` is "ok", a kind of fault, or "404"."""

    connection: "Connection"
    session: ServerSession
    id: int
    method: str
    params: Json
    at: Moment
    by: int  # the port of the replica that asks
    outcome: str = "ok"
    ended: Moment | None = None
    shown: tuple[Truth, ...] = ()  # by the answer, which has reached the gateway
    crawl: str = ""  # the pages of one reading of the list have the same
    read: Moment = BEFORE_ALL  # when the list was looked at

    @property
    def is_broken(self) -> bool:
        """Whether there is no response in the answer, or half of one."""
        return self.outcome in (*DROPS, "other id") or 0 < wrong(self.outcome)[0] < 300

    @property
    def is_refused(self) -> bool:
        return (
            self.outcome in ("error", "expired") or wrong(self.outcome)[1] is not None or wrong(self.outcome)[0] > 300
        )

    @property
    def has_failed(self) -> bool:
        """Whether it says nothing of the task that it asks for; that there is no such method is asked again at once."""
        return self.outcome == "hang" or self.is_broken or (self.is_refused and not self.knows_no_get)

    @property
    def knows_no_get(self) -> bool:
        status, code = wrong(self.outcome)
        return self.method == "tasks/get" and code == -32601 and status not in (401, 403, 429)


@dataclass(eq=False)
class Request:
    method: str
    headers: dict[str, str]
    body: bytes

    @property
    def caller(self) -> str:
        """What tells who asks, as `authorization` has it."""
        cookies = self.headers.get("cookie", "").split("; ")
        return ";".join([self.headers["authorization"], *(one for one in cookies if one.startswith("sid="))])

    @property
    def message(self) -> Json:
        """The message in it, in whatever form it came."""
        if self.method != "POST":
            return {}
        match self.headers.get("content-encoding"):
            case "gzip":
                plain = gzip.decompress(self.body)
            case "secret":
                plain = self.body[::-1]
            case _:
                plain = self.body
        message: Json = msgspec.json.decode(plain)
        return message


class Upstream:
    """The server."""

    def __init__(
        self,
        setting: Setting,
        loop: VirtualLoop,
        moments: Moments,
        note: Callable[..., None],
        fail: Callable[..., None],
    ) -> None:
        self.setting = setting
        self.loop = loop
        self.moments = moments
        self.note = note
        self.fail = fail
        self.place = 0  # which of the servers the gateway goes to: all of them are this one
        self.sessions: dict[tuple[int, str, str], ServerSession] = {}  # by place, id and `Authorization`
        self.authorizations = [authorization(0), authorization(1)]  # of each client, as it is now
        self._valid = set(self.authorizations)
        self.latest: dict[int, ServerSession] = {}  # of each client
        self.connections: list[Connection] = []
        self.streams: defaultdict[ServerSession, list[Connection]] = defaultdict(list)
        """Those that notifications can be sent on, GET streams first."""
        self.faults: list[tuple[ServerSession, Fault]] = []
        self.own: list[Own] = []
        self.notified: list[int] = []  # how often each notification has reached a client
        self.kept: dict[tuple[int, str], bytes] = {}  # responses to those that come back, by place and event
        self.raws: dict[bytes, tuple[ServerSession, Truth, State]] = {}
        self._session_numbers = count()
        self._token_numbers = count()
        self._task_numbers: defaultdict[int, count[int]] = defaultdict(count)  # by place
        self._skew_s = setting.skew_s
        self._clock_set = 0  # how often
        self._times_asked: Counter[str] = Counter()
        self._shuffles = -1
        self._denied = set[str]()  # the ids of tasks: says the last answer to a `tasks/get`
        self._denies_empty = False  # the last empty cursor was refused
        self._busy: Counter[tuple[int, str]] = Counter()  # requests under way, by server and session
        self._answers = count()
        self.met: Counter[tuple[str, str]] = Counter()  # what has gone wrong, and with whose requests
        self.asks_once = True  # whoever asks on his own
        self.finds_by_exchange = True  # whoever asks: a response with another id is that of the request all the same

    def connection(self, place: int = 0) -> "Connection":
        return Connection(self, place)

    def clock(self, ago_s: float = 0.0) -> int:
        return round((self.loop.unix_time() - ago_s + self._skew_s) * 1_000_000)

    def set_clock(self, by_s: int) -> None:
        self._skew_s += by_s
        self._clock_set += 1

    def timestamp(self, ago_s: float) -> int:
        """The same, as it is written into a task."""
        now = self.clock(ago_s)
        return now - now % 1_000_000 if self.setting.coarse else now

    def is_lost(self, own: Own) -> bool:
        """Whether its response has an id, or none, that a client may take for its own: the gateway waits in vain."""
        return own.outcome.endswith((" null", "other id")) and not self.finds_by_exchange

    # ---- what happens to tasks ----

    def create(self, session: ServerSession, method: str, ttl: int | None = None, ago_s: float = 0.0) -> Truth:
        """A task is made; `ttl` is in eighths of a second."""
        now = self.moments.now()
        expires = None if ttl is None else now.time + ttl / 8
        created = self.timestamp(ago_s)
        born = Moment(now.time - ago_s, now.number)
        ttl_ms = None if ttl is None else ttl * 125
        truth = Truth(self._id(session, created), method, created, born, ttl_ms, expires, place=session.place)
        truth.left = AFTER_ALL if session.place == self.place else now
        session.truths.append(truth)
        self._change(session, truth, "working", created, born)
        if expires is not None and self.setting.expiry == "at once":
            self.loop.call_at(expires, self.remove, truth, "expired")
        return truth

    def _id(self, session: ServerSession, created: int) -> str:
        """An id for a new task: another one, or that of a task that has ended before, by its timestamps too (6.9)."""
        if self.setting.ids_again is not None:
            by = self.loop.time() - self.setting.ids_again * TICK_S
            newest = {t.id: t for t in session.truths}
            free = [t for t in newest.values() if not t.is_live and (t.gone or t.state.since).time <= by]
            if free and all(max(t.created, t.state.updated) < created for t in session.lives(free[-1].id)):
                self.remove(free[-1], "its id is given again")
                return free[-1].id
        return task_id(next(self._task_numbers[session.place]))

    def update(self, session: ServerSession, truth: Truth, status: str, ago_s: float = 0.0) -> State:
        now = self.moments.now()
        self._change(session, truth, status, self.timestamp(ago_s), Moment(now.time - ago_s, now.number))
        return truth.state

    def _change(self, session: ServerSession, truth: Truth, status: str, now: int, at: Moment) -> None:
        truth.change(status, now, at, 0 if self.setting.coarse else 1, self._clock_set)
        self.raws[truth.state.raw] = (session, truth, truth.state)
        self.note("upstream: {} is {}, state {}", truth.id, status, truth.state.number)

    def remove(self, truth: Truth, why: str) -> None:
        """A task disappears."""
        if truth.gone is None:
            truth.gone = self.moments.now()
            self.note("upstream: {} is gone ({})", truth.id, why)

    def end(self, session: ServerSession) -> None:
        """A session ends for all its callers, and its tasks with it."""
        of_all = [s for s in self.sessions.values() if (s.place, s.id) == (session.place, session.id)]
        for of in [s for s in of_all if s.ended is None]:
            of.ended = self.moments.now()
            of.disturb(self.loop.time())
            for truth in list(of.alive()):
                self.remove(truth, "the session ended")
            for stream in list(self.streams[of]):
                stream.cut()

    def _open(self, session: ServerSession) -> None:
        for other in (other for other in self.sessions.values() if other.place == session.place):
            if other.id == session.id or other.authorization == session.authorization:
                other.relatives.append(session)
                session.relatives.append(other)
        self.sessions[session.place, session.id, session.authorization] = session
        if session.place == self.place:
            self.latest[session.number] = session

    def move(self) -> None:
        """The gateway goes to another server, which knows the sessions and no task, and gives the same ids."""
        self.place += 1
        truths: defaultdict[int, list[Truth]] = defaultdict(list)  # by those of the server before
        for old in [s for s in self.sessions.values() if s.place == self.place - 1]:
            for truth in old.truths:
                truth.left = min(truth.left, self.moments.now())
            if old.ended is None and old.id:
                place, theirs = self.place, truths[id(old.truths)]
                self._open(ServerSession(old.id, old.number, old.authorization, theirs, place=place))

    def stand_in(self, session: ServerSession) -> ServerSession:
        """The session that the server of now takes that one for, or the last server that knew it."""
        places = range(self.place, session.place, -1)
        known = (self.sessions.get((place, session.id, session.authorization)) for place in places)
        return next(filter(None, known), session)

    def _go_on(self, before: ServerSession, session_id: str) -> ServerSession:
        """A caller has the tasks of a session in another one, or with another token. The old one is as good."""
        began = self.moments.now() if self.setting.lists_all else BEFORE_ALL
        number, place = before.number, before.place
        of = session_id, number, self.authorizations[number]
        session = ServerSession(*of, before.truths, began, place=place)
        if session_id == before.id:
            session.opened, session.is_initialized = before.opened, before.is_initialized
        self._open(session)
        return session

    def renew(self, number: int, cookie: bool = False) -> None:
        """A client has another token, or cookie, from now on, in its session as well."""
        self.authorizations[number] = f"{authorization(number)}{';sid=' if cookie else '.'}{next(self._token_numbers)}"
        self._valid.add(self.authorizations[number])
        before = self.latest[number]
        if before.ended is None:
            self.streams[self._go_on(before, before.id)] = self.streams[before]

    def _expire(self, session: ServerSession) -> None:
        for truth in list(session.alive()):
            if truth.expires is not None and self.setting.expiry == "lazily" and truth.expires <= self.loop.time():
                self.remove(truth, "expired, and looked for")

    def notify(self, session: ServerSession, state: State, lie_s: int = 0) -> None:
        """Tell a client, on its first open stream, of a task's state at that moment; `lie_s`: of its time too."""
        streams = self.streams[session]
        if streams:
            for of in (of for of, theirs in self.streams.items() if theirs is streams):
                of.disturb(self.loop.time())
            self.notified.append(0)
            truth = self.raws[state.raw][1]
            if lie_s:
                lied = state.updated + lie_s * 1_000_000
                raw = state.raw.replace(_updated(state.updated), _updated(lied))
                state = state._replace(updated=lied, raw=raw)
                self.raws[raw] = (session, truth, state)
            if state.status in TERMINAL:
                truth.over_said = min(truth.over_said, self.moments.now())
                truth.said_until = max(truth.said_until, state.updated)
            params = state.raw[:-1] + b',"_meta":{"n":%d}}' % (len(self.notified) - 1)
            self.note("upstream: notifies {}", Brief(params))
            message = b'{"jsonrpc":"2.0","method":"notifications/tasks/status","params":%b}' % params
            fault = self._fault_of(session, {"method": STATUS_NOTIFICATION}) if streams[0].own is None else None
            streams[0].event(_large(message) if fault is not None and fault.kind == "large" else message)

    def delivered(self, number: int) -> None:
        self.notified[number] += 1
        if self.notified[number] > 1:
            self.fail(Violation("repeated", f"notification {number} has reached clients {self.notified[number]} times"))

    # ---- requests ----

    async def serve(self, connection: "Connection", request: Request) -> None:
        if "authorization" not in request.headers:  # a probe of a server that is down
            connection.respond(404, b"")
            return
        place, is_nobody = connection.place, request.caller in NO_CREDENTIALS
        session = self.sessions.get((place, request.headers.get("mcp-session-id", ""), request.caller))
        if is_nobody:  # all of them who have no session are one caller to the server
            session = self.sessions.setdefault((place, "", ""), ServerSession("", -1, "", place=place))
        if self.setting.balanced:
            connection.extra = b"Set-Cookie: AWSALB=%d; Path=/\r\n" % next(self._answers)
        message = request.message
        method = message.get("method", request.method)
        own = None
        if (told := request.headers.get("content-digest")) is not None and told != digest(request.body):
            self.fail(Violation("digest", f"{method} has the digest of another body"))
        if session is not None and is_own(message.get("id")):
            by = int(request.headers.get("user-agent", 0))
            own = connection.own = self._note_own(connection, session, message, by)
            if connection.lost:
                own.ended = own.at
        if request.caller not in self._valid and not is_nobody:
            connection.respond(401, b"")
        elif method != "initialize" and (session is None or session.ended is not None):
            self.note("upstream: asked {}, of a session that has ended", method)
            if own is not None:
                own.outcome = "404"
            connection.respond(404, b"")
        elif request.method != "POST":
            assert session is not None
            self._serve_other(connection, request, session)
        elif "id" not in message:
            connection.respond(202, b"")
        elif not isinstance(message["id"], int):
            connection.respond(400, b"")
        else:
            fault = self._fault_of(session, message)
            kind = fault.kind if fault is not None else "ok"
            is_busy = bool(self.setting.busy and session is not None and self._busy[place, session.id])
            if is_busy:
                kind = f"status {self.setting.busy}"
            if own is not None:
                own.outcome = kind
            self.note("upstream: asked {} {}: {}", method, message.get("params"), kind)
            waits = session is None or method == "tasks/result"  # for as long as the task works
            busy = (place, "") if waits or session is None or is_busy else (place, session.id)  # what it refuses ends
            self._busy[busy] += 1
            try:
                await self._carry_out(connection, session, message, kind)
            finally:
                self._busy[busy] -= 1
        if own is not None:
            own.ended = own.ended or self.moments.now()

    def _serve_other(self, connection: "Connection", request: Request, session: ServerSession) -> None:
        """Another method than POST."""
        fault = self._fault_of(session, {"method": request.method})
        kind = "" if fault is None else fault.kind
        has_route = request.method in ("GET", "DELETE") and not self.setting.lacks
        default = 0 if has_route else 200 if request.method == "HEAD" else self.setting.lacks or 405
        if status := wrong(kind)[0] or default:
            session.disturb(self.loop.time())
            self._refuse(session, status)
            connection.respond(status, b"")
        elif request.method == "DELETE":
            self.end(session)
            connection.respond(200, b"")
        else:
            connection.extra += _ENCODED if kind == "encoded" else b""
            connection.begin_stream()
            last = request.headers.get("last-event-id", "")
            if kept := self.kept.pop((connection.place, last), b""):
                connection.send(kept, half=False)
            elif last:  # another server's
                connection.send(b"", half=False, event_id=last)
            else:
                self.streams[session].insert(0, connection)

    async def _carry_out(
        self, connection: "Connection", session: ServerSession | None, message: Json, fault: str
    ) -> None:
        before, after = self._delays_of(message)
        came_at, is_own = self.loop.time(), connection.own is not None
        if fault == "unheard":
            connection.cut()
            return
        if fault == "encoded":
            connection.extra += _ENCODED
        if fault in ("gzip", "short"):
            connection.pack(ends=fault == "gzip")
        status, code = wrong(fault)
        if self.setting.streams and session is not None and not status:
            connection.begin_stream()
            self.streams[session].append(connection)
        await _ticks(before)
        if status:
            says = is_own and (code is not None or "cursor" in message["params"])
            if not (connection.is_left or (status == 404 and says)):  # else nobody hears it, or it tells of no session
                self._refuse(session, status)
            connection.extra += self._retry_after(fault)
            connection.respond(
                status, b"" if code is None or status == 204 else _error(message["id"], Refusal(code, "oh no"))
            )
            return
        try:
            if fault == "expired":
                raise Refusal(INVALID_PARAMS, "Invalid cursor")
            if fault == "error" or code is not None:
                raise Refusal(-32603 if code is None else code, "oh no")
            result = await self._result(session, message, connection)
            if fault == "empty" and not self.setting.empty and b'"nextCursor"' not in result:
                result = result[:-1] + _EMPTY + b"}"
            message_id = {"text id": str(message["id"]), "other id": "other"}.get(fault, message["id"])
            body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (msgspec.json.encode(message_id), result)
            self._accept(session, message["method"], came_at, is_own)
        except Refusal as refusal:
            if message["method"] == "tasks/get" and refusal.code == INVALID_PARAMS:
                self._accept(session, message["method"], came_at, is_own)  # it says that there is no such task
            body = _error(None if fault.endswith("null") else message["id"], refusal)
        self.note("upstream: to {} {} it answers {}", message["method"], message.get("params"), Brief(body))
        await _ticks(after)
        if fault == "hang":
            await asyncio.sleep(HANG_S)
        if is_own and connection.own is not None and (connection.is_left or fault in DROPS):
            connection.own.shown = ()
        if fault == "drop":
            connection.cut()
        elif fault == "resume" and connection.is_streaming:
            event_id = str(len(self.notified) + len(self.raws) + len(self.kept))
            self.kept[connection.place, event_id] = body
            connection.send(b"", half=False, event_id=event_id)
        elif fault == "stall":
            await connection.stall(body)
        else:
            if fault in _LACKS and is_own and session is not None:
                self._lack(session, _LACKS[fault])
            connection.send(self._odd(fault, body), half=fault == "half")
            if connection.own is not None and self.is_lost(connection.own):
                await asyncio.sleep(HANG_S)

    def _lack(self, session: ServerSession, shown: bytes) -> None:
        """The gateway was given what is nearly JSON: only now it may show tasks as they are written anew."""
        for truth in session.truths:
            for state in truth.states:
                self.raws[state.raw.replace(EXACT, shown)] = (session, truth, state)

    @staticmethod
    def _odd(fault: str, body: bytes) -> bytes:
        match fault:
            case "large":
                return _large(body)
            case "nan":
                return body.replace(EXACT, _NO_NUMBERS[crc32(body) % len(_NO_NUMBERS)])
            case "latin":
                return body.replace(EXACT, b'"\xff"')[:-1] + b',"odd":"\xff"}'
            case "bom":
                return b"\xef\xbb\xbf" + body
            case "illegible":
                return body[:-1] + b',"odd":"\x01"}'
        return body

    def _retry_after(self, fault: str) -> bytes:
        """The fields that say how long a request is put off."""
        _, how, seconds = (*fault.split(), "", "")[:3]
        if how == "at":
            now, form = self.clock() // 1_000_000, "%a, %d %b %Y %H:%M:%S GMT"
            given = [time.strftime(form, time.gmtime(at)).encode() for at in (now, now + int(seconds))]
            return b"Date: %b\r\nRetry-After: %b\r\n" % tuple(given)
        return b"Retry-After: %b\r\n" % seconds.encode() if how else b""

    def _refuse(self, session: ServerSession | None, status: int) -> None:
        """A refusal goes out."""
        assert session is not None
        if status in (401, 403, 404) and session.is_indexed and not self.setting.evicts:
            session.refused = self.loop.time()

    def _accept(self, session: ServerSession | None, method: str, came_at: float, is_own: bool) -> None:
        if session is not None and is_own:
            session.is_indexed = True
            if session.refused is not None and came_at >= session.refused + 2 * WIRE_S:
                session.refused = None

    def _note_own(self, connection: "Connection", session: ServerSession, message: Json, by: int) -> Own:
        own = Own(connection, session, message["id"], message["method"], message["params"], self.moments.now(), by)
        waiting = (o for o in self.own if o.ended is None and not o.connection.is_left)
        same = [o for o in waiting if o.session is session and o.method == own.method and o.id != own.id]
        once = session.ended is None and not connection.is_left and not self.setting.evicts
        if self.asks_once and once and any(o.params == own.params for o in same):
            self.fail(Violation("asked twice", f"{own.method} {own.params} is being asked already"))
        self.own.append(own)
        return own

    def _fault_of(self, session: ServerSession | None, message: Json) -> Fault | None:
        for at, (of, fault) in enumerate(self.faults):
            if of is session and self._fits(fault, message):
                of.disturb(self.loop.time())
                whose = "the gateway's" if is_own(message.get("id")) else "a client's"
                self.met[_STATUS_AND_CODE.sub(r"\1 and a code", fault.kind), whose] += 1
                self.met["any of these", f"{whose} {message['method']}"] += 1
                return self.faults.pop(at)[1]
        return None

    def _fits(self, fault: Fault, message: Json) -> bool:
        method, kind, is_gateways = message["method"], fault.kind, is_own(message.get("id"))
        cursor = message["params"].get("cursor") if method == "tasks/list" else None
        status, code = wrong(kind)
        if fault.method not in (method, None if "id" in message else ...):
            return False
        is_of_own = kind in PUT_OFF or kind.endswith("null") or (kind.endswith("id") and not self.finds_by_exchange)
        if (kind in _OF_CLIENTS and is_gateways) or (is_of_own and not is_gateways):
            return False
        if (kind == "expired" or kind.startswith("stale")) and cursor is None:
            return False
        if method == "tasks/get" and is_gateways and code in DENIALS:  # two in a row about a task are believed (6.12)
            self._denied ^= {message["params"]["taskId"]}
            return message["params"]["taskId"] in self._denied
        if cursor == "" and (status or code is not None or kind == "expired"):  # likewise (6.11)
            self._denies_empty = not self._denies_empty
            return self._denies_empty
        return True

    def _delays_of(self, message: Json) -> tuple[int, int]:
        """Each request has its own, whatever others are asked before it."""
        if not self.setting.delays:
            return 0, 0
        asked = f"{message['method']} {message.get('params')}"
        self._times_asked[asked] += 1
        key = f"{asked} {self._times_asked[asked]}"
        return self.setting.delays[crc32(key.encode()) % len(self.setting.delays)]

    # ---- methods ----

    async def _result(self, session: ServerSession | None, message: Json, connection: "Connection") -> bytes:
        method, params = message["method"], message.get("params", {})
        if method == "initialize":
            return self._initialize(params, connection)
        assert session is not None
        self._expire(session)
        if session.ended is not None:
            raise Refusal(-32603, "The session has ended")
        if method in ("ping", "tools/list"):
            return b"{}"
        if method == "tasks/list":
            return self._list(session, params.get("cursor"), connection.own)
        if "task" in params:
            truth = self.create(session, method, params["task"].get("ttl"))
            truth.asked_for = True
            return b'{"task":%b}' % truth.state.raw
        if method == "tasks/get" and not self.setting.knows_get:
            raise Refusal(-32601, "Method not found")
        found = session.find(params["taskId"])
        if found is None or found.gone is not None:
            raise Refusal(INVALID_PARAMS, "Task not found", len(session.lives(params["taskId"])))
        if method == "tasks/get":
            if connection.own is not None:
                connection.own.shown = (found,)
            return self._with_meta(found.state.raw)
        if method == "tasks/cancel":
            if not found.is_live:
                raise Refusal(INVALID_PARAMS, "Cannot cancel a task that has ended")
            self.update(session, found, "cancelled")
            return self._with_meta(found.state.raw)
        assert method == "tasks/result"
        while found.is_live:
            await _ticks(8)
        if found.gone is not None:
            lives = session.lives(found.id)
            raise Refusal(INVALID_PARAMS, "Task not found", lives.index(found) + 1)
        if found.state.status != "completed":
            raise Refusal(INVALID_PARAMS, "The task has failed")
        related = {"taskId": found.id}
        meta = {"io.modelcontextprotocol/related-task": related, "createdAt": instant(found.created)}
        return msgspec.json.encode({"content": [], "_meta": meta})

    def _with_meta(self, raw: bytes) -> bytes:
        return raw[:-1] + b',"_meta":{"a":1}}' if self.setting.with_meta else raw

    def _initialize(self, params: Json, connection: "Connection") -> bytes:
        number = params["_meta"]["session"]
        session_id = f"session-{number}-{next(self._session_numbers)}"
        before = self.latest.get(number)
        is_here = connection.place == self.place
        if params["_meta"]["goes_on"] and is_here and before is not None and before.ended is None:
            self._go_on(before, session_id)
        else:
            for n in (0, 1) if self.setting.shared else (number,):
                self._open(ServerSession(session_id, n, self.authorizations[n], place=connection.place))
        for session in self.sessions.values():
            session.is_initialized |= (session.place, session.id) == (connection.place, session_id)
        connection.extra += b"Mcp-Session-Id: %b\r\n" % session_id.encode()
        requests: dict[str, Json] = {}
        for name in method_names(self.setting.methods):
            group, _, verb = name.partition("/")
            requests.setdefault(group, {})[verb] = {}
        capabilities = {"tasks": {"list": {}, "cancel": {}, "requests": requests}}
        return msgspec.json.encode({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {}})

    def _list(self, session: ServerSession, cursor: str | None, own: Own | None) -> bytes:
        setting = self.setting
        if cursor == "":
            match setting.empty:
                case "restarts":
                    cursor = None
                case "page":
                    cursor = f"{self._shuffles}|{'-' * (setting.order == 'prepends')}1"
                case "again":
                    return b'{"tasks":[]%b}' % _EMPTY
                case _:
                    raise Refusal(INVALID_PARAMS, "Invalid cursor")
        elif cursor is None:
            self._shuffles += 1
        shuffle = cursor.partition("|")[0] if cursor is not None else str(self._shuffles)
        rows: list[tuple[tuple[int, ...], Truth | None]] = []
        if setting.order != "nothing":
            rows = [(self._place(session, truth, shuffle), truth) for truth in session.alive()]
        if setting.order == "ids":
            rows += [((crc32(b"%d" % number), -1), None) for number in range(_STRANGERS)]
        rows.sort(key=itemgetter(0))
        start = 0
        if cursor is not None:
            last = cursor.partition("|")[2]
            if setting.cursors == "offset":
                start = int(last)
            elif setting.cursors == "last":
                ids = [truth and truth.id for _, truth in rows]
                if last not in ids:
                    raise Refusal(INVALID_PARAMS, "Invalid cursor")
                start = ids.index(last) + 1
            else:
                start = sum(place <= tuple(map(int, last.split(","))) for place, _ in rows)
        cut = rows[start : start + setting.per_page]
        page = [truth for _, truth in cut if truth is not None]
        if own is not None:
            own.shown, own.crawl, own.read = tuple(page), shuffle, self.moments.now()
        following = b""
        if len(cut) == setting.per_page and (setting.always_next or len(rows) > start + len(cut)):
            text = {
                "offset": lambda: str(start + len(cut)),
                "last": lambda: page[-1].id,
                "place": lambda: ",".join(map(str, cut[-1][0])),
            }[setting.cursors]()
            following = b',"nextCursor":%b' % msgspec.json.encode(f"{shuffle}|{text}")
            if setting.empty == "page" and setting.order in ("appends", "prepends") and text in ("1", "-1"):
                following = _EMPTY
        elif setting.empty not in ("", "page"):
            following = _EMPTY
        return b'{"tasks":[%b]%b}' % (b",".join(t.state.raw for t in page), following)

    def _place(self, session: ServerSession, truth: Truth, shuffle: str) -> tuple[int, ...]:
        number = session.truths.index(truth)
        match self.setting.order:
            case "appends":
                return (number,)
            case "prepends":
                return (-number,)
            case "updated":
                return (-truth.state.updated, -number)
            case "ids":
                return (crc32(truth.id.encode()), number)
        return (crc32(f"{shuffle} {truth.id}".encode()), number)


class Connection(Served):
    is_shared = False  # answers to several requests come on it

    def __init__(self, upstream: Upstream, place: int = 0) -> None:
        super().__init__()
        self._upstream = upstream
        self.place = place
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_streaming = False
        self.own: Own | None = None
        self.extra = b""  # header fields of the response
        self._packer: Any = None

    @property
    def lost(self) -> bool:
        """Whether the peer has gone."""
        return self._transport is None

    @property
    def is_left(self) -> bool:
        """Whether the peer has gone, or has cut the connection and this end does not know of it yet."""
        return self._transport is None or self._transport.peer.is_closing()

    @property
    def is_idle(self) -> bool:
        return not self.is_streaming and (self._task is None or self._task.done())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._transport = transport
        self._upstream.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._upstream.connections.remove(self)
        self._stop_streaming()
        if self.own is not None:
            self.own.ended = self.own.ended or self._upstream.moments.now()

    def asked(self, head: bytes, body: bytes) -> None:
        self.own, self.extra, self._packer = None, b"", None
        request = Request(head.partition(b" ")[0].decode(), fields_of(head), body)
        self._task = self._upstream.loop.create_task(self._upstream.serve(self, request))

    def pack(self, ends: bool) -> None:
        """The response is gzip. `ends`: its end is there."""
        self.extra, self._packer = self.extra + _GZIP, zlib.compressobj(wbits=31)
        self._last_flush = zlib.Z_FINISH if ends else zlib.Z_SYNC_FLUSH

    def _packed(self, data: bytes, is_last: bool = True) -> bytes:
        if self._packer is None:
            return data
        flush = self._last_flush if is_last else zlib.Z_SYNC_FLUSH
        packed: bytes = self._packer.compress(data) + self._packer.flush(flush)
        return packed

    def send(self, message: bytes, half: bool, event_id: str = "") -> None:
        """Send a response message, or half of it, as the response or as the last event of the stream."""
        if not self.is_streaming:
            self.respond(200, message, half)
            return
        self.event(message, half, event_id, is_last=True)
        self._write(b"0\r\n\r\n")
        self._stop_streaming()

    async def stall(self, message: bytes) -> None:
        """Send half of a response message, and the rest after a while."""
        if self.is_streaming:
            raw = b"event: message\ndata: %b\n\n" % message
        else:
            raw = message
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n%b\r\n"
            self._write(head % self.extra)
        half, rest = raw[: len(raw) // 2], raw[len(raw) // 2 :]
        self._stop_streaming()  # nothing else goes into the middle of it
        self._write(b"%x\r\n%b\r\n" % (len(half), half))
        await asyncio.sleep(STALL_S)
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))

    def respond(self, status: int, body: bytes, half: bool = False) -> None:
        head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
        body = self._packed(body)
        sent = body[: len(body) // 2] if half else body
        self._write(head % (status, _REASONS.get(status, b"Odd"), len(body), self.extra) + sent)
        if half:
            self.cut()

    def begin_stream(self) -> None:
        self.is_streaming = True
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%b\r\n"
        self._write(head % self.extra)

    def event(self, data: bytes, half: bool = False, event_id: str = "", is_last: bool = False) -> None:
        raw = b"id: %b\ndata: \n\n" % event_id.encode() if event_id else b"event: message\ndata: %b\n\n" % data
        raw = self._packed(raw[: len(raw) // 2] if half else raw, is_last)
        self._write(b"%x\r\n%b\r\n" % (len(raw), raw))
        if half:
            self.cut()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _stop_streaming(self) -> None:
        self.is_streaming = False
        for streams in self._upstream.streams.values():
            if self in streams:
                streams.remove(self)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def authorization(number: int) -> str:
    """The header field by which the server knows a client."""
    return f"Bearer {number}"


def wrong(kind: str) -> tuple[int, int | None]:
    """The status, or 0, and the code of the error, if there is one, of an answer that is wrong once."""
    what, *rest = kind.split() or [""]
    if what.isdigit():
        return int(what), None
    numbers = [int(one) for one in rest if one != "null"] if what in ("code", "status", "stale") else []
    codes = [one for one in numbers if one < 200]
    return next((one for one in numbers if one >= 200), 0), codes[0] if codes else None


def _error(message_id: Any, refusal: Refusal) -> bytes:
    error = {"code": refusal.code, "message": str(refusal), **refusal.data}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message_id, "error": error})


def _updated(at: int) -> bytes:
    return b'"lastUpdatedAt":"%b"' % instant(at).encode()


def _large(message: bytes) -> bytes:
    return message + b" " * READ_BYTES_MAX


async def _ticks(count_: int) -> None:
    if count_:
        await asyncio.sleep(count_ * TICK_S)
