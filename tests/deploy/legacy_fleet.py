"""The server behind a fleet, and what each replica must know of it.

In: requests of replicas, whose `Host` says which gateway sent them. Out: answers; and by caller and gateway a `View`.
Always: one server, on the running loop, for all sessions. Half of them list their tasks, `PER_PAGE` a page; half list
nothing, as FastMCP's do. A task belongs to a session and a token. Nothing is ever deleted.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from uuid import uuid4

from tests.model.truth import BEFORE_ALL, Moment, Moments, ServerSession, State, Truth, task_id
from tests.relay.messages import Json, answer, dumps, fault, initialized, result
from tests.upstream import Cheap, fields_of

PER_PAGE: Final = 4
CAPABILITY: Final[Json] = {
    "list": {},
    "cancel": {},
    "requests": {"tools": {"call": {}}, "prompts": {"get": {}}, "resources": {"read": {}}},
}


@dataclass(eq=False)
class Told:
    """When the test saw in the store that a task is there, and that its method is known; None for never."""

    there: Moment | None = None
    method: Moment | None = None


@dataclass(eq=False)
class View:
    """What one gateway must know of a caller's tasks: of each at least that state. `since` is before it knew any."""

    since: Moment
    known: dict[Truth, int] = field(default_factory=dict)
    methods: set[Truth] = field(default_factory=set)
    lists: int = 0  # that were begun


@dataclass(eq=False)
class Caller(ServerSession):
    """A session as one identity sees it, and its request under way."""

    lists: bool = True
    views: dict[str, View] = field(default_factory=dict)  # by gateway
    homes: list[str] = field(default_factory=list)  # the gateways that may have answered last, the likeliest first
    came: Moment = BEFORE_ALL
    seen: list[str] = field(default_factory=list)  # the gateways that asked the server since then
    gained: list[tuple[View, Truth, int, bool]] = field(default_factory=list)  # what they know if it is answered

    def __str__(self) -> str:
        views = {name: {t.id: n for t, n in view.known.items()} for name, view in self.views.items()}
        kind = "lists" if self.lists else "lists nothing"
        return f"{self.id}, {self.authorization}, {kind}: seen {self.seen}, at {self.homes}, which know {views}"

    def begin(self, came: Moment) -> None:
        """A request is sent."""
        self.came, self.seen, self.gained = came, [], []

    def answered(self, moving: bool) -> None:
        """The request was answered: what passed has passed. `moving`: it may come back to where it was before."""
        for view, truth, number, with_method in self.gained:
            view.known[truth] = max(view.known.get(truth, 0), number)
            if with_method:
                view.methods.add(truth)
        for gateway in self.seen:
            self.homes = [gateway, *(home for home in self.homes if moving and home != gateway)]


class FleetServer:
    """The server. `wrong` has what no gateway may ask."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.moments = Moments(self.loop)
        self.raws: dict[bytes, tuple[ServerSession, Truth, State]] = {}
        self.own: list[Any] = []  # not kept
        self.callers: dict[tuple[str, str], Caller] = {}
        self.told: dict[Truth, Told] = {}
        self.by_id: dict[str, Truth] = {}
        self.wrong: list[str] = []
        self.keeps_nothing = False  # max_age is 0: the store is read for each query
        self._numbers = count()

    async def start(self) -> int:
        """Take connections; the port."""
        self._server = await self.loop.create_server(lambda: Cheap(self.response), "127.0.0.1", 0, backlog=1024)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Take no more."""
        self._server.close()

    def add(self, session: str, token: str, lists: bool) -> Caller:
        """Another caller."""
        caller = Caller(session, len(self.callers), token, lists=lists)
        self.callers[session, token] = caller
        return caller

    def forget_told(self) -> None:
        """The store has lost all that it had."""
        self.told = {truth: Told() for truth in self.told}

    def change(self, caller: Caller, truth: Truth, status: str) -> None:
        """A task changes."""
        now = self.moments.now()
        truth.change(status, time.time_ns() // 1000, now, 1)
        self.raws[truth.state.raw] = (caller, truth, truth.state)

    # ---- requests ----

    def response(self, head: bytes, body: bytes) -> bytes:
        """The response to a request."""
        message = json.loads(body)
        if message["method"] == "initialize":
            said = {**initialized(), "capabilities": {"tasks": CAPABILITY}}
            return answer(result(message["id"], said), b"Mcp-Session-Id: " + uuid4().hex.encode())
        fields = fields_of(head)
        gateway = fields["host"]
        caller = self.callers[fields["mcp-session-id"], fields["authorization"]]
        view = caller.views.setdefault(gateway, View(caller.came))
        caller.seen.append(gateway)
        given = message["params"]
        if message["method"] == "tasks/list":
            return self._list(caller, view, message["id"], given.get("cursor"))
        if "task" in given:
            truth = self._make(caller, message["method"])
            caller.gained.append((view, truth, 0, True))
            return _answered(message["id"], b'{"task":%b}' % truth.state.raw)
        asked = caller.find(given["taskId"])
        if asked is None:
            self.wrong.append(f"{gateway} asks {message} in the name of {caller.authorization} in {caller.id}")
            return answer(fault(message["id"], -32602, "no such task"))
        if message["method"] == "tasks/cancel":
            if not asked.is_live:
                return answer(fault(message["id"], -32602, "it has ended"))
            self.change(caller, asked, "cancelled")
        caller.gained.append((view, asked, asked.state.number, False))
        return _answered(message["id"], asked.state.raw)

    def _make(self, caller: Caller, method: str) -> Truth:
        number = next(self._numbers)
        truth = Truth(task_id(number), method, time.time_ns() // 1000, self.moments.now(), None, None)
        truth.asked_for = True
        self.change(caller, truth, "working")
        caller.truths.append(truth)
        self.by_id[truth.id] = truth
        self.told[truth] = Told()
        return truth

    def _list(self, caller: Caller, view: View, request_id: object, cursor: str | None) -> bytes:
        if cursor is None:
            view.lists += 1
            until = caller.came if self.keeps_nothing else view.since
            for truth in caller.truths:
                told = self.told[truth]
                there = told.there is not None and told.there < until
                if there or caller.lists:
                    with_method = told.method is not None and told.method < until
                    # What no list shows was perhaps asked for by an earlier query, and is as it was then.
                    is_now = caller.lists or view.since is caller.came
                    caller.gained.append((view, truth, truth.state.number if is_now else 0, with_method))
        start = int(cursor or 0)
        shown = caller.truths[start : start + PER_PAGE] if caller.lists else []
        more = b',"nextCursor":"%d"' % (start + PER_PAGE) if shown and caller.truths[start + PER_PAGE :] else b""
        return _answered(request_id, b'{"tasks":[%b]%b}' % (b",".join(truth.state.raw for truth in shown), more))


def _answered(request_id: object, value: bytes) -> bytes:
    return answer(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (dumps(request_id), value))
