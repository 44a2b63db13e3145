"""The promise of DESIGN 6, held against every answer. It is exact.

An answer is right if one state can be chosen for each task so that the chosen states make the answer: its tasks, their
order, its total, and whether more follow. The states to choose from are those that the task had between `max_age`
before the query and the answer, and none older than what had passed through the gateway before the query. Each task's
state can be chosen alone: what a task adds to an answer depends on its own state and the bounds of the page.

"Passed through" is what a client was given: a task in a response or a notification, an error that says that it is
gone, a 404 for its session, and what must be so if an earlier answer was right (never backwards).
"""

from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from tests.model.history import PUT_OFF, USUAL, Setting
from tests.model.truth import (
    ABSENT,
    BEFORE_ALL,
    GONE,
    Brief,
    Moment,
    ServerSession,
    State,
    Truth,
    Violation,
    method_names,
)
from tests.model.upstream import Own, Upstream, wrong
from tests.model.virtual import START_S, TICK_S, UNIX_AT_START_S, WIRE_S

CRAWL_TIMEOUT_S: Final = 30.0  # `index.crawl_timeout` as it is by default
_REFUSED_MAX: Final = 2  # cursors, of one crawl: a third may be the third time of one (DESIGN 6.11)
_FAILURES_MAX: Final = 3  # for one task, until no query fails for it (6.12)

RULES: Final = {
    "content": "a task's JSON is what the upstream said, byte for byte (DESIGN 5.6)",
    "isolation": "no task of another session, or of another identity in it (7)",
    "match": "no task that cannot belong: no permitted state of it matches (5.2, 5.3)",
    "missing": "none missing that must be there: all its permitted states match, and it is there throughout (6)",
    "late": "what a server appends, or is named, is seen with the next refresh, not the next full crawl",
    "stale": "no state that ended more than max_age before the query came (6)",
    "deleted": "nothing that was deleted more than full_crawl_interval before the query came (6)",
    "backwards": "nothing older than what passed through before, or than an earlier answer (6)",
    "order": "in the order asked for, each task once (5.2)",
    "repeats": "following cursors repeats no task, unless it changes and so moves (5.5)",
    "page": "page_size tasks or page_bytes_max if more follow, no more if not, all behind the cursor (5.5)",
    "total": "taskgate/total is how many match (5.6)",
    "as of": "taskgate/asOf is no later than the oldest instant that the answer reflects (5.6)",
    "refused": "after a 401 or 403 nothing is shown until the upstream has served the gateway's own request (7.4)",
    "failed": "a query fails only as the upstream failed it (5.8), not for one drop, nor when put off",
    "unanswered": "every query gets an answer, cancelled or not (5.7)",
    "asked twice": "nothing is asked twice at once (6)",
    "economy": "nothing is asked within max_age of a refresh, if nothing has passed since",
    "repeated": "a message on a stream of the crawler's reaches one client, once (5.7)",
    "unhandled": "no exception that nobody handles, nothing logged as a fault",
}  # fmt: skip


TOO_LARGE: Final = -32017


class Place(NamedTuple):
    at: int
    id: str


@dataclass
class Criteria:
    """What a query asks for. Instants are microseconds since 1970."""

    status: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    methods: frozenset[str] | None = None
    created: tuple[int | None, int | None] = (None, None)
    updated: tuple[int | None, int | None] = (None, None)
    by_created: bool = False
    ascending: bool = False

    def matches(self, truth: Truth, state: State) -> bool:
        """Whether all criteria hold but `methods`."""
        return (
            (self.status is None or state.status in self.status)
            and (self.ids is None or truth.id in self.ids)
            and _within(truth.created, self.created)
            and _within(state.updated, self.updated)
        )

    @property
    def moves_ahead(self) -> bool:
        """Whether a task that changes comes later in the list than it was."""
        return self.ascending and not self.by_created

    def place(self, truth: Truth, state: State) -> Place:
        return Place(truth.created if self.by_created else state.updated, truth.id)

    def follows(self, place: Place, other: Place) -> bool:
        return place > other if self.ascending else place < other


def _within(at: int, bounds: tuple[int | None, int | None]) -> bool:
    low, high = bounds
    return (low is None or low <= at) and (high is None or at <= high)


@dataclass
class Asked:
    """A query for one page, on its way."""

    session: ServerSession
    criteria: Criteria
    earlier: set[Truth]  # on the pages before it
    after: Place | None = None
    sent: Moment = BEFORE_ALL
    came: Moment = BEFORE_ALL  # at the gateway
    setting: Setting = field(default_factory=Setting)  # when it came
    alone: bool = True
    disturbed: int = 0  # of the session, when it came
    number: int = 0  # of the session's queries
    port: int = 0  # of the replica

    @property
    def oldest(self) -> float:
        """The earliest time at which the states of its answer may have held."""
        return self.came.time - self.setting.max_age * TICK_S


@dataclass
class Outcome:
    """How a query ended. `status` is 0 if the connection was cut; `result` is raw JSON."""

    status: int
    at: Moment
    result: bytes | None = None
    error: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.status} {Brief(self.result or b'')}{self.error or ''}"


@dataclass
class Seen:
    """A page that was accepted: its last place, if more follow, and the cursor for them."""

    last: Place | None
    cursor: str | None


class _Result(msgspec.Struct):
    tasks: list[msgspec.Raw]
    meta: dict[str, Any] = msgspec.field(name="_meta")
    nextCursor: str | None = None


@dataclass
class _Bounds:
    """How many of the tasks that are not shown match: at least, at most; whether any may follow, of those in `low`."""

    low: int = 0
    high: int = 0
    may_follow: bool = False
    counted_may_follow: bool = False
    learned: list[tuple[Truth, int]] = field(default_factory=list)


class Oracle:
    """Judges answers."""

    hears_all = True  # a notification tells of a task that nothing else has told of

    def __init__(self, setting: Setting, upstream: Upstream) -> None:
        self._upstream = upstream
        self._interval_s = setting.full_crawl_interval * TICK_S
        self.lists_all = setting.lists_all
        self._appends = setting.order in ("appends", "prepends") and self.lists_all
        self._forgets = False
        self._tasks_max = setting.tasks_max  # the least that there was
        room = setting.memory_bytes_max == USUAL.memory_bytes_max
        # A session loses what is denied three times to others who have it, with a new cookie each time (DESIGN 7.12).
        others = setting.shared and setting.renews
        self.finds_again = setting.knows_get and setting.ids_again is None and room and not others
        self.reloaded(setting)

    def reloaded(self, setting: Setting) -> None:
        """The gateway has other limits from now on."""
        self.setting = setting
        # An index that grew too large, or went, is read from pages anew, and no page says who made a task.
        self._tasks_max = min(self._tasks_max, setting.tasks_max)
        self._forgets |= setting.tasks_max < 1000 or setting.evicts

    def came(self, asked: Asked, moment: Moment) -> None:
        """A query has reached the gateway."""
        asked.came, asked.setting = moment, self.setting
        session = asked.session
        asked.alone = session.asking == 0
        if not asked.alone:
            session.disturb(self._upstream.loop.time())
        session.asking += 1
        session.queries += 1
        asked.number = session.queries
        asked.disturbed = session.disturbed

    def ended(self, asked: Asked, outcome: Outcome | None) -> Seen:
        """A query has ended, with None because its client left. Raises Violation."""
        session = asked.session
        session.asking -= 1
        if outcome is None:
            session.disturb(self._upstream.loop.time())
            return Seen(None, None)
        if outcome.result is None:
            session.disturb(self._upstream.loop.time())
            self._check_failure(asked, outcome)
            return Seen(None, None)
        self._check_access(asked)
        seen = self._check_answer(asked, outcome.at, outcome.result)
        self._check_cost(asked, outcome.at)
        return seen

    def knew(self, asked: Asked) -> Moment:
        """What passed before this moment is known where a query is answered."""
        return asked.came

    def learn(self, truth: Truth, number: int, at: Moment, session: ServerSession) -> None:
        """An answer, if it is right, says that a task was in a state, or is gone."""
        truth.pass_through(number, at, session)

    def denied(self, truth: Truth, at: Moment, session: ServerSession, _port: int, _is_read: bool) -> None:
        """A client was told that a task is gone. `_is_read`: the gateway knows which."""
        truth.pass_through(GONE, at, session)

    @property
    def hidden_after_s(self) -> float:
        """How long after a refusal an answer may still be given unasked."""
        return 0.0

    def _check_access(self, asked: Asked) -> None:
        refused = asked.session.refused
        if refused is not None and asked.came.time > refused + self.hidden_after_s + WIRE_S:
            raise Violation("refused", f"an answer, though a refusal went out {asked.came.time - refused:g} s before")

    # ---- failures ----

    def _own(self, asked: Asked, until: Moment) -> list[Own]:
        """The gateway's own requests of the session that were under way while the query was."""
        return [
            o
            for o in self._upstream.own
            if o.session is asked.session
            and o.at < until
            and (o.ended is None or o.ended.time >= asked.came.time - WIRE_S)
        ]

    def _check_failure(self, asked: Asked, outcome: Outcome) -> None:
        session, own = asked.session, self._own(asked, outcome.at)
        is_sole = asked.alone and session.queries == asked.number
        told = [o for o in own if self._is_told(outcome, o)]
        is_over = session.ended is not None and session.ended < outcome.at
        if not is_over and any(not (is_sole and self._is_beside(o)) for o in told):
            return
        if outcome.status == 404:
            if session.ended is None:
                raise Violation("failed", "404, and the session has not ended")
            for truth in session.truths:
                truth.pass_through(GONE, outcome.at, session)
            return
        if is_over:
            return
        if outcome.error is not None and outcome.error["code"] == TOO_LARGE:
            self._check_outgrown(asked, outcome)
            return
        kinds = [o.outcome for o in own]
        status = outcome.status
        if status == 200 and outcome.error is not None:  # what is, or would have been, another status
            told = outcome.error["message"].partition(":")[0]
            status = {
                "Bad Gateway": 502,
                "Gateway Timeout": 504,
                "Server Error": 500,
                "Unauthorized": 401,
                "Forbidden": 403,
                "Too Many Requests": 429,
                "Service Unavailable": 503,
            }.get(told, 200)
        dropped = {o.id for o in own if o.is_broken}
        anybodys = [o for o in own if self._upstream.is_lost(o)]  # two of them may both be taken for one request's
        refused = [o for o in own if "cursor" in o.params and o.is_refused]
        put_off = [o for o in own if o.outcome in PUT_OFF]
        explained = {
            **{refusal: str(refusal) in kinds for refusal in (401, 403, 429, 500)},
            200: "error" in kinds and outcome.error == {"code": -32603, "message": "oh no"},
            502: any(sum(o.id == i and o.is_broken for o in self._upstream.own) > 1 for i in dropped)
            or len(refused) > _REFUSED_MAX
            or len(anybodys) > 1,
            503: False,
            504: "hang" in kinds
            or any(map(self._upstream.is_lost, own))
            or any(outcome.at.time >= self._patience_ends(o) for o in own),
        }
        for one in put_off:
            resumes_at = (one.ended or outcome.at).time + max(1, int(one.outcome.split()[-1]))
            explained[int(one.outcome[:3])] |= resumes_at >= self._patience_ends(one)
        if not explained.get(status):
            raise Violation("failed", f"{outcome.status} {outcome.error}, and the upstream: {kinds}")

    def _is_told(self, outcome: Outcome, own: Own) -> bool:
        """Whether a failure is an odd answer to one of the gateway's own requests, as it came."""
        status, code = wrong(own.outcome)
        is_error = status not in (429, 503) and (status >= 400 or not status)
        is_busy = status == 409 and own.params.get("cursor") == "" and self._is_repeated(own)
        is_stale = is_error and "cursor" in own.params and not is_busy  # that is what it is taken for (DESIGN 6.11)
        is_stale = is_stale and not self._is_anybodys(own)
        if is_stale or not own.outcome.startswith(("code", "status", "stale")):
            return False
        told, text = (None, "") if outcome.error is None else (outcome.error["code"], outcome.error["message"])
        if status and text.endswith(f"the upstream answered {status}"):  # on a stream that has begun
            return True
        is_same = outcome.status in (status or 200, 200 if code is not None else status) and told == code
        return is_same and (status >= 300 or code is not None)

    def _is_anybodys(self, own: Own) -> bool:
        """Whether the answer has no id, and others are out on the same wire: it is that of the oldest (DESIGN 11.2)."""
        others = (
            o for o in self._upstream.own if o.connection.is_shared and o.session is own.session and o.at < own.at
        )
        return own.outcome.endswith(" null") and any(o.ended is None or o.ended > own.at for o in others)

    def _is_repeated(self, own: Own) -> bool:
        """Whether the same was asked before, with the same outcome."""
        same = (own.session, own.params, own.outcome)
        return any((o.session, o.params, o.outcome) == same for o in self._upstream.own if o.at < own.at)

    def _is_beside(self, own: Own) -> bool:
        """Whether it is sent again, as it came beside others and may have been refused for that (DESIGN 5.8)."""
        others = (o for o in self._upstream.own if o.session is own.session and o is not own)
        is_busy = own.outcome in ("status 409", "status 429", "status 503")
        until = own.ended or own.at
        return is_busy and any(o.at < until and (o.ended is None or o.ended > own.at) for o in others)

    def _patience_ends(self, own: Own) -> float:
        """From when on the gateway waits no longer for a request and its repetitions."""
        return next(o.at.time for o in self._upstream.own if o.id == own.id) + CRAWL_TIMEOUT_S - 4 * WIRE_S

    def _check_outgrown(self, asked: Asked, outcome: Outcome) -> None:
        """The session is larger than an index may be; but a few tasks can always be asked for by id."""
        if asked.setting.memory_bytes_max < USUAL.memory_bytes_max:
            return
        made = [truth for truth in asked.session.truths if truth.born < outcome.at]
        ids, may_ask = asked.criteria.ids, asked.setting.knows_get and asked.alone
        if ids is not None and may_ask and asked.session.disturbed == asked.disturbed:
            made = [truth for truth in made if truth.id in ids]
        if len(made) <= self._tasks_max:
            raise Violation("failed", f"too large for an index, with {len(made)} tasks")

    # ---- answers ----

    def _check_answer(self, asked: Asked, at: Moment, raw: bytes) -> Seen:
        result = msgspec.json.decode(raw, type=_Result)
        shown = self._shown(asked, at, result)
        criteria, more = asked.criteria, result.nextCursor is not None
        places = [criteria.place(truth, state) for truth, state in shown]
        for one, other in pairwise(places):
            if not criteria.follows(other, one):
                raise Violation("order", f"{one} before {other}")
        if places and asked.after is not None and not criteria.follows(places[0], asked.after):
            raise Violation("page", f"{places[0]} is not behind the cursor, {asked.after}")
        if len({truth.id for truth, _ in shown}) < len(shown):
            raise Violation("order", "two tasks of one id")
        self._check_size(asked, result, more)
        last = places[-1] if more else None
        oldest = asked.oldest
        bounds = self._weigh(asked, at, [t for t, _ in shown], last, oldest)
        if more and not bounds.may_follow:
            raise Violation("page", "a nextCursor, and nothing can follow")
        low = len(shown) + bounds.low + (more and not bounds.counted_may_follow)
        total = result.meta["taskgate/total"]
        if not low <= total <= len(shown) + bounds.high:
            raise Violation("total", f"{total}, and it must be from {low} to {len(shown) + bounds.high}")
        self._check_as_of(asked, at, result, shown, last)
        asked.earlier.update(truth for truth, _ in shown)
        if self.setting.order == "nothing" or asked.criteria.ids is not None:  # each was asked for
            for truth, _ in shown:
                truth.seen.append((at, asked.session))
        for truth, number in [*bounds.learned, *((t, s.number) for t, s in shown)]:
            self.learn(truth, number, at, asked.session)
        return Seen(last, result.nextCursor)

    def _check_size(self, asked: Asked, result: _Result, more: bool) -> None:
        """A page has a task at least, if one matches. It has another if there is room, and one follows."""
        limits, count = asked.setting, len(result.tasks)
        size_bytes = sum(len(bytes(raw)) + 1 for raw in result.tasks)
        largest_bytes = max(map(len, self._upstream.raws), default=0) + 1
        has_room = count < limits.page_size and (size_bytes + largest_bytes <= limits.page_bytes_max or not count)
        too_large = count > limits.page_size or (count > 1 and size_bytes > limits.page_bytes_max)
        if too_large or (more and has_room):
            raise Violation("page", f"{count} tasks of {size_bytes} bytes, more follow: {more}")

    def _shown(self, asked: Asked, at: Moment, result: _Result) -> list[tuple[Truth, State]]:
        shown = []
        for raw in result.tasks:
            found = self._upstream.raws.get(bytes(raw))
            if found is None:
                raise Violation("content", f"the upstream never said {bytes(raw)!r}")
            session, truth, state = found
            if truth not in asked.session.truths:
                raise Violation("isolation", f"{truth.id} is of {session.id}, not of {asked.session.id}")
            if self.setting.owns and not any(life.asked_for for life in asked.session.lives(truth.id)):
                raise Violation("isolation", f"{truth.id} is none that was made here")
            self._check_state(asked, at, truth, state, asked.oldest)
            if truth in asked.earlier and not self._may_repeat(asked, truth, state):
                raise Violation("repeats", f"{truth.id} was on an earlier page")
            if True not in self._match(asked, truth, state):
                raise Violation("match", f"{truth.id} in state {state.number} cannot match")
            shown.append((truth, state))
        return shown

    def _may_repeat(self, asked: Asked, truth: Truth, _state: State) -> bool:
        return truth.wound_back or asked.criteria.moves_ahead

    def _check_state(self, asked: Asked, at: Moment, truth: Truth, state: State, oldest: float) -> None:
        if state in self._options(asked, at, truth, oldest):
            return
        what = f"{truth.id} in state {state.number} ({state.status})"
        known = truth.known_before(self.knew(asked), asked.session)
        if known > state.number:
            newer = "that it is gone" if known == GONE else f"state {known}"
            raise Violation("backwards", f"{what}, and {newer} was known before")
        until = truth.until(state)
        ago = f"{asked.came.time - until.time:g} s before the query came" if until is not None else "never"
        raise Violation("stale" if state.number != truth.state.number else "deleted", f"{what}, which ended {ago}")

    def _options(self, asked: Asked, at: Moment, truth: Truth, oldest: float) -> list[State | int]:
        """What may be taken for a task's state: a state, ABSENT before it was made, GONE after it was deleted."""
        if truth.born > at:
            return [ABSENT]
        options: list[State | int] = []
        known = truth.known_before(self.knew(asked), asked.session)
        oldest_crawl = min(asked.came.time - self._interval_s, asked.oldest, oldest)
        is_seen = self.finds_again and truth.is_seen_before(asked.came, asked.session)
        may_lack = known == ABSENT and not is_seen
        may_lack = may_lack or self._is_put_off(truth, asked.session, oldest_crawl)
        if self.setting.owns:
            may_lack |= not self._is_his(truth, asked)
        if may_lack and (truth.born.time >= oldest_crawl or not self.lists_all):
            options.append(ABSENT)
        for state in truth.states:
            until = truth.until(state)
            ended_by = oldest_crawl if until is truth.gone else oldest
            if state.since < at and state.number >= known and (until is None or until.time >= ended_by):
                options.append(state)
        if truth.gone is not None and truth.gone < at:
            options.append(GONE)
        return options

    def _is_his(self, truth: Truth, asked: Asked) -> bool:
        """Whether it is the caller's for sure: he got the result that made it, there or with these credentials."""
        if truth.answered is None or truth.answered[0] >= self.knew(asked):
            return False
        of = truth.answered[1]
        return of.id == asked.session.id or of.authorization == asked.session.authorization

    def _is_put_off(self, truth: Truth, session: ServerSession, since: float) -> bool:
        """Whether the gateway has asked for a task in vain, so often and not before the last crawl (DESIGN 6.12).

        Two answers that there is no such method are enough for any.
        """
        own = [o for o in self._upstream.own if o.session is session and o.method == "tasks/get"]
        failed = [o for o in own if o.params["taskId"] == truth.id and o.has_failed]
        no_method = [o for o in own if o.knows_no_get and (o.ended is None or o.ended.time >= since)]
        is_failed = len(failed) >= _FAILURES_MAX and (failed[-1].ended is None or failed[-1].ended.time >= since)
        return is_failed or len(no_method) > 1

    def _match(self, asked: Asked, truth: Truth, state: State) -> set[bool]:
        """Whether a state matches: both, where the gateway may or may not know which method made the task."""
        criteria = asked.criteria
        if not criteria.matches(truth, state):
            return {False}
        # If nothing was asked for in between, a task elsewhere of the same id is taken for the one that was made here.
        is_taken_for_another = any(life.asked_for and life is not truth for life in asked.session.lives(truth.id))
        if criteria.methods is None or truth.method in criteria.methods:
            return {True, False} if criteria.methods is not None and is_taken_for_another else {True}
        if len(method_names(self.setting.methods)) == 1:
            return {False} if asked.session.opened < self.knew(asked) else {True, False}
        if truth.answered is not None and not self._forgets:
            at, session = truth.answered
            later = [life for life in session.lives(truth.id) if life.answered is not None and life.answered[0] > at]
            if session is asked.session and at < self.knew(asked) and not later:  # the last result tells the method
                return {False}
        return {True, False} if truth.asked_for or is_taken_for_another else {True}

    def _weigh(self, asked: Asked, at: Moment, shown: list[Truth], last: Place | None, oldest: float) -> _Bounds:
        """Explain why each task that is not shown is not, and count. Raises Violation."""
        bounds, criteria = _Bounds(), asked.criteria
        for truth in asked.session.truths:
            if truth in shown:
                continue
            counts: set[int] = set()
            may_follow = False
            reasons: list[int] = []
            options = self._options(asked, at, truth, oldest)
            for option in options:
                if isinstance(option, int):
                    counts.add(0)
                    reasons.append(option)
                    continue
                place = criteria.place(truth, option)
                for matches in self._match(asked, truth, option):
                    before = asked.after is not None and not criteria.follows(place, asked.after)
                    behind = last is not None and criteria.follows(place, last)
                    if not matches or before or behind:
                        counts.add(int(matches))
                        may_follow |= matches and behind and not before
                        reasons.append(option.number)
            if not reasons:
                raise Violation("missing", f"{truth.id}: {_told(options)}")
            if reasons == [ABSENT] * len(reasons) and self._is_late(asked, truth):
                raise Violation("late", f"{truth.id} was appended {asked.came.time - truth.born.time:g} s before")
            bounds.low += min(counts)
            bounds.high += max(counts)
            bounds.may_follow |= may_follow
            bounds.counted_may_follow |= may_follow and min(counts) == 1
            # In a state that does not match, a task is left out unasked; and max_age may be longer after a reload.
            unasked = [s.number for s in truth.states if self._match(asked, truth, s) == {False}]
            known = truth.known_before(self.knew(asked), asked.session)
            if criteria.ids is not None and truth.id not in criteria.ids:
                unasked.append(known)  # even one that was seen elsewhere
            bounds.learned.append((truth, min([*reasons, *(number for number in unasked if number >= known)])))
        return bounds

    def _is_late(self, asked: Asked, truth: Truth) -> bool:
        """Whether no full crawl is needed to know of a task that was made so long ago."""
        if asked.criteria.ids is not None and asked.session.lives(truth.id)[0] is not truth:
            return False  # a task that has ended is not asked for again (6.6)
        named = asked.criteria.ids is not None and self.setting.knows_get and self.lists_all  # pages may cost less
        # The order of creation is told from timestamps.
        in_order = all(one.created <= other.created for one, other in pairwise(asked.session.truths))
        is_read = self.setting.order in ("random", "ids") and self.lists_all  # by a crawl: it is in no order
        return ((self._appends and in_order) or is_read or named) and truth.born.time < asked.oldest

    def _check_as_of(
        self, asked: Asked, at: Moment, result: _Result, shown: list[tuple[Truth, State]], last: Place | None
    ) -> None:
        text = result.meta["taskgate/asOf"]
        as_of = datetime.fromisoformat(text).timestamp() - UNIX_AT_START_S + START_S
        oldest = asked.oldest
        if not oldest - 0.001 <= as_of <= at.time:
            raise Violation("as of", f"{text}, which is {at.time - as_of:g} s before the answer")
        try:
            for truth, state in shown:
                self._check_state(asked, at, truth, state, as_of)
            self._weigh(asked, at, [t for t, _ in shown], last, as_of)
        except Violation as violation:
            raise Violation("as of", f"{text}, {asked.came.time - as_of:g} s ago, but {violation}") from None

    # ---- cost ----

    def _check_cost(self, asked: Asked, at: Moment) -> None:
        """A query alone, like one within `max_age` that refreshed all it needed, with nothing since: costs nothing.

        One refreshes all it needs if nothing was learned in the `max_age` before it. Not judged is when all pages may
        have to be read again for `full_crawl_interval`, or tasks may have expired.
        """
        session = asked.session
        asked_for = [o for o in self._own(asked, at) if o.at > asked.came]
        if session.first_cost is None:  # a query that joins a crawl has not asked for it
            session.first_cost = next((o.at.time for o in self._upstream.own if o.session is session), None)
        if not asked.alone or session.disturbed != asked.disturbed or any(t.ttl_ms is not None for t in session.truths):
            return
        if session.refreshed is not None and not self._forgets and not self._is_crawl_due(session, asked):
            came, criteria, disturbed = session.refreshed
            if asked.came.time <= came + asked.setting.max_age * TICK_S and (criteria, disturbed) == (
                asked.criteria,
                asked.disturbed,
            ):
                found = [o for o in asked_for if self._was_shown_elsewhere(o, came)]
                asked_for = [o for o in asked_for if o not in found]
                pages = [o for o in asked_for if o.method == "tasks/list"]  # several are looked for there first
                if asked_for and not (found and pages == asked_for and len(pages) <= 1 + len(session.truths)):
                    raise Violation("economy", f"{[(o.method, o.params) for o in asked_for]} for what is known")
                return
        learned = [o for o in self._upstream.own if o.session is session and o.at < asked.came]
        since = max([session.disturbed_at, *(o.ended.time for o in learned if o.ended is not None)])
        if asked_for and since < asked.oldest:
            session.refreshed = (asked.came.time, asked.criteria, asked.disturbed)

    def _was_shown_elsewhere(self, own: Own, since: float) -> bool:
        """Whether another session of the caller's has since been shown the task that is asked for (DESIGN 7.12)."""
        task_id, others = own.params.get("taskId"), own.session.relatives
        seen = [shown for of in (own.session, *others) for truth in of.lives(task_id) for shown in truth.seen]
        gets = [other for other in self._upstream.own if other.method == "tasks/get"]
        seen += [(o.ended, o.session) for o in gets if o.ended and any(truth.id == task_id for truth in o.shown)]
        return own.method == "tasks/get" and any(at.time >= since and of in others for at, of in seen)

    def _is_crawl_due(self, session: ServerSession, asked: Asked) -> bool:
        first = session.first_cost
        return bool(self._interval_s) and first is not None and asked.came.time > first + self._interval_s


def _told(options: list[State | int]) -> str:
    """The states that a task may be taken to be in."""
    return (
        ", ".join("gone" if isinstance(o, int) else f"state {o.number} ({o.status})" for o in options) + " would match"
    )
