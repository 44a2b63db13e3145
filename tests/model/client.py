"""The clients of the gateway: one for each session, which does many things at once, and opens another if it has gone.

Answers to queries go to the oracle, everything else that passes goes to `truth.py`.
"""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec

from tests.model import history as h
from tests.model import upstream
from tests.model.oracle import Asked, Criteria, Oracle, Outcome, Place
from tests.model.truth import ABSENT, GONE, Brief, Moment, Moments, ServerSession, Truth, Violation, instant
from tests.model.upstream import NO_CREDENTIALS, READ_BYTES_MAX, Upstream, digest
from tests.model.virtual import TICK_S, WIRE_S, VirtualLoop
from tests.parsed import Parsed

Json: TypeAlias = dict[str, Any]

GATEWAY_PORT: Final = 8080
_BOMB_BYTES: Final = 100_000
_ATTEMPTS_MAX: Final = 3  # to open a session: the upstream may close an idle connection at that moment
RESULT_PATIENCE_TICKS: Final = 1280  # of a client that waits for a task to end
PATIENCE_TICKS: Final = 64  # of a client that asks for something else


class _Message(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(b"")
    method: str | None = None
    params: Json = {}
    result: msgspec.Raw = msgspec.Raw(b"")
    error: Json | None = None
    unread: bool = False  # by the gateway


class Exchange(Parsed):
    """One request on a connection of its own. `on_message` gets each message the moment it is there."""

    def __init__(self, on_message: Callable[["_Message"], None]) -> None:
        super().__init__()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.left = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_message = on_message
        self._body = b""
        self.event_id = ""  # the last that came
        self._unpacker: Any = None
        self._is_lost = False  # the gateway reads no more of it
        self._streams = False
        self._transport: asyncio.Transport | None = None

    def leave(self) -> None:
        """The client goes away, unless all has come."""
        if not self.complete and self._transport is not None:
            self.left = True
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if not self.left:
            super().data_received(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self._streams = self.headers.get("content-type") == "text/event-stream"
        if self.headers.get("content-encoding") == "gzip":
            self._unpacker = zlib.decompressobj(wbits=31)

    def on_body(self, data: bytes) -> None:
        self._body += data if self._unpacker is None else self._unpacker.decompress(data)
        while self._streams and b"\n\n" in self._body:
            event, _, self._body = self._body.partition(b"\n\n")
            named, _, message = event.partition(b"data: ")
            if named.startswith(b"id: "):
                self.event_id = named[4:].decode().strip()
            if message:
                self._read(message)

    def on_message_complete(self) -> None:
        self.complete = True
        if self._body.startswith((b"{", b"\xef")):
            self._read(self._body)
        if self._transport is not None:
            self._transport.close()
        if not self.done.done():
            self.done.set_result(None)

    def _read(self, data: bytes) -> None:
        try:
            message = msgspec.json.decode(plain(data), type=_Message)
        except msgspec.MsgspecError as error:
            if not self.done.done():
                self.done.set_exception(Violation("content", f"no message, {error}: {data!r}"))
            return
        coding = self.headers.get("content-encoding", "")
        short = self._unpacker is not None and not (self._streams or self._unpacker.eof)
        is_large = len(data) > READ_BYTES_MAX
        self._is_lost |= is_large and self._unpacker is not None  # what packs so much in so little is unpacked no more
        message.unread = coding == "secret" or short or is_large or self._is_lost or b"\x01" in data
        self._on_message(message)


def plain(data: bytes) -> bytes:
    """JSON as a lenient reader has it."""
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\xff", b"?").replace(b"\x01", b"?")
    for odd in (b"-Infinity", b"Infinity", b"NaN"):
        data = data.replace(b'"exact":' + odd, b'"exact":null')
    return data


def formed(body: bytes, form: str) -> tuple[bytes, list[bytes]]:
    media = b"Content-Type: application/" + (b"json-rpc" if form == "media" else b"json")
    match form:
        case "large":
            return body + b" " * READ_BYTES_MAX, [media]
        case "gzip":
            return gzip.compress(body), [media, b"Content-Encoding: gzip"]
        case "bomb":
            return gzip.compress(body + b" " * _BOMB_BYTES), [media, b"Content-Encoding: gzip"]
        case "coding":
            return body[::-1], [media, b"Content-Encoding: secret"]
    return body, [media]


@dataclass(eq=False)
class Client:
    _number: int
    _setting: h.Setting
    _upstream: Upstream
    _oracle: Oracle
    _moments: Moments
    _note: Callable[..., None]
    _spawn: Callable[[Coroutine[Any, Any, object]], None]
    _ids: Iterator[int] = field(default_factory=partial(count, 1))
    _stream: Exchange | None = None
    _initializing: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: ServerSession = field(init=False)
    port: int = GATEWAY_PORT

    def __post_init__(self) -> None:
        self._written = count(self._number)

    # ---- what a client does ----

    async def initialize(self, goes_on: bool = False) -> None:
        """Open a session, or take part in another identity's. `goes_on`: it is a new one for the same tasks."""
        latest = self._upstream.latest.get(self._number)
        if latest is not None and latest.ended is None and not goes_on:
            self.session = latest
            return
        meta = {"session": self._number, "goes_on": goes_on}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "_meta": meta}
        for _ in range(_ATTEMPTS_MAX):
            exchange = await self._send(None, {"id": self._id(), "method": "initialize", "params": params})
            if "mcp-session-id" in exchange.headers:
                self.session = self._upstream.latest[self._number]
                if self.session.is_initialized:
                    self.session.opened = self._moments.now()
                return
        raise Violation("unanswered", f"initialize: {exchange.status}")

    async def act(self, event: h.Event) -> None:
        if self._setting.renews and self.session.ended is None:
            self._upstream.renew(self._number, cookie=True)
            self.session = self._upstream.latest[self._number]
        match event:
            case h.Create():
                task = {} if event.ttl is None else {"ttl": event.ttl}
                params = {"name": "work", "task": task}
                method = h.METHODS[event.method % self._setting.methods]
                await self._relay(method, params, event.leave, event.form)
            case h.Get():
                truth = None if event.which == h.NOBODY else self.session.pick(event.which)
                patience = RESULT_PATIENCE_TICKS if event.method == "tasks/result" else None
                params = {"taskId": "nobody" if truth is None else truth.id}
                await self._relay(event.method, params, patience, event.form)
            case h.Page():
                await self._page(event.pages, event.form)
            case h.Query():
                await self._query(event)
            case h.Restart():
                session = self.session
                await self._lost(session, await self._exchange(session, b"DELETE"))
            case h.Renew(restarts=True):
                await self._start_again()
            case h.Renew():
                self._upstream.renew(self._number, event.cookie)
                self.session = self._upstream.latest[self._number]
            case h.Other():
                await self._ask_other(event.method)
            case h.Nobody() if self._setting.owns:
                await self._ask_as_nobody(NO_CREDENTIALS[event.one % 5], NO_CREDENTIALS[event.other % 5])
            case h.Flood():
                await asyncio.gather(*(self._guess(self.session, number) for number in range(event.count)))

    def toggle_stream(self) -> None:
        if self._stream is not None and not self._stream.done.done():
            self.session.disturb(self._loop.time())
            self._stream.leave()
            self._stream = None
            return
        self._stream = Exchange(partial(self._deliver, self.session, None))
        self._spawn(self._write(self.session, self._stream, b"GET", b""))

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream.leave()

    async def _page(self, pages: int, form: str) -> None:
        cursor: str | None = None
        for _ in range(pages):
            answer = await self._relay("tasks/list", {} if cursor is None else {"cursor": cursor}, form=form)
            cursor = (
                None if answer is None or not answer.result else msgspec.json.decode(answer.result).get("nextCursor")
            )
            if cursor is None:
                return

    async def _ask_other(self, method: str) -> None:
        """Something else than tasks: a method of HTTP, or of MCP."""
        if not method.isupper():
            numbered = {} if method.startswith("notifications/") else {"id": self._id()}
            await self._send(self.session, {"method": method, **numbered, "params": {}})
            return
        await self._exchange(self.session, method.encode(), leave=PATIENCE_TICKS)

    async def _start_again(self) -> None:
        """Go on in a new session, with a stream if there was one; the old one is left as it is."""
        async with self._initializing:
            await self.initialize(goes_on=True)
        if self._stream is not None and not self._stream.done.done():
            self.toggle_stream()
            self.toggle_stream()

    async def _guess(self, session: ServerSession, number: int) -> None:
        """Another asks for a filtered list in the session, with a token that the upstream does not know."""
        message = {"id": f"guess-{number}", "method": "tasks/list", "params": {"order": "asc"}}
        exchange = await self._send(session, message, who=f"Bearer guess-{number}")
        if exchange.status < 400:
            raise Violation("isolation", f"{exchange.status} for a caller whom the upstream does not know")

    async def _ask_as_nobody(self, *whose: str) -> None:
        """Callers with empty credentials make a task each. Nobody has it (DESIGN 8.16)."""
        answers: list[_Message] = []

        async def ask(who: str, method: str, params: Json) -> None:
            await self._send(None, {"id": self._id(), "method": method, "params": params}, answers.append, who=who)

        for who in whose:
            await ask(who, "tools/call", {"name": "work", "task": {}})
        made = [msgspec.json.decode(answer.result)["task"]["taskId"] for answer in answers if answer.result]
        answers.clear()
        for who in whose:
            for task_id in made:
                await ask(who, "tasks/get", {"taskId": task_id})
            for params in ({}, {"order": "asc"}, {"taskIds": made}):
                await ask(who, "tasks/list", params)
        for answer in answers:
            if answer.method is None and answer.error is None:
                raise Violation("isolation", f"a caller without credentials has tasks: {Brief(answer.result)}")

    async def _lost(self, session: ServerSession, exchange: Exchange) -> None:
        """The session is gone, if the response says so: know it, and open another."""
        session.disturb(self._loop.time())
        if session.ended is None or exchange.status not in (200, 404):
            return
        at = self._moments.now()
        for truth in session.truths:
            truth.pass_through(GONE, at, session)
        async with self._initializing:
            if self.session is session:
                await self.initialize()

    # ---- queries ----

    async def _query(self, event: h.Query) -> None:
        """Read a filtered list, page by page."""
        session = self.session
        criteria, params = self._criteria(session, event)
        earlier: set[Truth] = set()
        after: Place | None = None
        cursor: str | None = None
        for _ in range(event.pages):
            asked = Asked(session, criteria, earlier, after)
            sent = params if cursor is None else {"cursor": cursor, **(params if event.nested else {})}
            outcome = await self._ask(asked, sent, event)
            self._note("client {}: asked for {}: {}", self._number, sent, outcome)
            seen = self._oracle.ended(asked, outcome)
            if outcome is not None and outcome.status == 404:
                async with self._initializing:
                    if self.session is session:
                        await self.initialize()
            cursor, after = seen.cursor, seen.last
            if cursor is None:
                return
            if event.pause:
                await asyncio.sleep(event.pause * TICK_S)

    async def _ask(self, asked: Asked, params: Json, event: h.Query) -> Outcome | None:
        """One page of a filtered list; None if the client left before it came."""
        request_id = self._id()
        answers: list[tuple[Moment, _Message]] = []

        def on_message(message: _Message) -> None:
            if message.method is None:
                answers.append((self._moments.now(), message))
            else:
                self._deliver(asked.session, None, message)

        asked.sent, asked.port = self._moments.now(), self.port
        exchange = Exchange(on_message)
        body = {"jsonrpc": "2.0", "id": request_id, "method": "tasks/list", "params": params}
        await self._write(asked.session, exchange, b"POST", msgspec.json.encode(body))
        self._loop.call_later(WIRE_S, self._came, asked)
        if event.leave is not None:
            self._loop.call_later(event.leave * TICK_S, exchange.leave)
        if event.cancel is not None:
            self._loop.call_later(event.cancel * TICK_S, self._cancel, asked, exchange, request_id, self.port)
        await exchange.done
        if exchange.left:
            return None
        if not exchange.complete or not answers:
            return Outcome(exchange.status if exchange.complete else 0, self._moments.now())
        if len(answers) > 1:
            raise Violation("content", f"{len(answers)} answers to one request")
        at, answer = answers[0]
        if bytes(answer.id) != msgspec.json.encode(request_id):
            raise Violation("content", f"an answer to {bytes(answer.id)!r} and not to {request_id}")
        return Outcome(exchange.status, at, bytes(answer.result) or None, answer.error)

    def _came(self, asked: Asked) -> None:
        asked.session = self._upstream.stand_in(asked.session)
        self._oracle.came(asked, self._moments.now())

    def _cancel(self, asked: Asked, exchange: Exchange, request_id: int, port: int) -> None:
        """Cancel a query where it was asked. It is answered all the same."""
        if exchange.done.done():
            return
        asked.session.disturb(self._loop.time())
        self._note("client {}: cancels {}", self._number, request_id)
        message = {"method": "notifications/cancelled", "params": {"requestId": request_id}}
        self._spawn(self._send(asked.session, message, port=port))

    def _criteria(self, session: ServerSession, event: h.Query) -> tuple[Criteria, Json]:
        """The criteria of a query, and its parameters. The order is always given: it makes the list a filtered one."""
        criteria = Criteria(by_created=event.by == "createdAt", ascending=event.ascending)
        given: Json = {"order": "asc" if event.ascending else "desc"}
        if event.by is not None:
            given["orderBy"] = event.by
        if event.status:
            given["status"] = [h.STATUSES[s] for s in event.status]
            criteria.status = frozenset(given["status"])
        if event.ids:
            picked = [None if which == h.NOBODY else session.pick(which) for which in event.ids]
            given["taskIds"] = ["nobody" if truth is None else truth.id for truth in picked]
            criteria.ids = frozenset(given["taskIds"])
        if event.methods:
            given["methods"] = [h.METHODS[m] for m in event.methods]
            criteria.methods = frozenset(given["methods"])
        criteria.created = self._bounds(session, event.created, lambda truth: truth.created)
        criteria.updated = self._bounds(session, event.updated, lambda truth: truth.state.updated)
        for name, bounds in (("created", criteria.created), ("lastUpdated", criteria.updated)):
            for side, bound in zip(("After", "Before"), bounds, strict=True):
                if bound is not None:
                    given[name + side] = instant(bound)
        return criteria, {"filter": given} if event.nested else given

    def _bounds(
        self, session: ServerSession, given: tuple[int | None, int | None], of: Callable[[Truth], int]
    ) -> tuple[int | None, int | None]:
        low, high = (self._bound(session, bound, of) for bound in given)
        return (high, low) if low is not None and high is not None and low > high else (low, high)

    def _bound(self, session: ServerSession, given: int | None, of: Callable[[Truth], int]) -> int | None:
        if given is None:
            return None
        truth = session.pick(given) if given >= 0 else None
        return of(truth) if truth is not None else self._upstream.clock() + round(min(given, 0) * TICK_S * 1_000_000)

    # ---- requests ----

    @property
    def _loop(self) -> VirtualLoop:
        return self._upstream.loop

    def _id(self) -> int:
        return 1 if self._setting.ids_collide else next(self._ids)

    async def _relay(self, method: str, params: Json, leave: int | None = None, form: str = "") -> _Message | None:
        """A request that the gateway passes on, and the response to it."""
        session, port = self.session, self.port
        session.disturb(self._loop.time())
        answers: list[_Message] = []

        def on_message(message: _Message) -> None:
            self._note("client {}: {} {} brought {}", self._number, method, params, Brief(message.result))
            is_unlike = bytes(message.id) != msgspec.json.encode(asked["id"])  # the client takes it all the same
            self._deliver(session, (method, params), message, port, form, resumed or is_unlike)
            if message.method is None:
                answers.append(message)

        asked, resumed = {"id": self._id(), "method": method, "params": params}, False
        exchange = await self._send(session, asked, on_message, leave, form=form)
        if exchange.complete and exchange.event_id and not answers and session.place == self._upstream.place:
            resumed = True
            exchange = await self._exchange(session, b"GET", on_message=on_message, resumes=exchange.event_id)
        session.disturb(self._loop.time())
        if exchange.status == 404:
            await self._lost(session, exchange)
        return answers[0] if answers else None

    async def _send(self, session: ServerSession | None, message: Json, *given: Any, **how: Any) -> Exchange:
        body = msgspec.json.encode({"jsonrpc": "2.0", **message})
        return await self._exchange(session, b"POST", body, *given, **how)

    async def _exchange(
        self,
        session: ServerSession | None,
        method: bytes,
        body: bytes = b"",
        on_message: Callable[[_Message], None] = lambda _: None,
        leave: int | None = None,
        **how: Any,
    ) -> Exchange:
        exchange = Exchange(on_message)
        await self._write(session, exchange, method, body, **how)
        if leave is not None:
            self._loop.call_later(leave * TICK_S, exchange.leave)
        await exchange.done
        return exchange

    async def _write(
        self,
        session: ServerSession | None,
        exchange: Exchange,
        method: bytes,
        body: bytes,
        *,
        who: str | None = None,
        port: int | None = None,
        form: str = "",
        resumes: str = "",
    ) -> None:
        body, media = formed(body, form)
        fields = [b"Host: localhost:%d" % GATEWAY_PORT, b"Content-Length: %d" % len(body)]
        fields.append(b"User-Agent: %d" % (port or self.port))  # so the server knows through which replica it is asked
        authorizations = self._upstream.authorizations
        if who is None:
            who = authorizations[self._number] if session is None else session.authorization
        token, *cookies = who.split(";")
        fields.append(b"Authorization: " + token.encode())
        if (written := next(self._written)) % 2:  # heads that never come again, and heads that are remembered
            fields += [b"CF-Ray: %d" % written, b"Idempotency-Key: %d" % written]
            fields.append(b"Content-Digest: " + digest(body).encode())
        if self._setting.balanced:
            cookies.insert(written % (len(cookies) + 1), f"AWSALB={written}")
        if cookies:
            fields.append(b"Cookie: " + "; ".join(cookies).encode())
        if body:
            fields += [*media, b"Accept: application/json, text/event-stream"]
        if method == b"GET":
            fields += [b"Accept: text/event-stream"]
        if resumes:
            fields += [b"Last-Event-ID: " + resumes.encode()]
        if session is not None:
            fields += [b"Mcp-Session-Id: " + session.id.encode(), b"MCP-Protocol-Version: 2025-11-25"]
        transport, _ = await self._loop.create_connection(lambda: exchange, port=port or self.port)
        transport.write(b"%b /mcp HTTP/1.1\r\n%b\r\n\r\n%b" % (method, b"\r\n".join(fields), body))

    # ---- what passes ----

    def _deliver(
        self,
        session: ServerSession,
        request: tuple[str, Json] | None,
        message: _Message,
        port: int = GATEWAY_PORT,
        form: str = "",
        resumed: bool = False,
    ) -> None:
        """A message other than the answer to a query has come: note what it says of tasks."""
        at = self._moments.now()
        session.disturb(self._loop.time())
        if message.method == upstream.STATUS_NOTIFICATION:
            self._upstream.delivered(message.params["_meta"]["n"])
            self._show(session, message.params, message.unread)
            if len(session.lives(message.params["taskId"])) == 1:  # of an id that was not there it says nothing (6.4)
                self._pass(session, message.params, at, message.unread or not self._oracle.hears_all)
        if request is None or message.method is not None:
            return
        method, params = request
        is_read = not (form or resumed or message.unread)
        if message.error is not None:
            for life in session.lives(params.get("taskId")) if message.error["code"] in upstream.DENIALS else ():
                life.was_denied = True
            if message.error["code"] == upstream.INVALID_PARAMS and "data" in message.error:
                for life in session.lives(params["taskId"])[: message.error["data"]["lives"]]:
                    self._oracle.denied(life, at, session, port, is_read)
            return
        if method == "tasks/result":
            meta = msgspec.json.decode(message.result)["_meta"]
            ended = session.find(params["taskId"], meta["createdAt"])
            # What is made elsewhere seems to be made before this was asked for.
            is_behind = self._setting.skew_s < 0 or self._setting.coarse
            if ended is not None and (resumed or is_behind):  # the gateway cannot tell when it was asked for
                for later in session.lives(ended.id):
                    later.may_seem_ended |= later.born > ended.born and (resumed or later.answered is None)
            # That an earlier task of this id has ended is known: the result of a later one says nothing new.
            if ended is not None and session.lives(ended.id) == [ended]:
                told = {"statusMessage": f"state {ended.state.number}", **meta, "taskId": ended.id}
                self._pass(session, told, at, message.unread, is_answer=True)
            return
        result = msgspec.json.decode(message.result)
        for told in result["tasks"] if method == "tasks/list" else [result.get("task", result)]:
            truth = self._pass(session, told, at, message.unread, is_answer=True)
            if truth is not None and "task" in params and is_read:
                truth.answered = at, session

    def _show(self, session: ServerSession, told: Json, unread: bool) -> None:
        """A message shows a task in a state, unless the gateway cannot read it, or it is the result of a task."""
        truth = session.find(told.get("taskId"), told.get("createdAt"))
        if truth is None or unread or "status" not in told:
            return
        later = [one for one in session.lives(truth.id) if one.born > truth.born]
        if truth.shown or not any(one.shown or one.answered for one in later):  # else it is late news of a life before
            truth.shown.append((self._moments.now(), told["status"]))

    def _pass(
        self, session: ServerSession, told: Json, at: Moment, unread: bool, is_answer: bool = False
    ) -> Truth | None:
        truth = session.find(told.get("taskId"), told.get("createdAt"))
        if is_answer:
            self._show(session, told, unread)
        if truth is not None and is_answer and not unread:
            truth.seen.append((at, session))
        # What passes unread is found out by asking, and nobody can ask for a task that was not heard of.
        if truth is not None and not (
            unread and truth.known_before(at, session) == ABSENT and not self._oracle.lists_all
        ):
            truth.pass_through(int(told["statusMessage"].split()[1]), at, session)
        return truth
