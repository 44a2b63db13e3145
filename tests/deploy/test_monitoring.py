"""The dashboard and the alerts of deploy/: a gateway that has traffic and faults, and the Prometheus that reads it.

Every expression has a value; every alert fires while the faults last, and none once they are over.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from tests.certificates import signed
from tests.deploy import prometheus
from tests.deploy.test_dashboard import DASHBOARD, PANELS, RULES
from tests.launch import Gateway, Gateways, held_port, port_of
from tests.redis_process import Store, redis
from tests.relay.messages import call, result
from tests.relay.test_page_tasks import workshop
from tests.world.servers import KINDS, Server

ALERTS: Final = {rule["alert"] for rule in RULES}

PATIENCE_S: Final = 60.0  # on a busy machine; a quiet one needs 10 s for each half
CONNECTIONS_MAX: Final = 60
IDLE: Final = 50  # connections while there are faults: more than TaskgateNearLimit allows
MAX_AGE_S: Final = 0.2
CROWDED_S: Final = 0.1  # twice what a request waits for its turn
FLAPS_S: Final = 0.7
SLOW: Final = 10  # sessions with slow lists: TaskgateQueriesSlow wants five lists in its range
SLOW_S: Final = 5.5  # longer than TaskgateQueriesSlow allows
UNFINISHED: Final = {"status": ["working", "input_required"]}


def expressions(title: str | None = None) -> list[str]:
    """Every expression of the dashboard, or of that panel, with values for its variables."""
    variables = {"$__rate_interval": prometheus.RANGE, "$__range": "1m"}
    variables |= {f"${variable['name']}": ".*" for variable in DASHBOARD["templating"]["list"]}
    found = []
    for panel in (panel for panel in PANELS if title in (None, panel["title"])):
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name in sorted(variables, key=len, reverse=True):
                expression = expression.replace(name, variables[name])
            found.append(expression)
    return found


class Upstream(Server):
    """A server that goes away and comes back, gives a `status` alone, or is slow (`delay_s`) until `hurried`."""

    def __init__(self, tasks: int = 60, delay_s: float = 0.0) -> None:
        super().__init__(KINDS["TypeScript SDK 1.x"])
        self.fill(tasks, 5)
        self.add("input_required")
        self.delay_s = delay_s
        self.status = 0
        self.makes = "completed"  # the status of the tasks that tools make
        self.hurried = asyncio.Event()
        self._socket = held_port()
        self.port = port_of(self._socket)
        self._runner: web.ServerRunner | None = None

    async def up(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def down(self) -> None:
        """Close the listener and every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def close(self) -> None:
        await self.down()
        self._socket.close()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.delay_s):
                await self.hurried.wait()
        if self.status:
            return web.Response(status=self.status)
        message = json.loads(await request.read())
        if message["method"] == "tools/call":
            return web.json_response(result(message["id"], {"task": self.tasks[self.add(self.makes)]}))
        return web.json_response(self.said(message))

    def finish(self) -> None:
        """End all tasks that work: they have done so for days."""
        for task_id, task in self.tasks.items():
            if task["status"] == "working":
                self.change(task_id, "completed")


class Session:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": uuid4().hex}

    async def ask(self, method: str, **params: object) -> None:
        """Send a request, and wait for whatever answers it."""
        with suppress(aiohttp.ClientConnectionError):  # of a connection that the gateway did not take
            async with self._http.post(self._url, json=call(method, **params), headers=self._headers) as response:
                await response.read()


class Stage:
    """Two gateways, and what clients do with the first. `faulty` adds what they should not."""

    pairs: list[tuple[Path, Path]]  # a certificate that ends soon and one that has ended, each with its key
    lone: Session  # asks once while its server is away, and never again

    def __init__(self, http: aiohttp.ClientSession, gateway: Gateway, spare: Gateway, store: Store) -> None:
        self.gateway = gateway
        self.spare = spare
        self.store = store
        self.faulty = False
        self._http = http
        assert gateway.file is not None
        self._configuration = gateway.file.read_text()
        self._idle: list[asyncio.StreamWriter] = []

    async def session(self, name: str) -> Session:
        session = Session(self._http, f"http://127.0.0.1:{self.gateway.port}/{name}/mcp")
        await session.ask("initialize")
        return session

    async def traffic(self, of: dict[str, Session]) -> None:
        """What clients do all the time, until it is cancelled."""
        research, shaky, tools = (of[name] for name in ("research", "shaky", "tools"))
        while True:
            await asyncio.gather(*(research.ask("tasks/list", **UNFINISHED) for _ in range(3)))
            await research.ask("ping")
            await research.ask("tools/list")
            await asyncio.gather(*(tools.ask("tools/call", name="render", task={}) for _ in range(5)))
            await research.ask("tasks/list", status=["no such status"])
            await asyncio.gather(*(shaky.ask("tasks/list", **UNFINISHED) for _ in range(3)))
            await shaky.ask("ping")
            for name, count in (("sick", 3), ("flapping", 10), ("locked", 20), ("crowded", 4 if self.faulty else 1)):
                await asyncio.gather(*(of[name].ask("ping") for _ in range(count)))
            if self.faulty:
                await _close(await self._connections(CONNECTIONS_MAX - IDLE))

    async def slow_queries(self, slow: list[Session]) -> None:
        """A query of each, again and again, each of which must ask the upstream; until it is cancelled."""
        while True:
            await asyncio.gather(*(each.ask("tasks/list", **UNFINISHED) for each in slow))
            await asyncio.sleep(MAX_AGE_S)

    async def flap(self, upstream: Upstream) -> None:
        """An upstream goes and comes while there are faults; until it is cancelled."""
        while True:
            await asyncio.sleep(FLAPS_S)
            if self.faulty:
                await upstream.down()
                await asyncio.sleep(FLAPS_S)
                await upstream.up()

    async def break_down(self, upstreams: dict[str, Upstream]) -> None:
        self.faulty, upstreams["slow"].delay_s = True, SLOW_S
        upstreams["sick"].status, upstreams["locked"].status = 500, 401
        upstreams["tools"].makes = "failed"
        for name in ("shaky", "lone"):
            await upstreams[name].down()
        await self.lone.ask("ping")
        self._idle = await self._connections(IDLE)
        self._reload(self._configuration.replace("upstreams", "downstreams"))
        self.spare.signal(signal.SIGSTOP)
        self.store.kill()

    async def recover(self, upstreams: dict[str, Upstream]) -> None:
        self.spare.signal(signal.SIGCONT)
        self.store.start()
        for pair in self.pairs:
            signed(*pair, days=90)
        self._reload(self._configuration)
        await _close(self._idle)
        self.faulty, upstreams["slow"].delay_s = False, 0.0
        upstreams["sick"].status = upstreams["locked"].status = 0
        upstreams["tools"].makes = "completed"
        upstreams["slow"].hurried.set()
        for name in ("shaky", "lone"):
            await upstreams[name].up()
        for upstream in upstreams.values():
            upstream.finish()

    def _reload(self, configuration: str) -> None:
        assert self.gateway.file is not None
        self.gateway.file.write_text(configuration)
        self.gateway.signal(signal.SIGHUP)

    async def _connections(self, count: int) -> list[asyncio.StreamWriter]:
        opening = (asyncio.open_connection("127.0.0.1", self.gateway.port) for _ in range(count))
        return [writer for _, writer in await asyncio.gather(*opening)]


async def _close(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@pytest.fixture
async def upstreams() -> AsyncIterator[dict[str, Upstream]]:
    found = {name: Upstream() for name in ("research", "shaky", "sick")}
    found |= {name: Upstream(5) for name in ("locked", "flapping", "slow", "lone", "tools")}  # on one page
    found["crowded"] = Upstream(delay_s=CROWDED_S)
    for upstream in found.values():
        await upstream.up()
    yield found
    for upstream in found.values():
        await upstream.close()


def settings(upstreams: dict[str, Upstream], store: Store, pairs: list[tuple[Path, Path]]) -> dict[str, Any]:
    """A gateway in front of them all, with small limits."""
    changed = {"crowded": {"requests_max": 2, "connect_timeout": "50ms"}}

    def behind(name: str, url: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "url": url, "match": {"prefix": f"/{name}"}, **more}

    files = {cert.stem: {"certificate": str(cert), "key": str(key)} for cert, key in pairs}
    never_asked = [behind(name, "https://127.0.0.1:1/mcp", tls=tls) for name, tls in files.items()]
    return {
        "log": {"level": "info"},
        "index": {"max_age": f"{MAX_AGE_S}s"},
        "limits": {"connections_max": CONNECTIONS_MAX},
        "store": {"url": store.url},
        "upstreams": [
            *never_asked,
            *(behind(n, f"http://127.0.0.1:{one.port}/mcp", **changed.get(n, {})) for n, one in upstreams.items()),
        ],
    }


@asynccontextmanager
async def stage(directory: Path, upstreams: dict[str, Upstream]) -> AsyncIterator[Stage]:
    """Two gateways, and clients of the first."""
    gateways = Gateways(directory)
    research = upstreams["research"]
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(redis(directory))
        pairs = [(directory / f"{name}.pem", directory / f"{name}.key") for name in ("ends", "ended")]
        for pair, days in zip(pairs, (1, -1 / 24), strict=True):
            signed(*pair, days=days)
        gateway = stack.enter_context(gateways.process(research.port, **settings(upstreams, store, pairs)))
        spare = stack.enter_context(gateways.process(research.port))
        made = Stage(await stack.enter_async_context(aiohttp.ClientSession()), gateway, spare, store)
        made.pairs = pairs
        made.lone = await made.session("lone")
        sessions = {name: await made.session(name) for name in upstreams}
        slow = [await made.session("slow") for _ in range(SLOW)]
        traffic = asyncio.create_task(made.traffic(sessions))
        queries = asyncio.create_task(made.slow_queries(slow))
        flaps = asyncio.create_task(made.flap(upstreams["flapping"]))
        yield made
        for task in (traffic, queries, flaps):
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled(), task.exception()


def test_each_summary_names_the_instance_and_the_upstream() -> None:
    for rule in RULES:
        summary = rule["annotations"]["summary"]
        assert "$labels.instance" in summary, summary
        assert "$labels.upstream" in summary or "upstream" not in rule["expr"], summary


async def test_the_dashboard_has_the_tasks_that_were_made(tmp_path: Path) -> None:
    with workshop(Gateways(tmp_path)) as shop:
        async with prometheus.running(tmp_path, [f"127.0.0.1:{shop.gateway.admin}"]) as seen:

            async def shows(title: str, *wanted: Any) -> None:
                async def equal() -> bool:
                    found = [value for expression in expressions(title) for value in await seen.values(expression)]
                    return sorted(filter(None, found)) == list(wanted)

                await prometheus.eventually(equal, f"{title}: {wanted}", PATIENCE_S)

            await asyncio.to_thread(shop.make, "render", times=3, age_s=7200.0)
            await asyncio.to_thread(shop.make, "approve", "input_required", times=2)
            await asyncio.to_thread(shop.make, "invoice")
            await shows("Tasks working", 1, 3)
            await shows("Tasks that wait for input", 2)
            for failed, completed, share in ((1, 1, 1 / 2), (5, 2, 6 / 9)):  # of a new histogram the first is not seen
                await asyncio.to_thread(shop.make, "invoice", "failed", times=failed)
                await asyncio.to_thread(shop.make, "invoice", "completed", times=completed)
                await shows("Failed tasks, of those that ended in 15 min", pytest.approx(share))
            await shows("Duration of tasks that ended in 1 h", pytest.approx(8.5), pytest.approx(9.85))
            assert 7200 <= max(await seen.values(expressions("Oldest task")[0])) < 7300 + 4 * PATIENCE_S


@pytest.mark.slow
async def test_every_panel_has_a_value_and_every_alert_fires_and_resolves(
    tmp_path: Path, upstreams: dict[str, Upstream]
) -> None:
    async with (
        stage(tmp_path, upstreams) as made,
        prometheus.running(tmp_path, [f"127.0.0.1:{made.gateway.admin}", f"127.0.0.1:{made.spare.admin}"]) as seen,
    ):
        empty, silent = set(expressions()), set(ALERTS)
        named = {
            'alertname="TaskgateUpstreamDown", upstream="lone"',
            'alertname="TaskgateUpstreamFailing", upstream="sick"',
            'alertname="TaskgateUpstreamFailing", upstream="flapping"',
            'alertname="TaskgateUpstreamRefuses", upstream="locked"',
            'alertname="TaskgateTasksFailing", upstream="tools", tool="render"',
        }

        async def is_read() -> bool:
            return bool(await seen.values('rate(taskgate_queries_total{upstream="shaky"}[2s])'))

        async def all_seen() -> bool:
            empty.difference_update([expression for expression in empty if await seen.values(expression)])
            silent.difference_update([name for name, states in (await seen.alerts()).items() if "firing" in states])
            for alert in [*named]:
                if await seen.values(f'ALERTS{{alertstate="firing", {alert}}}'):
                    named.remove(alert)
            return not empty | silent | named

        active: dict[str, set[str]] = {}

        async def none_active() -> bool:
            nonlocal active
            active = await seen.alerts()
            return not active

        await prometheus.eventually(is_read, "Prometheus has read the gateway twice", PATIENCE_S)
        await made.break_down(upstreams)
        try:
            await prometheus.eventually(
                all_seen, lambda: f"{empty} have a value, {silent} and {named} fire", PATIENCE_S
            )
        finally:
            await made.recover(upstreams)
        await prometheus.eventually(none_active, lambda: f"no alert is active: {active}", PATIENCE_S)
