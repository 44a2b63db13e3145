"""What really happened: all states of every task of every session, and which of them passed through the gateway.

A moment is a time and a number, so that two events at one time have an order.
"""

import re
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from tests.model.history import METHODS, STATUSES

TERMINAL: Final = frozenset(STATUSES[2:])
ABSENT: Final = -1  # as a state's number: the task is not there yet
GONE: Final = 1_000_000  # the task is no more
EXACT: Final = b"123456789012345678901234567890.10"  # in every task
_TASK: Final = re.compile(r'\{"taskId":"([^"]*)","status":"([^"]*)","statusMessage":"state (\d+)"[^{}]*\}')
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Violation(AssertionError):
    """The gateway broke a rule of `oracle.RULES`."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


class Moment(NamedTuple):
    """When something happened: seconds of the loop's clock, and a number that grows with everything that happens."""

    time: float
    number: int


BEFORE_ALL: Final = Moment(float("-inf"), 0)
AFTER_ALL: Final = Moment(float("inf"), 0)


class Moments:
    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = count(1)

    def now(self) -> Moment:
        return Moment(self._loop.time(), next(self._numbers))


class State(NamedTuple):
    """A state of a task, from a moment on; `updated` is its lastUpdatedAt in microseconds since 1970."""

    number: int
    status: str
    updated: int
    raw: bytes
    since: Moment


@dataclass(eq=False)
class Truth:
    """A task. `known` has what passed through the gateway: the number of a state, when, and in which session."""

    id: str
    method: str
    created: int  # microseconds since 1970, by the upstream's clock
    born: Moment
    ttl_ms: int | None
    expires: float | None  # by the loop's clock
    states: list[State] = field(default_factory=list)
    gone: Moment | None = None
    known: list[tuple[Moment, int, "ServerSession"]] = field(default_factory=list)
    clock: int = 0  # how often the server's clock had been set when it last changed
    asked_for: bool = False  # it was made through the gateway
    answered: "tuple[Moment, ServerSession] | None" = None  # and this is when the client was told so, and where
    seen: "list[tuple[Moment, ServerSession]]" = field(default_factory=list)  # in answers to a client, and where
    shown: list[tuple[Moment, str]] = field(default_factory=list)  # in messages to a client that the gateway could read
    was_denied: bool = False  # an error to a client said so, which was wrong once
    may_seem_ended: bool = False  # the result of an earlier one of its id came on a resumed stream
    place: int = 0  # of its server
    left: Moment = AFTER_ALL  # when the gateway went to another server
    over_said: Moment = AFTER_ALL  # when a notification first said that it has ended, perhaps to the gateway alone
    said_until: int = 0  # the latest `lastUpdatedAt`, a lie or not, of a notification that it has ended

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def name(self) -> tuple[int, str]:
        """What tells it from tasks of other servers, and not from others that have its id."""
        return self.place, self.id

    @property
    def is_live(self) -> bool:
        return self.gone is None and self.state.status not in TERMINAL

    def change(self, status: str, now: int, at: Moment, step: int, clock: int = 0) -> None:
        """A new state, last updated at `now`; later than the one before by `step` at least, by the same clock."""
        number = len(self.states)
        updated = max(now, self.state.updated + step) if self.states and clock == self.clock else now
        self.clock = clock
        members = {
            "taskId": self.id,
            "status": status,
            "statusMessage": f"state {number}",
            "createdAt": instant(self.created),
            "lastUpdatedAt": instant(updated),
            "ttl": self.ttl_ms,
            "pollInterval": 500 + self.place,
        }
        raw = msgspec.json.encode(members)[:-1] + b',"exact":%b}' % EXACT
        self.states.append(State(number, status, updated, raw, at))

    def until(self, state: State) -> Moment | None:
        """When a state ended; None if it has not."""
        return self.states[state.number + 1].since if state.number + 1 < len(self.states) else self.gone

    @property
    def wound_back(self) -> bool:
        """Whether a timestamp of it was earlier than that of an earlier state."""
        return any(later.updated < state.updated for state, later in pairwise(self.states))

    def shows_end_before(self, moment: Moment) -> bool:
        """Whether a client has been shown by then that it has ended."""
        return any(at < moment and status in TERMINAL for at, status in self.shown)

    def pass_through(self, number: int, at: Moment, session: "ServerSession") -> None:
        """A client got to know of a state, or that the task is gone."""
        self.known.append((at, number, session))

    def is_seen_before(self, moment: Moment, session: "ServerSession") -> bool:
        """Whether an answer has shown it to the client of a session, or before its token was renewed, or elsewhere."""
        with_token = (at for at, of in self.seen if of.authorization == session.authorization)
        here = (at for at, of in self.seen if of is session or of in session.relatives)
        return any(at < moment for at in (*with_token, *here))

    def known_before(self, moment: Moment, session: "ServerSession") -> int:
        """The newest state that passed through before a moment; ABSENT if none did."""
        newest = ABSENT
        for at, number, of in self.known:
            of_another = number == GONE and self.gone is None and of is not session  # a 404: here the task may go on
            if number > newest and at < moment and session.has(at, of) and not of_another:
                newest = number
        return newest


@dataclass(eq=False)
class ServerSession:
    """One session of one identity at the upstream, and what can be told of it.

    One that follows another, of which it has the tasks (`Renew`), begins with all that had passed there, if every crawl
    lists that. `disturbed` counts all but queries that the gateway may learn from, `disturbed_at` is when that last
    happened.
    """

    id: str
    number: int
    authorization: str
    truths: list[Truth] = field(default_factory=list)
    began: Moment = BEFORE_ALL  # what passed in others before counts
    opened: Moment = AFTER_ALL  # when a client knew of it; one that shares it may be earlier
    is_initialized: bool = False  # at this server, not only at the one before
    ended: Moment | None = None
    disturbed: int = 0
    disturbed_at: float = float("-inf")
    asking: int = 0  # queries under way
    queries: int = 0  # in all
    is_indexed: bool = False  # the gateway has asked for its tasks
    refused: float | None = None  # when a 403 went out that hides the index, until a `tasks/*` is served
    first_cost: float | None = None  # when the gateway first asked for something
    relatives: "list[ServerSession]" = field(default_factory=list)  # of the same session, or with the same token
    place: int = 0  # which of the servers, one after the other, that the gateway goes to
    refreshed: tuple[float, Any, int] | None = None  # by a query alone: when it came, its criteria, `disturbed` then

    def disturb(self, at: float) -> None:
        """Something happens that the gateway may learn from, or be kept from an answer by."""
        for one in (self, *self.relatives):
            one.disturbed += 1
            one.disturbed_at = at

    def has(self, at: Moment, session: "ServerSession") -> bool:
        """Whether what passed in a session at a moment counts in this one."""
        return session is self or at < self.began

    def alive(self) -> Iterator[Truth]:
        return (t for t in self.truths if t.gone is None)

    def find(self, task_id: object, created: object = None) -> Truth | None:
        """The task of an id: the newest that has had it, or the one that was created at an instant."""
        lives = self.lives(task_id)
        return next((t for t in reversed(lives) if created in (None, instant(t.created))), None)

    def lives(self, task_id: object) -> list[Truth]:
        return [t for t in self.truths if t.id == task_id]

    def pick(self, which: int, among: list[Truth] | None = None) -> Truth | None:
        """The task that an event names by its number."""
        truths = self.truths if among is None else among
        return truths[which % len(truths)] if truths else None


class Brief:
    """A message as a reader wants it: of each task its id, its state and its status."""

    def __init__(self, data: bytes | msgspec.Raw) -> None:
        self._data = data

    def __str__(self) -> str:
        return _TASK.sub(r"<\1 state \3 \2>", bytes(self._data).decode())


def task_id(number: int) -> str:
    """An id whose order is not that of creation."""
    return f"{number * 37 % 100:02}-{number}"


def instant(microseconds: int) -> str:
    """RFC 3339."""
    text = (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def method_names(count_: int) -> tuple[str, ...]:
    """The requests that a server of that many kinds of tasks names."""
    return METHODS[:count_]
