"""A history: a setting and events, as plain data, drawn at random and reduced. Its repr is code that makes it again.

Every event has a meaning in every history, so any may be left out: a task is a number, modulo the number of tasks.
Durations are ticks (`virtual.TICK_S`, 1/64 s). `s` is the number of one of the two sessions.

Hypothesis does not draw them: that took as long as playing them, and its shrinker left a dozen needless events, because
it knows choices and not events. `reduced` takes seconds, and leaves none.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

EVENTS_MAX: Final = 70
ROOM: Final = 20  # indexes: enough for every session of a history, not for those whom a flood is of
NOBODY: Final = 99  # as a task's number: an id that no task ever had

STATUSES: Final = ("working", "input_required", "completed", "failed", "cancelled")
METHODS: Final = ("tools/call", "prompts/get", "resources/read")


class _Shown(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Shown as the code that makes it again, defaults left out."""


class Setting(_Shown, frozen=True):
    """The gateway's configuration, and the kind of server behind it."""

    max_age: int = 64
    full_crawl_interval: int = 640
    page_size: int = 100
    page_bytes_max: int = 2**22
    tasks_max: int = 1000
    sessions_max: int = ROOM
    memory_bytes_max: int = 2**30
    idle_timeout: int = 230_400
    order: str = "appends"
    """Or prepends, updated (last first), random (another order in each crawl), nothing (FastMCP), ids: pages are cut
    from everybody's tasks in the order of their ids, and then others' are left out."""
    cursors: str = "place"  # last (the last task's id, as in the SDKs), offset
    per_page: int = 2
    always_next: bool = False  # a full page names a next one, even if that is empty
    knows_get: bool = True
    expiry: str = "at once"  # lazily (when it is next looked for), never
    methods: int = 1  # how many requests its `tasks.requests` names
    streams: bool = False  # answers with event streams, and puts notifications on them
    with_meta: bool = False  # results carry `_meta`
    skew_s: int = 0  # of its clock
    coarse: bool = False  # its timestamps are of whole seconds
    delays: tuple[tuple[int, int], ...] = ()  # before a request is carried out, and until its answer is sent
    shared: bool = False  # the clients are two identities in one session, each with its own tasks
    ids_again: int | None = None  # so many ticks after a task has ended, or has gone, its id is given again
    ids_collide: bool = False  # clients give every request the id 1
    listening: bool = False  # the clients have GET streams open from the beginning
    tasks: str = ""  # that have been there for long: the first letter of the status of each, in session 0
    empty: str = ""  # a cursor that is empty: see EMPTY
    busy: int = 0  # it serves one request of a session at a time: the status that others get
    lacks: int = 0  # it has no routes for GET and DELETE: their status
    balanced: bool = False  # a balancer sets its cookie anew with each answer
    renews: bool = False  # the server sets its own cookie anew, again and again
    owns: bool = False  # `guards.own_tasks`

    @property
    def lists_all(self) -> bool:
        """Whether every crawl lists a task that was listed before, though the gateway was not told of it."""
        lists = self.order in ("appends", "prepends", "random", "ids") and self.cursors != "offset"
        return lists and not self.owns

    @property
    def evicts(self) -> bool:
        """Whether indexes go before their sessions do."""
        return any(getattr(self, name) != getattr(USUAL, name) for name in _ROOM)


USUAL: Final = Setting()
_ROOM: Final = ("sessions_max", "memory_bytes_max", "idle_timeout")
ROOMY: Final[dict[str, Any]] = {name: getattr(USUAL, name) for name in ("tasks_max", *_ROOM)}
"""Room for everything, of a setting."""


class Wait(_Shown, frozen=True):
    ticks: int = 1


class Blink(_Shown, frozen=True):
    """Hardly any time passes: bytes on their way advance by that many wires."""

    count: int = 1


class Create(_Shown, frozen=True):
    s: int = 0
    elsewhere: bool = False
    method: int = 0
    ttl: int | None = None  # in eighths of a second
    leave: int | None = None  # the client is gone after so many ticks
    form: str = ""  # of the request: see FORMS


class Update(_Shown, frozen=True):
    """A live task changes, elsewhere or by its own work."""

    s: int = 0
    which: int = 0
    status: int = 2
    notify: bool = False
    late: int = 0  # until the notification is sent
    lie_s: int = 0  # by which its timestamp is wrong


class Delete(_Shown, frozen=True):
    s: int = 0
    which: int = 0


class Get(_Shown, frozen=True):
    s: int = 0
    which: int = 0
    method: str = "tasks/get"  # tasks/cancel, tasks/result
    form: str = ""  # of the request: see FORMS


class Page(_Shown, frozen=True):
    """A client reads that many pages of the upstream's own list."""

    s: int = 0
    pages: int = 1
    form: str = ""  # of the requests: see FORMS


class Query(_Shown, frozen=True):
    """A filtered list. A bound is the instant of a task, by its number, or if negative so many ticks ago."""

    s: int = 0
    status: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    methods: tuple[int, ...] = ()
    created: tuple[int | None, int | None] = (None, None)
    updated: tuple[int | None, int | None] = (None, None)
    by: str | None = None
    ascending: bool = False
    nested: bool = False  # in `params.filter`
    pages: int = 1  # that are read, by cursor
    pause: int = 0  # between them
    leave: int | None = None  # the client is gone after so many ticks
    cancel: int | None = None  # it sends notifications/cancelled after so many ticks


class Stream(_Shown, frozen=True):
    """A GET stream is opened, or closed if there is one."""

    s: int = 0


class Fault(_Shown, frozen=True):
    """What goes wrong with the next request of a method: see `upstream.py`."""

    s: int = 0
    kind: str = "drop"
    method: str | None = None


class Clock(_Shown, frozen=True):
    """The server's clock is set, ahead or back."""

    by_s: int = 3600


class Hangup(_Shown, frozen=True):
    """The upstream closes every connection that is idle."""


class Restart(_Shown, frozen=True):
    """The upstream forgets a session, or its client ends it."""

    s: int = 0
    by_client: bool = False


class Renew(_Shown, frozen=True):
    """A client goes on with the same tasks: with another token, or started again, in a new session beside the old."""

    s: int = 0
    restarts: bool = False
    cookie: bool = False  # it is a cookie of the server's that is another


class Other(_Shown, frozen=True):
    """A client asks for something else than tasks: a method of HTTP, or of MCP."""

    s: int = 0
    method: str = "HEAD"


class Log(_Shown, frozen=True):
    """The server writes what is no message between its messages: see LINES."""

    s: int = 0
    line: int = 0


class Flood(_Shown, frozen=True):
    """That many unknown callers ask at once for a filtered list in a client's session: 401."""

    s: int = 0
    count: int = ROOM + 1


class Reload(_Shown, frozen=True):
    """The gateway takes over other limits (SIGHUP)."""

    max_age: int = 64
    page_size: int = 100
    tasks_max: int = 1000


class Move(_Shown, frozen=True):
    """The gateway goes to another server (SIGHUP): it knows the same sessions and no task, and gives the same ids."""


class Nobody(_Shown, frozen=True):
    """Two callers whose credentials are empty make a task each, and ask for both. Only where the gateway `owns`."""

    s: int = 0
    one: int = 0
    other: int = 0


class Switch(_Shown, frozen=True):
    """A client goes on at another replica."""

    s: int = 0


class Replace(_Shown, frozen=True):
    """A replica ends (SIGTERM), and a new one takes its place."""

    which: int = 0


class Store(_Shown, frozen=True):
    """The store is stopped, killed, wiped (killed, and emptied), full; or all is well again: see `fleet.py`."""

    state: str = "well"


Event: TypeAlias = (
    Wait | Blink | Create | Update | Delete | Get | Page | Query | Stream | Fault | Hangup | Restart | Renew | Reload |
    Flood | Switch | Replace | Store | Clock | Other | Log | Move | Nobody
)  # fmt: skip


class History(_Shown, frozen=True):
    setting: Setting = USUAL
    events: tuple[Event, ...] = ()


FAULTS: Final = ("drop", "unheard", "half", "401", "500", "error", "expired", "hang")
UNREAD: Final = (
    Fault(kind="encoded"), Fault(kind="large"), Fault(kind="encoded", method="GET"),
    Fault(kind="large", method="notifications/tasks/status"),
)  # fmt: skip
FORMS: Final = ("large", "gzip", "bomb", "coding", "media")
"""Requests that the gateway does not read: too large; gzip; gzip that is large when unpacked; a coding that only the
server knows; another media type than JSON's."""
PUT_OFF: Final = ("429 in 0", "429 in 1", "429 in 1", "429 in 3", "503 in 1", "429 at 3", "429 in 29", "503 at 60")
REFUSALS: Final = ("401", "403", "403", "403", "404", "429", "500")
ODD: Final = ("nan", "nan", "bom", "illegible", "latin", "gzip", "short", "half", "stall", "resume", "encoded", "large")
CODES: Final = (-32700, -32601, -32601, -32600, -32603, -32602, -32002, -32000, -32001, -32050, 0, 7)
ODD_SETTINGS: Final = ("empty", "busy", "lacks", "balanced", "renews", "owns")
WRONG: Final = (204, 302, 400, 401, 403, 404, 404, 405, 409, 410, 422, 500, 502, 503)
EMPTY: Final = ("refused", "restarts", "again", "page")
"""What a cursor that is empty is: the end, refused, or followed by the list again, or by nothing and once more the
same; or a page of the list, in its middle."""
LINES: Final = (
    b"[INFO] ready", b"", b"ready on 8080", b'{"level":30,"id":7,"msg":"ready"}', b"{'taskId': 'x'}", b"[1, 2]",
    b"null", b'"text"', b"{}",
)  # fmt: skip
OTHER_METHODS: Final = ("GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "ping", "tools/list", "notifications/x")
_OTHERS: Final = (*METHODS, "tools/call", "tools/call", "tasks/get", "tasks/cancel", "tasks/result")  # than a list
_FLOODED: Final = 0.1  # of all histories
_CLOCK_SET: Final = 0.3
_SET_BY_S: Final = (3600, 3600, 3600, 1, 1, 60)
_TICKS: Final = (1, 2, 3, 5, 16, 16, 32, 32, 63, 64, 65, 65, 130, 130, 320, 640, 641)
_DELAYS: Final = (0, 0, 1, 2, 5, 16, 70, 140)
_MOMENTS: Final = (0, 1, 2, 4, 8, 16)
_LIMITS: Final = (
    ("sessions_max", 1), ("memory_bytes_max", 8000), ("memory_bytes_max", 12_000), ("memory_bytes_max", 16_000),
    ("idle_timeout", 16), ("idle_timeout", 80),
)  # fmt: skip

_BETWEEN: Final = (5, 16, 32, 65, 130, 320)  # ticks between two races
_RACES_MAX: Final = 12
_RACE_DELAYS: Final = (1, 1, 2, 2, 3, 5, 8, 16, 16, 40, 70)

T = TypeVar("T")


# ---- drawn ----


def drawn(seed: int) -> History:
    """The history of a seed: in half of them the server is one where asking for what can have changed pays."""
    rng = random.Random(seed)
    setting = _setting(rng)
    if rng.random() < 0.5:
        setting = _worth_a_delta(rng, setting)
    kinds, weights = zip(*_KINDS, strict=True)
    count = rng.choice((rng.randrange(10), rng.randrange(EVENTS_MAX), rng.randrange(EVENTS_MAX)))
    events = tuple(draw(rng) for draw in rng.choices(kinds, weights, k=count))
    if setting.coarse:
        events = tuple(_hurried(rng, event) for event in events)
    setting = sensible(setting)
    if setting.evicts or setting.shared:
        events = tuple(_of_either(rng, event) for event in events)
    if rng.random() < _FLOODED:
        at = rng.randrange(len(events) + 1)
        events = (*events[:at], *_flood(rng), *events[at:])
    if rng.random() < _CLOCK_SET:
        events = _clock_set(rng, events)
    return _with_moves(_with_odd(History(setting, events), f"{seed}"), f"{seed}")


def _with_odd(history: History, name: str) -> History:
    """The history, in half of all cases with an odd server and odd clients. All others are as they were without."""
    rng = random.Random(f"odd {name}")
    if rng.random() < 0.5:
        return history
    setting, events = history.setting, list(history.events)
    empty = _maybe(rng, 0.3, rng.choice(EMPTY), "")
    setting = replace(
        setting,
        empty=empty,
        cursors="place" if empty == "page" else setting.cursors,
        busy=_maybe(rng, 0.2, rng.choice((409, 429, 503)), 0),
        lacks=_maybe(rng, 0.2, rng.choice((404, 404, 405, 403)), 0),
        balanced=rng.random() < 0.3,
    )
    for _ in range(rng.choice((1, 2, 4, 8))):
        at = rng.randrange(len(events) + 1)
        events[at:at] = rng.choices(_ODD_ONES, (8, 3, 1, 1), k=1)[0](rng)
    setting = replace(setting, renews=rng.random() < 0.1)
    if rng.random() < 0.1:
        setting = replace(setting, order="ids", cursors="place")
    return History(sensible(setting), tuple(events))


def _with_moves(history: History, name: str) -> History:
    """The history, in a fifth of all cases with other servers behind the gateway, and often with `guards.own_tasks`."""
    rng = random.Random(f"moves {name}")
    if rng.random() < 0.8:
        return history
    setting, events = history.setting, list(history.events)
    if rng.random() < 0.6:
        setting = replace(setting, owns=True)
    for moves in rng.choices((True, True, False), k=rng.choice((1, 2, 3))):
        at = rng.randrange(len(events) + 1)
        events[at:at] = _move(rng) if moves else (Nobody(_s(rng), rng.randrange(5), rng.randrange(5)),)
    if setting.owns:
        events = [replace(e, elsewhere=rng.random() < 0.2) if isinstance(e, Create) else e for e in events]
    return History(sensible(setting), tuple(events))


def _move(rng: random.Random) -> Iterator[Event]:
    """The gateway goes to another server while tasks are made at the one before, and asked for; then at the other."""
    for _ in range(rng.randrange(4)):
        yield rng.choice((Create(_s(rng)), Create(_s(rng)), Query(_s(rng)), Get(_s(rng), _task(rng)), Page(_s(rng))))
        yield Blink(rng.randrange(1, 8))
    yield Move()
    for _ in range(rng.randrange(5)):
        yield rng.choice((Create(rng.randrange(2)), Create(rng.randrange(2)), Query(rng.randrange(2)), Blink(3)))
    yield Wait(rng.choice(_TICKS))
    yield Query(rng.randrange(2))


def sensible(setting: Setting) -> Setting:
    """The setting, without what no server is and no gateway could make up for.

    One whose own list may leave out tasks that it has must know `tasks/get`, or nobody could tell that they are there,
    and the gateway must have room for them, since only it knows of them; and with a cursor that is a task's id a list
    by last update would have no end, nor one where ids are given again.
    """
    moves = setting.order == "updated" or setting.ids_again is not None
    cursors = "place" if moves and setting.cursors == "last" else setting.cursors
    leaves_out = setting.order in ("updated", "nothing") or cursors == "offset"
    leaves_out |= setting.owns  # what is not his
    limits = dict(ROOMY) if leaves_out else {}
    if setting.owns:
        limits["renews"] = False  # whose credentials are always other ones keeps no task without his session
    return replace(setting, cursors=cursors, knows_get=setting.knows_get or leaves_out, **limits)


def _setting(rng: random.Random) -> Setting:
    pick = rng.choice
    setting = Setting(
        max_age=pick((64, 0, 1, 16, 64, 128)),
        full_crawl_interval=pick((640, 0, 64, 320, 640, 3840, 3840)),
        page_size=pick((100, 1, 2, 3, 100)),
        tasks_max=pick((1000, 1000, 1000, 1000, 3, 6)),
        order=pick(
            ("appends", "appends", "appends", "prepends", "prepends", "updated", "random", "nothing", "nothing")
        ),
        cursors=pick(("place", "last", "last", "offset")),
        per_page=pick((1, 1, 1, 1, 2, 2, 3)),
        always_next=pick((False, True)),
        knows_get=pick((True,) * 7 + (False,)),
        expiry=pick(("at once", "lazily", "never")),
        methods=pick((1, 1, 3)),
        streams=pick((False, True)),
        with_meta=pick((False, True)),
        skew_s=pick((0, 0, 0, 3, -3, 86400)),
        coarse=pick((False, False, False, True)),
        delays=tuple((pick(_DELAYS), pick(_DELAYS)) for _ in range(pick((0, 3, 6)))),
        ids_again=pick((None, None, None, None, 0, 0, 5, 65)),
        ids_collide=pick((False, False, False, True)),
        listening=pick((False, True, True)),
        tasks="".join(pick("wiccfx") for _ in range(rng.randrange(13))),
    )
    setting = replace(setting, shared=rng.random() < 0.2, page_bytes_max=pick((2**22,) * 4 + (1, 500, 1000)))
    limits: dict[str, Any] = dict([pick(_LIMITS)] if rng.random() < 0.2 else [])
    return replace(setting, **limits)


def _worth_a_delta(rng: random.Random, setting: Setting) -> Setting:
    """The setting with many pages and few live tasks."""
    return replace(
        setting,
        max_age=rng.choice((64, 16, 64, 128)),
        full_crawl_interval=rng.choice((640, 3840)),
        tasks_max=1000,
        order=rng.choice(("appends", "appends", "prepends")),
        per_page=1,
        knows_get=True,
        delays=_maybe(rng, 0.75, setting.delays, ()),
        tasks="".join(rng.choice("wicccffx") for _ in range(rng.randrange(5, 14))),
    )


def _s(rng: random.Random) -> int:
    return int(rng.random() < 0.1)


def _task(rng: random.Random) -> int:
    return NOBODY if rng.random() < 0.05 else rng.randrange(10)


def _maybe(rng: random.Random, likely: float, value: T, otherwise: T) -> T:
    return value if rng.random() < likely else otherwise


def _some(rng: random.Random, likely: float, values: Callable[[], int]) -> tuple[int, ...]:
    return tuple({values(): None for _ in range(rng.randrange(1, 4))}) if rng.random() < likely else ()


def _bounds(rng: random.Random) -> tuple[int | None, int | None]:
    if rng.random() < 0.85:
        return None, None
    low, high = (rng.choice((None, rng.randrange(10), rng.choice((-1, -16, -64, -128, -640)))) for _ in range(2))
    return low, high


def _reload(rng: random.Random) -> Reload:
    return Reload(rng.choice((64, 0, 16, 128)), rng.choice((100, 1, 2)), rng.choice((1000, 1000, 3, 6)))


def _query(rng: random.Random) -> Query:
    return Query(
        s=_s(rng),
        status=_some(rng, 0.3, lambda: rng.randrange(5)),
        ids=_some(rng, 0.15, lambda: _task(rng)),
        methods=_some(rng, 0.15, lambda: rng.randrange(3)),
        created=_bounds(rng),
        updated=_bounds(rng),
        by=rng.choice((None, "createdAt", "lastUpdatedAt")),
        ascending=rng.random() < 0.5,
        nested=rng.random() < 0.5,
        pages=rng.choice((1, 1, 2, 8)),
        pause=rng.choice((0, 0, 0, 1, 16, 65)),
        leave=_maybe(rng, 0.1, rng.choice(_MOMENTS), None),
        cancel=_maybe(rng, 0.1, rng.choice(_MOMENTS), None),
    )


def _create(rng: random.Random) -> Create:
    return Create(
        s=_s(rng),
        elsewhere=rng.random() < 0.5,
        method=rng.randrange(3),
        ttl=_maybe(rng, 0.3, rng.choice((4, 8, 16, 80)), None),
        leave=_maybe(rng, 0.1, rng.choice(_MOMENTS), None),
        form=_form(rng),
    )


def _form(rng: random.Random) -> str:
    return _maybe(rng, 0.2, rng.choice(FORMS), "")


def _update(rng: random.Random) -> Update:
    status, late = rng.choice((0, 1, 1, 2, 2, 3, 4)), rng.choice((0, 0, 2, 20, 70))
    return Update(_s(rng), _task(rng), status, rng.random() < 0.5, late)


def _get(rng: random.Random) -> Get:
    method = rng.choice(("tasks/get",) * 3 + ("tasks/cancel", "tasks/result"))
    return Get(_s(rng), _task(rng), method, _form(rng))


def _one_of(kinds: tuple[str, ...], methods: tuple[str | None, ...]) -> Callable[[random.Random], Fault]:
    return lambda rng: Fault(_s(rng), rng.choice(kinds), rng.choice(methods))


_refusal = _one_of(REFUSALS, _OTHERS)
_odd = _one_of(ODD, (None, "tasks/list", *_OTHERS))
_put_off = _one_of(PUT_OFF, (None, "tasks/list", "tasks/get"))
_fault = _one_of(FAULTS, (None, "tasks/list", "tasks/list", "tasks/get"))


def _wrong_once(rng: random.Random) -> tuple[Event, ...]:
    """One answer is odd: an error of any code, a status with or without one, a refused cursor, another id."""
    code, status = rng.choice(CODES), rng.choice(WRONG)
    kind = rng.choice(
        (f"code {code}", f"code {code}", f"code {code} null", f"status {status}", f"status {status} {code}", "text id",
         "other id")
    )  # fmt: skip
    method = rng.choice((None, "tasks/list", "tasks/list", "tasks/get", "tasks/get", *_OTHERS))
    if rng.random() < 0.25:
        kind, method = rng.choice(("empty", f"stale {code}", f"stale {max(400, status)}")), "tasks/list"
    return (Fault(_s(rng), kind, method),) * (1 + (code == -32601 and method == "tasks/get"))


def _other(rng: random.Random) -> tuple[Event, ...]:
    """A client asks for something else, and the answer may be odd; behind it comes a query."""
    s, method = _s(rng), rng.choice(OTHER_METHODS)
    wrong = Fault(s, f"status {rng.choice((404, 404, 401, 403, 405, 410, 500, 501))}", method)
    return *_maybe(rng, 0.7, (wrong,), ()), Other(s, method), *_maybe(rng, 0.5, (Wait(), Query(s)), ())


_ODD_ONES: Final[tuple[Callable[[random.Random], tuple[Event, ...]], ...]] = (
    _wrong_once,
    _other,
    lambda rng: (Renew(_s(rng), rng.random() < 0.3, cookie=rng.random() < 0.7),),
    lambda rng: (Log(_s(rng), rng.randrange(len(LINES))),),
)


def _flood(rng: random.Random) -> tuple[Event, ...]:
    """A flood between two queries, the second of which costs nothing."""
    query = Query(_s(rng))
    return Wait(rng.choice(_TICKS)), query, Wait(rng.choice(_TICKS)), Flood(_s(rng)), Wait(), query


def _hurried(rng: random.Random, event: Event) -> Event:
    """The event where much happens to few tasks within a second."""
    match event:
        case Wait() if rng.random() < 0.8:
            return Wait(rng.choice((1, 2, 3, 5, 16)))
        case Update():
            return replace(event, which=event.which % 3, status=rng.choice((0, 0, 1, 1, 1, 2)))
        case Get():
            return replace(event, which=event.which % 3)
    return event


def _clock_set(rng: random.Random, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events, with a clock that is wrong for a while, and notifications that lie about the time."""
    lying = rng.random() < 0.5
    changed = [
        replace(e, lie_s=_wrong(rng)) if isinstance(e, Update) and lying and rng.random() < 0.3 else e for e in events
    ]
    for _ in range(rng.randrange(1 - lying, 3)):
        by_s = _wrong(rng)
        first, second = sorted(rng.randrange(len(changed) + 1) for _ in range(2))
        changed[second:second] = [Clock(-by_s)]
        changed[first:first] = [Clock(by_s)]
    return tuple(changed)


def _wrong(rng: random.Random) -> int:
    return rng.choice(_SET_BY_S) * rng.choice((1, 1, -1))


def _of_either(rng: random.Random, event: Event) -> Event:
    """The event where both sessions are as busy."""
    s: dict[str, Any] = {"s": rng.randrange(2)}
    return replace(event, **s) if hasattr(event, "s") else event


_KINDS: Final[tuple[tuple[Callable[[random.Random], Event], float], ...]] = (
    (lambda rng: Wait(rng.choice(_TICKS)), 11),
    (lambda rng: Blink(rng.choice((1, 2, 3, 5, 8, 13, 21))), 2),
    (_query, 8),
    (lambda rng: Query(_s(rng)), 4),
    (_create, 4),
    (_update, 5),
    (lambda rng: Delete(_s(rng), _task(rng)), 2),
    (_get, 3),
    (lambda rng: Page(_s(rng), rng.randrange(1, 4), _form(rng)), 1),
    (lambda rng: Stream(_s(rng)), 0.7),
    (_fault, 1),
    (_refusal, 1),
    (_put_off, 1),
    (_odd, 2),
    (lambda rng: replace(rng.choice(UNREAD), s=_s(rng)), 0.5),
    (lambda rng: Hangup(), 0.7),
    (lambda rng: Restart(_s(rng), rng.random() < 0.5), 0.3),
    (_reload, 0.2),
)


# ---- drawn full of races ----


def raced(seed: int) -> History:
    """The history of a seed in which what is asked overlaps: it is asked often, and each answer has its own delay."""
    rng = random.Random(f"races {seed}")
    setting = _setting(rng)
    if rng.random() < 0.5:
        setting = _worth_a_delta(rng, setting)
    setting = replace(
        setting,
        **ROOMY,
        delays=tuple((rng.choice(_RACE_DELAYS), rng.choice(_RACE_DELAYS)) for _ in range(12)),
        ids_collide=rng.random() < 0.1,
        listening=True,
        max_age=rng.choice((0, 0, 1, 1, 16, 64, 128)),
        full_crawl_interval=rng.choice((0, 0, 0, 16, 64, 128, 640, 3840)),
        tasks="".join(rng.choice("wwwic") for _ in range(rng.randrange(7))),
    )
    events: list[Event] = [Query(s) for s in (0, 1)]
    for _ in range(rng.randrange(1, _RACES_MAX)):
        events += [Wait(rng.choice(_BETWEEN)), *_race(rng)]
    setting = sensible(setting)
    if setting.shared:
        events = [_of_either(rng, event) for event in events]
    if rng.random() < _CLOCK_SET / 2:
        events = [*_clock_set(rng, tuple(events))]
    return _with_moves(_with_odd(History(setting, tuple(events)), f"races {seed}"), f"races {seed}")


def _race(rng: random.Random) -> Iterator[Event]:
    """Much that is asked, and happens, about one task of a session, and queries behind it."""
    kinds, weights = zip(*_RACING, strict=True)
    s, which = _s(rng), rng.choice((-1, -1, -2, 0))  # the newest most often: it lives
    few = rng.choices(kinds, weights, k=rng.randrange(3, 7))  # each of them again and again: they meet
    for draw in rng.choices(few, k=rng.randrange(3, 14)):
        event = draw(rng)
        given: dict[str, Any] = {"s": s, "which": which, "form": ""}
        if isinstance(event, Query) and event.ids:
            given["ids"] = (which,)
        yield replace(event, **{name: value for name, value in given.items() if hasattr(event, name)})
        yield rng.choice((Blink(rng.randrange(1, 22)), Wait(rng.choice(_TICKS[:6]))))
    meeting: tuple[Event, ...] = (Query(s), Query(s, ids=(which,)), Update(s, which, rng.choice((0, 1, 1, 2))))
    for event in rng.sample(meeting, len(meeting)):  # the gateway's own answers meet
        yield event
        yield rng.choice((Blink(rng.randrange(1, 22)), Wait(rng.choice(_TICKS[:4]))))
    yield Query(s)
    yield Wait(rng.choice(_TICKS[:9]))
    yield Query(s)


_RACING: Final[tuple[tuple[Callable[[random.Random], Event], float], ...]] = (
    (_query, 1),
    (lambda rng: Query(), 3),
    (lambda rng: Query(ids=(0,)), 9),
    (_get, 6),
    (lambda rng: Page(pages=rng.randrange(1, 4)), 3),
    (_create, 1.5),
    (lambda rng: replace(_update(rng), status=rng.choice((0, 0, 1, 1, 2, 3))), 7),
    (lambda rng: Delete(), 1.5),
    (_refusal, 1),
    (_put_off, 0.3),
    (_fault, 0.3),
    (_odd, 0.3),
    (lambda rng: Stream(), 0.1),
    (lambda rng: Restart(by_client=rng.random() < 0.5), 0.2),
    (lambda rng: Renew(restarts=rng.random() < 0.5), 0.5),
    (_reload, 0.1),
)


# ---- made smaller ----


def reduced(history: History, fails: Callable[[History], bool]) -> History:
    """A smallest history that fails too: no event of it can be left out, no field set to its default."""

    def tried(events: tuple[Event, ...] | None = None, **changes: Any) -> None:
        nonlocal history
        setting = sensible(replace(history.setting, **changes)) if changes else history.setting
        made = History(setting, history.events if events is None else events)
        if made != history and fails(made):
            history = made

    while True:
        before, size = history, len(history.events)
        while size:
            for at in range(len(history.events), 0, -size):
                tried(history.events[: max(0, at - size)] + history.events[at:])
            size //= 2
        for name in Setting.__struct_fields__:
            tried(**{name: getattr(USUAL, name)})
        for name in ("tasks", "delays"):
            for at in range(len(getattr(history.setting, name))):
                values = getattr(history.setting, name)
                tried(**{name: values[:at] + values[at + 1 :]})
        for at, event in enumerate(history.events):
            plainer = [{name: getattr(type(event)(), name)} for name in event.__struct_fields__]
            plainer += [{"ticks": ticks} for ticks in _TICKS if ticks < getattr(event, "ticks", 0)]
            for changes in plainer:
                tried((*history.events[:at], replace(history.events[at], **changes), *history.events[at + 1 :]))
        if history == before:
            return history
