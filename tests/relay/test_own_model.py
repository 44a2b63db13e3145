"""Random callers against a model of whose each task is (`guards.own_tasks`, DESIGN 8.16), through reloads.

In: callers with sessions, credentials, both, empty ones, or a proof; two servers that give few ids again and again, at
several spellings of their address, answer some calls late, and some so that nobody can read whose task it is; reloads
from one to the other. Out: what each caller gets. Always: he gets and lists what the model says is his, and no other's.

OWN_STEPS sets how many steps are drawn; the default is 600. OWN_SEED plays others.
"""

import asyncio
import os
import random
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from tests.launch import Gateways, listening
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import Json, answer, call, chunked, dumps, event, fault, page, post, result, stream, task
from tests.relay.rig import Place, Rig, body, final, ids, rig_at, rig_with

STEPS: Final = int(os.environ.get("OWN_STEPS", "600"))
SEED: Final = int(os.environ.get("OWN_SEED", "1"))
LATE_S_MAX: Final = 8.0
IDS: Final = [str(number) for number in range(1, 7)]
CONFIG: Final[Json] = {
    "log": {"level": "error"}, "guards": {"own_tasks": True}, "index": {"max_age": 0},
    "limits": {"inspected_body_bytes_max": 20_000, "inspected_event_bytes_max": 20_000},
}  # fmt: skip
CREDENTIALS: Final = (b"Authorization: Bearer a", b"Authorization: Bearer b", b"Cookie: sid=c")
EMPTY: Final = (
    b"Authorization:",
    b"Authorization: Bearer",
    b"Authorization: Bearer undefined",
    b"Authorization: Basic Og==",
    b"Cookie:",
    b"Cookie: sid=; x=",
    b"Cookie: AWSALB=1; AWSALBCORS=1",
    b"Mcp-Session-Id:",
)
UNKNOWN: Final = {"code": -32602, "message": "Failed to retrieve task: Task not found"}
LISTED: Final[list[Json]] = [{}, {"status": ["working"]}, {"taskIds": [*IDS, "none"]}, {"cursor": "1"}]
SESSIONS: Final = (b"Mcp-Session-Id: s-1", b"Mcp-Session-Id: s-2")
PROVES: Final = {b"DPoP: p", b"Authorization: Negotiate abc"}  # one request, or one connection, and nobody besides
TARGETS: Final = (b"/mcp", b"/mcp", b"/mcp?x", b"/MCP")  # one server; a task is his at the target where he made it
UNREAD: Final = [" ".join(how) for how in product(("reset", "closed", "large"), ("plain", "gzip"), ("JSON", "stream"))]
WAYS: Final = ("JSON", "JSON", "JSON", "stream", "stream", "2026-07-28", "ttl 0", *["unread"] * 3)
"""How an answer makes a task. Where it is unread, what had the id is nobody's: its beginning names it."""


@dataclass(frozen=True)
class Who:
    fields: tuple[bytes, ...]

    @property
    def owners(self) -> frozenset[bytes]:
        """Whom a task belongs to that is made for him."""
        return frozenset() if PROVES & {*self.fields} else frozenset(self.fields).intersection(CREDENTIALS + SESSIONS)


CALLERS: Final = [
    *(Who((one,)) for one in CREDENTIALS + SESSIONS + EMPTY),
    *(Who((session, one)) for session in SESSIONS for one in (*CREDENTIALS, *EMPTY[:-1])),
    Who(()), *(Who((SESSIONS[0], one)) for one in sorted(PROVES)),
]  # fmt: skip


def unread(said: Json, way: str) -> bytes:
    """A response that breaks off behind the id of a task, or is large; as the connection ends, without a length too."""
    begun = event(said) if "stream" in way else dumps(said)
    begun = begun if "large" in way else begun[: begun.index(b"createdAt")]
    pack = zlib.compressobj(level=0 if "large" in way else 6, wbits=31)
    coded = pack.compress(begun) + pack.flush(zlib.Z_SYNC_FLUSH) if "gzip" in way else begun
    kind = b"Content-Type: " + (b"text/event-stream" if "stream" in way else b"application/json")
    coding = b"Content-Encoding: gzip" if "gzip" in way else b"X: y"
    framing = b"Content-Length: 100000" if "reset" in way else b"Connection: close"
    return b"\r\n".join((b"HTTP/1.1 200 OK", kind, coding, framing, b"", coded))


Made = dict[str, tuple[frozenset[bytes], str, bytes]]


@dataclass
class Server:
    """A server that shows every task to everybody. The calls in `waiting` go on once they are told to."""

    tasks: dict[str, Json] = field(default_factory=dict)
    waiting: dict[str, asyncio.Event] = field(default_factory=dict)

    async def script(self, asked: Message, peer: Peer) -> bytes | None:
        message = body(asked)
        params, method = message["params"], message["method"]
        if method == "tools/call":
            if (goes_on := self.waiting.get(params["name"])) is not None:
                await goes_on.wait()
            task_id, way = params["arguments"]["id"], params["arguments"]["way"]
            self.tasks[task_id] = made = task(task_id, statusMessage=params["name"], **params.get("task", {}))
            more = {"statusMessage": '"taskId":"1"' + "y" * 30_000} if "large" in way else {}  # a text names no task
            shown = {"resultType": "task", **made} if way == "2026-07-28" else {"task": made | more}
            said = result(message["id"], shown)
            if way in UNREAD:
                await peer.send(unread(said, way))
                peer.reset() if "reset" in way else await peer.close()
                return None
            return stream() + chunked(event(said)) if way == "stream" else answer(said)
        if method == "tasks/list":
            return answer(result(message["id"], page(self.tasks.values())))
        found = self.tasks.get(params["taskId"])
        return answer(fault(message["id"], -32602, "no") if found is None else result(message["id"], found))


class Play:
    """The steps of one history, and the model: by id whose it is, and by which call it was made."""

    def __init__(self, rng: random.Random, rigs: list[Rig], servers: list[Server]) -> None:
        self.rng, self.rigs, self.servers = rng, rigs, servers
        self.at = 0
        self.made: Made = {}
        self.known: dict[object, Made] = {self.key: self.made}  # a server that comes back may be known still
        self.late = list[tuple[float, str, Made, Who, str, bytes, asyncio.Event, asyncio.Task[Message]]]()
        self.drawn = Counter[str]()

    @property
    def key(self) -> object:
        return self.rigs[0].app._pools.of["up"].context.server

    async def ask(self, who: Who, message: Json, target: bytes = b"/mcp") -> Json:
        balanced = b"Cookie: sid=c; AWSALB=%d" % self.rng.randrange(1000)  # a balancer sets its cookie in each answer
        fields = [balanced if field == CREDENTIALS[2] else field for field in who.fields]
        return final(await self.rigs[self.at].ask(post(message, *fields, target=target)))

    async def make(self, number: int) -> None:
        who, task_id, name = self.rng.choice(CALLERS), self.rng.choice(IDS), f"call-{number}"
        way = self.rng.choice(WAYS)
        if way == "ttl 0" and who.owners:
            way = "JSON"
        if way == "unread":
            way = min(UNREAD, key=lambda each: self.drawn[each])
            task_id = self.rng.choice([each for each, (owners, *_) in self.made.items() if owners] or IDS)
        given: Json = {} if way == "2026-07-28" else {"task": {"ttl": 0} if way == "ttl 0" else {}}
        asked = call("tools/call", name=name, arguments={"id": task_id, "way": way}, **given)
        target = self.rng.choice(TARGETS)
        if way in UNREAD:
            got = await self.rigs[self.at].ask(post(asked, *who.fields, target=target))
            assert b"taskId" not in got.body
            owners, _, made_at = self.made.get(task_id, (frozenset(), "", b"/mcp"))
            for owner in owners:
                said = await self.ask(Who((owner,)), call("tasks/get", taskId=task_id), made_at)
                assert said["error"] == UNKNOWN
            self.drawn[way] += bool(owners)
            self.made[task_id] = frozenset(), name, target
            return
        if self.rng.random() < 0.3 and len(self.late) < 4:
            self.servers[self.at].waiting[name] = goes_on = asyncio.Event()
            rig = self.rigs[self.at]
            before = len(rig.upstream.requests)
            asking = rig.asking(post(asked, *who.fields, target=target))
            await rig.upstream.request(before + 1)
            self.late.append((time.monotonic(), name, self.made, who, task_id, target, goes_on, asking))
            self.drawn["late"] += 1
            return
        made = (await self.ask(who, asked, target))["result"]
        assert made.get("task", made)["taskId"] == task_id
        self.drawn["made again"] += task_id in self.made
        self.made[task_id] = who.owners, name, target

    async def end(self, _: int) -> None:
        if self.late:
            await self.answer(self.rng.randrange(len(self.late)))

    async def answer(self, at: int) -> None:
        """A server answers a call at last."""
        _, name, made, who, task_id, target, goes_on, asking = self.late.pop(at)
        goes_on.set()
        made_late = final(await asking)["result"]
        assert made_late.get("task", made_late)["statusMessage"] == name
        self.drawn["over a reload"] += made is not self.made
        made[task_id] = who.owners, name, target

    async def look(self, _: int) -> None:
        who, task_id = self.rng.choice(CALLERS), self.rng.choice(IDS)
        method = self.rng.choice(["tasks/get", "tasks/result", "tasks/cancel"])
        owners, name, made_at = self.made.get(task_id, (frozenset(), "", b"/mcp"))
        target = self.rng.choice((made_at, *TARGETS))
        asked = len(self.rigs[self.at].upstream.requests)
        said = await self.ask(who, call(method, taskId=task_id), target)
        self.drawn["empty or none"] += not who.owners
        if who.owners & owners and target == made_at:
            assert said["result"]["statusMessage"] == name, (who, task_id, said)
        else:
            error = said["error"]
            assert error == UNKNOWN or (error["code"] == -32602 and not who.owners), (who, task_id, said)
            assert len(self.rigs[self.at].upstream.requests) == asked, "the server is asked"

    async def list(self, _: int) -> None:
        who, criteria = self.rng.choice(CALLERS), self.rng.choice(LISTED)
        said = await self.ask(who, call("tasks/list", **criteria))
        if who.owners and "cursor" not in criteria:
            his = {task_id: target for task_id, (owners, _, target) in self.made.items() if who.owners & owners}
            assert his.keys() >= {*ids(said)} >= {each for each in his if his[each] == b"/mcp"}, (who, said)
        else:
            assert said["error"]["code"] == -32602

    async def reload(self, _: int) -> None:
        self.at ^= self.rng.random() < 0.8  # seldom the same server
        self.rigs[self.at].gateway.reload(self.rigs[self.at].settings(**CONFIG))
        self.drawn["came back"] += self.key in self.known
        self.made = self.known.setdefault(self.key, {})
        self.drawn["reload"] += 1


async def test_callers_get_what_the_model_says_is_theirs(gateways: Gateways) -> None:
    rng, servers = random.Random(SEED), [Server(), Server()]
    with listening() as sock:
        async with (
            rig_with(gateways, servers[0].script, **CONFIG) as one,
            rig_at(Place(one.gateway, sock), servers[1].script) as other,
        ):
            play = Play(rng, [one, other], servers)
            steps = [play.make] * 5 + [play.end] * 2 + [play.look] * 8 + [play.list] * 2 + [play.reload]
            for number in range(STEPS):
                await rng.choice(steps)(number)
                if play.late and time.monotonic() - play.late[0][0] > LATE_S_MAX:
                    await play.answer(0)  # its client waits for so long only
            while play.late:
                await play.answer(0)
            least = ("late", "made again", "over a reload", "empty or none", "reload")
            assert play.drawn >= Counter(dict.fromkeys(least, 5)) + Counter(UNREAD), play.drawn
            print(play.drawn)
