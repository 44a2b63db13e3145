"""What became of a row, and whether the row allows it: the strict reader of each side accepts the bytes."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tests.attack.readers import Reading, read_requests, read_responses
from tests.attack.rows import Got, Outcome, Request, Response, Seen
from tests.attack.upstream import HOSTILE, Upstream
from tests.attack.victim import SECRET, TARGET, Victim
from tests.peer import Client
from tests.relay.http1 import Message

# RFC 9110, 7.6.1: they are of one connection, and end at the gateway.
_HOP_BY_HOP: Final = (b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade")
# RFC 9110, 6.5.1: what frames, routes, authenticates, modifies the request or describes the content.
NEVER_TRAILERS: Final = (
    *(b"connection", b"content-length", b"transfer-encoding", b"keep-alive", b"upgrade", b"te", b"trailer", b"host"),
    *(b"authorization", b"proxy-authorization", b"cookie", b"set-cookie", b"origin", b"forwarded", b"expect", b"range"),
    *(b"content-type", b"content-encoding", b"content-range", b"cache-control", b"if-match", b"location"),
    *(b"mcp-session-id", b"mcp-method", b"x-forwarded-for", b"www-authenticate", b"age", b"vary", b"date"),
    *(b"max-forwards", b"proxy-connection", b"accept-encoding", b"last-event-id", b"access-control-allow-origin"),
    *(b"x-tenant",),
)


class Scene:
    """The bytes of one row, and what the reader makes of them."""

    def __init__(
        self, upstream: Upstream, authority: bytes, hostile: Client, victims: Sequence[Victim], behind: Victim | None
    ) -> None:
        self.upstream = upstream
        self.hostile = hostile
        self.received = bytes(hostile.received)
        self.behind = behind
        self._authority = authority
        self._victims = victims
        self.arrived = [message for _, message in upstream.arrivals]
        self.attacks = [m for m in self.arrived if not m.target.startswith(TARGET)]
        self.readings = [(link, read_requests(bytes(link.received))) for link in upstream.links]

    # ---- what holds for every row ----

    def common(self) -> list[str]:
        found = [fault for victim in self._victims for fault in victim.wrongs_above(self.arrived)]
        if any(victim.secret in self.received for victim in self._victims):
            found.append("the hostile client got a victim's bytes")
        allowed = {victim.target for victim in self._victims} | {self.behind.target if self.behind else b""}
        for message in self.arrived:
            found += self._well_formed(message)
            if message.target.startswith(TARGET) and message.target not in allowed:
                found.append(f"a victim's request of another row came: {message}")
        found += [f"a victim's bytes are in {message}" for message in self.attacks if self._holds_a_secret(message)]
        for link, reading in self.readings:
            found += [f"at the upstream: {reading.fault}"] if reading.fault else []
            if reading.rest and not link.left.done():
                found.append("at the upstream: half a request on a connection that stays open")
        return found

    def _holds_a_secret(self, message: Message) -> bool:
        """Whether a victim's bytes are in a foreign request, other than the one behind the hostile request."""
        parts = [message.body, *(value for _, value in message.fields + message.trailers)]
        if self.behind is not None and any(self.behind.secret in part for part in parts):
            return False
        return any(SECRET in part for part in parts)

    def _well_formed(self, message: Message) -> list[str]:
        names = [name for name, _ in message.fields]
        found = [f"at the upstream: {name!r} is hop-by-hop" for name in _HOP_BY_HOP if name in names]
        if message.values(b"host") != [self._authority]:
            found.append(f"at the upstream: Host {message.values(b'host')}")
        if names.count(b"content-length") + names.count(b"transfer-encoding") > 1:
            found.append(f"at the upstream: two framings in {message.fields}")
        bad = [name for name, _ in message.trailers if name in NEVER_TRAILERS]
        return found + [f"at the upstream: {name!r} as a trailer" for name in bad]

    def responses(self, methods: Sequence[bytes]) -> Reading:
        return read_responses(self.received, methods, self.hostile.end == "fin")


# ---- requests ----


def judge_request(row: Request, scene: Scene) -> list[str]:
    """The faults of a request's outcome, by the nearest allowed one."""
    return min((_against(outcome, scene) for outcome in row.may), key=len)


def _against(outcome: Outcome, scene: Scene) -> list[str]:
    behind = scene.behind
    found = _reached(outcome, scene)
    came = behind is not None and any(m.target == behind.target for m in scene.arrived)
    if behind is not None and not outcome.refused:
        found += behind.wrongs_above(scene.arrived)
    elif came and not outcome.keeps:
        found.append("what stands behind a request that was refused reached the upstream")
    methods = [seen.method for seen in outcome.seen] + [b"POST"] * (bool(outcome.refused) + (behind is not None))
    came_back = scene.responses(methods)
    if outcome.unanswered and len(came_back.finals) < len(outcome.seen):
        return found
    found += [f"at the client: {came_back.fault}"] if came_back.fault else []
    return found + _told(outcome, scene, came_back)


def _reached(outcome: Outcome, scene: Scene) -> list[str]:
    found: list[str] = []
    if len(scene.attacks) != len(outcome.seen):
        got = [message.start for message in scene.attacks]
        found.append(f"{len(scene.attacks)} requests reached the upstream, {len(outcome.seen)} should: {got}")
    for seen, message in zip(outcome.seen, scene.attacks, strict=False):
        found += _seen(seen, message)
        found += _followed(scene, partial(operator.is_, message)) if seen.alone else []
    if any(one.rest for _, one in scene.readings) and not outcome.cut:
        found.append("a part of what is refused reached the upstream")
    return found


def _followed(scene: Scene, is_hostile: Callable[[Message], bool]) -> list[str]:
    """The fault that another request came behind a hostile one, on its connection."""
    arrivals = scene.upstream.arrivals
    links = [link for link, message in arrivals if is_hostile(message)]
    first = next(at for at, (_, message) in enumerate(arrivals) if is_hostile(message))
    after = [message for link, message in arrivals[first:] if link in links and not is_hostile(message)]
    return ["another client's request followed on its connection"] if after else []


def _seen(seen: Seen, got: Message) -> list[str]:
    found = []
    if got.start != seen.method + b" " + seen.target:
        found.append(f"{(seen.method, seen.target)} became {got.start!r}")
    if got.body != seen.body:
        found.append(f"its body became {got.body[:200]!r}")
    found += [f"{pair} is not there" for pair in seen.has if pair not in got.fields]
    found += [f"{name!r} is still there" for name in seen.lacks if got.values(name)]
    if seen.trailers is not None and got.trailers != seen.trailers:
        found.append(f"its trailers became {got.trailers}")
    return found


def _told(outcome: Outcome, scene: Scene, got: Reading) -> list[str]:
    found: list[str] = []
    finals = got.finals
    for seen, response in zip(outcome.seen, finals, strict=False):
        said = b"" if seen.method == b"HEAD" else b"you asked %b %b" % (seen.method, seen.target)
        if (response.status, response.body) != (200, said):
            found.append(f"instead of {said!r}: {response.start!r} {response.body[:200]!r}")
    rest = finals[len(outcome.seen) :]
    if len(finals) < len(outcome.seen):
        return [*found, f"{len(finals)} of {len(outcome.seen)} answers came"]
    if not outcome.refused:
        if scene.behind is not None and not (len(rest) == 1 and scene.behind.is_answer(rest[0])):
            found.append(f"the request behind it got {rest}")
        elif scene.behind is None and rest:
            found.append(f"more answers than requests: {rest}")
        return found
    return found + _refusal(outcome, scene, rest)


def _refusal(outcome: Outcome, scene: Scene, rest: list[Message]) -> list[str]:
    if not rest:
        return [] if outcome.silent and scene.hostile.end != "open" else ["no refusal came"]
    found = []
    if rest[0].status not in outcome.refused:
        found.append(f"refused with {rest[0].status}, allowed {sorted(outcome.refused)}")
    if b'"code":-32600' not in rest[0].body.replace(b": ", b":"):
        found.append(f"no error -32600: {rest[0].body[:200]!r}")
    if len(rest) > 1 and not (scene.behind is not None and len(rest) == 2 and scene.behind.is_answer(rest[1])):
        found.append(f"behind the refusal: {rest[1:]}")
    if not outcome.keeps and (len(rest) > 1 or scene.hostile.end == "open"):
        found.append("the connection goes on behind a refusal")
    if not outcome.keeps and [value.lower() for value in rest[0].values(b"connection")] != [b"close"]:
        found.append("the refusal does not say that the connection ends")
    return found


# ---- responses ----


def judge_response(row: Response, method: bytes, scene: Scene) -> list[str]:
    """The faults in what the client got of a hostile answer, by the nearest allowed one."""
    reading = scene.responses([method])
    found = min((_got(may, reading, scene) for may in row.may), key=len)
    asked = [message for message in scene.attacks if message.target == HOSTILE]
    once = method == b"POST" and not row.crawled
    if once and len(asked) != 1:
        found.append(f"it reached the upstream {len(asked)} times")
    found += _followed(scene, lambda message: message.target == HOSTILE) if row.alone else []
    return found


def _got(may: Got, one: Reading, scene: Scene) -> list[str]:
    if may.status == 0:
        if scene.hostile.end == "open":
            return ["it is not cut"]
        return ["it looks whole"] if one.finals else []
    found = [f"at the client: {one.fault}"] if one.fault else []
    if len(one.finals) != 1:
        return [*found, f"{len(one.finals)} answers came, the connection is {scene.hostile.end}"]
    got = one.finals[0]
    if got.status != may.status:
        return [*found, f"status {got.status}, not {may.status}: {got.body[:200]!r}"]
    found += ["another reason"] if may.reason is not None and got.start.split(b" ", 2)[2] != may.reason else []
    found += [f"another body: {got.body[:200]!r}"] if may.body is not None and got.body != may.body else []
    found += [f"{pair} is not there" for pair in may.has if pair not in got.fields]
    found += [f"{name!r} is still there" for name in may.lacks if got.values(name)]
    found += [f"{name!r} as a trailer" for name, _ in got.trailers if name in NEVER_TRAILERS]
    if may.trailers is not None and got.trailers != may.trailers:
        found.append(f"its trailers became {got.trailers}")
    informational = tuple(message.status for message in one.messages if message.status < 200)
    if may.before is not None and informational != may.before:
        found.append(f"the 1xx before it became {informational}")
    if may.error and b'"error":{"code":' not in got.body:
        found.append(f"no JSON-RPC error: {got.body[:200]!r}")
    return found
