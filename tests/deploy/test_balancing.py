"""The recipes of deploy/balancing/: three replicas, and in front of them HAProxy, Envoy and nginx at once.

Each replica has an upstream of its own, which answers a ping with the replica's number; a test answers the rest.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from gateway import config
from tests.deploy.balancers import CLIENTS_PORT, KINDS, RECIPES, REPLICAS, ports_in, running
from tests.launch import STOP_S, Gateways, Process, eventually, held_port, listening, port_of, ports, settings
from tests.peer import Client, Peer
from tests.relay.http1 import Message
from tests.relay.messages import LAST_CHUNK, call, chunk, event, notification, post, request, response, result, stream
from tests.relay.rig import Place, Rig, Script, body, final

SESSIONS_MAX: Final = 300
LIMITS: Final = {"shutdown_delay": "400ms", "drain_timeout": "1m"}
SEVERAL: Final = 16
STRAYS_MAX: Final = 2  # Envoy's table moves one session in a thousand


class Replica:
    """A gateway in a process of its own, with an upstream of its own. It can be ended and started at its ports."""

    def __init__(self, gateways: Gateways, sock: socket.socket, listen: int, admin: int) -> None:
        self.ports = listen, admin
        self._gateways = gateways
        self._sock = sock
        self._running = ExitStack()

    def start(self) -> None:
        """Run a gateway, which may not be ready yet."""
        config = settings(*self.ports, port_of(self._sock), {"limits": LIMITS})
        self.place = Place(self._running.enter_context(self._gateways.starting(config)), self._sock)

    def close(self) -> None:
        """End the gateway, if it runs, and check how it ended."""
        self._running.close()

    async def restart(self) -> None:
        """Run the gateway again, once it has ended, until it is ready."""
        await asyncio.to_thread(self.close)
        self.start()
        await asyncio.to_thread(self.place.gateway.wait)


class Fleet(NamedTuple):
    replicas: list[Replica]
    balancers: dict[str, Process]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    gateways = Gateways(tmp_path_factory.mktemp("replicas"))
    with ExitStack() as stack:
        replicas = []
        for _ in range(REPLICAS):
            sock = stack.enter_context(listening())
            replicas.append(Replica(gateways, sock, *stack.enter_context(ports())))
            stack.callback(replicas[-1].close)
            replicas[-1].start()
        for replica in replicas:
            replica.place.gateway.wait()
        behind = [replica.ports for replica in replicas]
        balancers = {}
        for name in KINDS:
            port = port_of(stack.enter_context(held_port()))
            balancers[name] = stack.enter_context(running(name, tmp_path_factory.mktemp(name), port, behind))
        for balancer in balancers.values():
            balancer.wait()
        yield Fleet(replicas, balancers)
        for replica in replicas:
            replica.place.gateway.signal(signal.SIGTERM)
        for replica in replicas:
            replica.place.gateway.running.popen.wait(STOP_S)


def field(session: str | None) -> list[bytes]:
    return [] if session is None else [b"Mcp-Session-Id: " + session.encode()]


class Stage:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.rigs = [Rig(replica.place) for replica in fleet.replicas]
        self.left: dict[bytes, Peer] = {}  # requests that the test answers, by what names their session
        self._clients: list[Client] = []
        for number, rig in enumerate(self.rigs):
            rig.serve(self._script(number))

    def _script(self, number: int) -> Script:
        async def answered(request: Message, peer: Peer) -> bytes | None:
            if body(request) == call("ping"):
                return response(b"%d" % number)
            self.left[request.method + (request.value(b"mcp-session-id") or b"")] = peer
            return None

        return answered

    async def arrives(self, method: str, session: str) -> Peer:
        """The upstream's end of a request that the test answers."""
        name = f"{method}{session}".encode()
        await eventually(lambda: name in self.left, f"the {method} of the session at an upstream")
        return self.left.pop(name)

    async def client(self, balancer: str, data: bytes) -> Client:
        one = await Client.connect(urlsplit(self.fleet.balancers[balancer].origin).port or 0)
        self._clients.append(one)
        await one.send(data)
        return one

    async def ping(self, balancer: str, session: str | None) -> Message:
        one = await self.client(balancer, post(call("ping"), *field(session)))
        got = await one.response()
        await one.close()
        return got

    async def home(self, balancer: str, session: str | None) -> int:
        """The number of the replica that gets a session's requests."""
        got = await self.ping(balancer, session)
        assert got.status == 200, got
        return int(got.body)

    async def homes(self, balancer: str) -> dict[str, int]:
        """Several sessions, and the replicas that get their requests: each replica has some."""
        found: dict[str, int] = {}
        while len(found) < SEVERAL or len(set(found.values())) < REPLICAS:
            assert len(found) < SESSIONS_MAX, f"{balancer} leaves a replica out: {set(found.values())}"
            session = uuid4().hex
            found[session] = await self.home(balancer, session)
        return found

    async def leaves(self, balancer: str, session: str, number: int) -> None:
        """Return once another replica than that one answers the session's requests."""

        async def left() -> bool:
            got = await self.ping(balancer, session)
            return got.status == 200 and int(got.body) != number

        await eventually(left, f"{balancer} leaves replica {number}")

    async def finds_not_ready(self, balancer: str) -> None:
        """Return once a balancer that asks /readyz has been answered 503."""
        words, log = KINDS[balancer].not_ready, self.fleet.balancers[balancer].log
        await eventually(lambda: words is None or words in log.read_text(), f"{words!r} in the log of {balancer}")

    async def comes_back(self, balancer: str, homes: dict[str, int]) -> None:
        """Return once every session is where it was."""

        async def back() -> bool:
            return [await self.home(balancer, session) for session in homes] == list(homes.values())

        await eventually(back, f"{balancer} has its sessions where they were")

    async def close(self) -> None:
        for one in self._clients:
            await one.close()
        for rig in self.rigs:
            await rig.close()


@pytest.fixture
async def stage(fleet: Fleet) -> AsyncIterator[Stage]:
    one = Stage(fleet)
    yield one
    await one.close()


each_balancer: Final = pytest.mark.parametrize("balancer", KINDS)


@each_balancer
async def test_requests_without_a_session_go_to_all_replicas(stage: Stage, balancer: str) -> None:
    got: set[int] = set()
    for _ in range(SESSIONS_MAX):
        got.add(await stage.home(balancer, None))
        if len(got) == REPLICAS:
            return
    raise AssertionError(f"{balancer} sends requests without a session to {got} alone")


@each_balancer
async def test_events_come_at_once_and_a_client_that_leaves_ends_its_stream(stage: Stage, balancer: str) -> None:
    session = uuid4().hex
    one = await stage.client(balancer, request(fields=[b"Accept: text/event-stream", *field(session)]))
    peer = await stage.arrives("GET", session)
    await peer.send(stream())
    await one.hears(b"\r\n\r\n")
    for number in range(3):
        await peer.send(chunk(event(b"%d" % number)))
        await one.hears(b"data: %d\n\n" % number)
    await one.close()
    await peer.ends()


ODD_TARGET: Final = b"/a%2Fb//c/%7E?x=%2f&&y=a+b&z="
ODD_FIELDS: Final = (
    b"Content-Type: application/json",
    b"Accept: application/json, text/event-stream",
    b"Authorization: Bearer a.b-c_d~e+f/g==",
    b"Mcp-Session-Id: !0~_%41",
    b"Mcp-Protocol-Version: 2025-11-25",
    b"Origin: http://localhost:7777",
    b"Cookie: a=1; b=2",
    b"Last-Event-ID: 0/1",
    b"X-Own: \xe2\x82\xac \xff",
    b"x_own: 1",
    b"X-Long: " + b"a" * 10_000,
)
ODD_ANSWER: Final = (
    b"Content-Type: application/octet-stream",
    b'WWW-Authenticate: Bearer resource_metadata="http://127.0.0.1:1/x", scope="a b"',
    b"Mcp-Session-Id: !0~_%41",
    b"Set-Cookie: a=1",
    b"Set-Cookie: b=2",
    b"Server: legacy",
    b"Date: Thu, 01 Jan 2026 00:00:00 GMT",
)
OF_A_CONNECTION: Final = (b"host", b"connection", b"keep-alive", b"transfer-encoding", b"content-length")
BYTES: Final = bytes(range(256)) * 300


def carried(message: Message) -> list[tuple[bytes, bytes]]:
    """The header fields that belong to the message, whatever the case of their names."""
    return sorted((n.lower(), v) for n, v in message.fields if n.lower() not in OF_A_CONNECTION)


def written(fields: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    return sorted((name.lower(), value) for name, _, value in (line.partition(b": ") for line in fields))


@each_balancer
async def test_messages_pass_as_they_are(stage: Stage, balancer: str) -> None:
    one = await stage.client(balancer, request(b"POST", ODD_TARGET, ODD_FIELDS, BYTES))
    peer = await stage.arrives("POST", "!0~_%41")
    await peer.send(response(BYTES, *ODD_ANSWER, status=b"401 Unauthorized"))
    got = await one.response()
    await one.close()
    [sent] = peer.incoming.requests()
    assert sent.target == ODD_TARGET
    assert carried(sent) == sorted([*written(ODD_FIELDS), (b"x-forwarded-proto", b"http")])
    assert (got.status, carried(got)) == (401, written(ODD_ANSWER))
    assert sent.body == got.body == BYTES


async def test_a_killed_replica_is_left_until_it_is_back(stage: Stage) -> None:
    homes = {balancer: await stage.homes(balancer) for balancer in KINDS}
    replica = stage.fleet.replicas[1]
    replica.place.gateway.kill()
    for balancer, sessions in homes.items():
        await stage.leaves(balancer, next(s for s, number in sessions.items() if number == 1), 1)
        now = {session: await stage.home(balancer, session) for session in sessions}
        assert 1 not in now.values()
        strays = [session for session, number in sessions.items() if number not in (1, now[session])]
        assert len(strays) <= STRAYS_MAX, f"{balancer}: a session moves only if its replica goes"
    await replica.restart()
    for balancer, sessions in homes.items():
        await stage.comes_back(balancer, sessions)


class Open:
    """A session at replica 0: its event stream, and a call that is answered with a stream."""

    def __init__(self, stage: Stage, balancer: str, homes: dict[str, int]) -> None:
        self.stage, self.balancer, self.homes = stage, balancer, homes
        self.session = next(session for session, number in homes.items() if number == 0)

    async def begin(self) -> None:
        get = request(fields=[b"Accept: text/event-stream", *field(self.session)])
        self.listener = await self.stage.client(self.balancer, get)
        self._news = await self.stage.arrives("GET", self.session)
        self._caller = await self.stage.client(self.balancer, post(call("tools/call"), *field(self.session)))
        self._called = await self.stage.arrives("POST", self.session)
        for peer, one in ((self._news, self.listener), (self._called, self._caller)):
            await peer.send(stream() + chunk(event(notification("notifications/progress", progress=1))))
            await one.hears(b'"progress":1')

    async def finish(self) -> None:
        """Both streams go on, and the answer ends whole."""
        await self._news.send(chunk(event(notification("notifications/progress", progress=2))))
        await self.listener.hears(b'"progress":2')
        await self._called.send(chunk(event(notification("notifications/progress", progress=2))))
        await self._caller.hears(b'"progress":2')
        await self._called.send(chunk(event(result(1, {}))) + LAST_CHUNK)
        assert final(await self._caller.response()) == result(1, {})


async def test_a_draining_replica_finishes_its_answers_and_gets_nothing_new(stage: Stage) -> None:
    all_open = [Open(stage, balancer, await stage.homes(balancer)) for balancer in KINDS]
    for each in all_open:
        await each.begin()
    replica, upstream = stage.fleet.replicas[0], stage.rigs[0].upstream
    replica.place.gateway.signal(signal.SIGTERM)
    for each in all_open:
        await stage.leaves(each.balancer, each.session, 0)
        await stage.finds_not_ready(each.balancer)
    known = len(upstream.requests)
    for each in all_open:
        for session in each.homes:
            assert await stage.home(each.balancer, session) != 0
    assert len(upstream.requests) == known
    for each in all_open:
        await each.finish()
    for each in all_open:
        await each.listener.ends()
    assert await replica.place.gateway.exits() == 0
    await replica.restart()
    for each in all_open:
        await stage.comes_back(each.balancer, each.homes)


def test_one_file_configures_all_replicas_of_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    file = RECIPES / "taskgate.yaml"
    found = {CLIENTS_PORT}
    for number in range(1, REPLICAS + 1):
        monkeypatch.setenv("TASKGATE_INSTANCE", str(number))
        read = config.parse(file.read_text(), file.name)
        assert read.admin is not None
        found |= {read.listen.port, read.admin.listen.port}
    for kind in KINDS.values():
        named = ports_in(kind.recipe.read_text())
        assert named <= found
        assert named | set(range(9091, 9091 + REPLICAS)) == found, kind.recipe.name
