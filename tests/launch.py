"""The one launcher of the gateway: the real command as a process, or the App on the test's own event loop.

A process is ended by its own id, in a session of its own, so that Ctrl-C reaches the tests alone; its exit status must
be 0; a traceback or a warning in its log fails the test.
"""

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gateway import config as gateway_config
from gateway.app import App
from gateway.operate import log_format

if TYPE_CHECKING:
    from tests.forked import Fork

Json: TypeAlias = dict[str, Any]

ROOT: Final = Path(__file__).parents[1]
START_S: Final = 60.0
STOP_S: Final = 30.0  # more than the gateway takes to drain
RUN_S: Final = 60.0  # as all waits here, long: a machine may be busy, and only a test that fails waits so long
POLL_S: Final = 0.02
LEAVE_S: Final = 20.0
EVENTUALLY_S: Final = 20.0
TAIL_BYTES: Final = 4000
COMMAND: Final = (sys.executable, "-W", "error", "-m", "gateway")
# No authority that this machine trusts: tests name their own. To read the machine's is a fifth of a start.
NO_AUTHORITIES: Final = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
# A log must never show these: an exception that nobody caught, or a fault that Python saw.
FAULTS: Final = ("Traceback", "Warning:", "never retrieved", "was destroyed but it is pending", "could not be handled")


# ---- ports ----


def held_port(port: int = 0, host: str = "127.0.0.1") -> socket.socket:
    """A port of a loopback address, reserved: bound, not listening. A server with SO_REUSEADDR can listen on it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock


def listening() -> socket.socket:
    """A socket that listens on 127.0.0.1. The upstreams of several tests take turns on it."""
    sock = held_port()
    sock.listen(128)
    return sock


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def is_taken(port: int) -> bool:
    """Whether somebody accepts connections at that port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# ---- processes ----


Running: TypeAlias = "subprocess.Popen[bytes] | Fork"
Start: TypeAlias = Callable[[Sequence[str], int, Mapping[str, str], Path], Running]
"""Starts a command: its output's descriptor, more of its environment, where it runs."""


def spawned(command: Sequence[str], out: int, environment: Mapping[str, str], tree: Path) -> Running:
    given = {**os.environ, **environment}
    return subprocess.Popen(
        command, cwd=tree, env=given, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
    )


@dataclass(frozen=True)
class Process:
    """A process that a test has started. `serves` looks from outside whether it is ready."""

    name: str
    popen: Running
    log: Path
    origin: str
    serves: Callable[[], bool]

    def wait(self) -> str:
        deadline = time.monotonic() + START_S
        while not self.serves():
            assert self.popen.poll() is None, f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} does not serve after {START_S:g} s:\n{self.tail()}"
            time.sleep(POLL_S)
        return self.origin

    def stop(self) -> int:
        """Ask the process to end, by SIGTERM; its exit status."""
        self.popen.terminate()
        try:
            return self.popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.name} ran {STOP_S:g} s after SIGTERM:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")


@contextmanager
def started(
    name: str,
    command: Sequence[str],
    log: Path,
    origin: str,
    serves: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    tree: Path = ROOT,
    start: Start = spawned,
) -> Iterator[Process]:
    """Start a process whose output is appended to `log`, and stop it in the end. It may not serve yet: see `wait`."""
    with log.open("ab") as out:
        popen = start(command, out.fileno(), environment or {}, tree)
    process = Process(name, popen, log, origin, serves)
    try:
        yield process
    finally:
        if popen.poll() is None:
            process.stop()


# ---- the command, for what it prints ----


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`taskgate` with these arguments, its output in one pipe; killed in the end if it still runs."""
    given = {**os.environ, **NO_AUTHORITIES}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, cwd=ROOT, env=given, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def run(*arguments: str, text: str | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`taskgate` with these arguments, `text` on its standard input, once it has ended: exit status, stdout, stderr."""
    given = {**os.environ, **NO_AUTHORITIES, **environment}
    return subprocess.run(
        [*COMMAND, *arguments], input=text, cwd=ROOT, env=given, capture_output=True, text=True, timeout=RUN_S
    )


@contextmanager
def piped(command: Sequence[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """A process with pipes, in a session of its own; killed in the end if it still runs."""
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


# ---- a gateway that runs ----

Samples: TypeAlias = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values of metrics by name and sorted labels."""


@dataclass(eq=False)
class Gateway:
    """A gateway that runs, and where it listens. It is a process, with its configuration file, or else an App."""

    port: int
    admin: int
    process: Process | None = None
    file: Path | None = None
    app: App | None = None
    ends_with: int = 0
    log_file: Path | None = None  # of an App that logs

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    @property
    def log(self) -> str:
        return (self.log_file or self.running.log).read_text()

    def wait(self) -> str:
        return self.running.wait()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the admin listener."""
        return fetched(self.admin, path)

    async def relayed(self, host: str = "127.0.0.1") -> tuple[int, str]:
        """Status and text of what the upstream answers to a GET."""
        return await asyncio.to_thread(fetched, self.port, "/mcp", host=host)

    async def shown(self) -> Json:
        """What the page shows."""
        shown: Json = json.loads((await asyncio.to_thread(self.get, "/page/status.json"))[1])
        return shown

    async def metrics(self) -> Samples:
        return samples(await self.exposition())

    async def sample(self, name: str, **labels: str) -> float:
        return (await self.metrics())[f"taskgate_{name}", tuple(sorted(labels.items()))]

    async def becomes(self, name: str, value: float | None, **labels: str) -> Samples:
        """The samples once that one has this value, None: it is not there. Of a request its answer comes first."""
        found: Samples = {}

        async def there() -> bool:
            found.clear()
            found.update(await self.metrics())
            return found.get((f"taskgate_{name}", tuple(sorted(labels.items())))) == value

        await eventually(there, f"{name} {labels} of {value}")
        return found

    async def until(self, condition: Callable[[Samples], bool], what: str) -> None:
        async def holds() -> bool:
            return condition(await self.metrics())

        await eventually(holds, what)

    async def exposition(self) -> str:
        status, text = await asyncio.to_thread(self.get, "/metrics")
        assert status == 200
        return text

    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.log.splitlines()]

    def signal(self, number: signal.Signals) -> None:
        self.running.popen.send_signal(number)

    async def exits(self) -> int:
        """The exit status of the process, once it has ended."""
        return await asyncio.to_thread(self.running.popen.wait, STOP_S)

    def reconfigure(self, settings: Json) -> None:
        assert self.file is not None
        self.file.write_text(json.dumps(settings))

    def renew(self, settings: Json) -> None:
        """Write the configuration file anew, and have the process read it."""
        self.reconfigure(settings)
        self.signal(signal.SIGHUP)

    def kill(self) -> None:
        self.ends_with = -signal.SIGKILL
        self.signal(signal.SIGKILL)
        self.running.popen.wait()

    def reload(self, settings: Json) -> None:
        """Have the App take over a new configuration. It logs as that says: give `in_process` a log, to undo this."""
        assert self.app is not None and self.log_file is not None
        self.app.reload(lambda _: gateway_config.parse(json.dumps(settings), "test.yaml"))

    def check_end(self) -> None:
        """Fail if the process did not end as it should, or its log tells of a fault."""
        status = self.running.popen.returncode
        assert status == self.ends_with, f"exit status {status}: {self.running.tail()}"
        for fault in FAULTS:
            assert fault not in self.log, self.running.tail()


def fetched(
    port: int, path: str, message: Json | None = None, host: str = "127.0.0.1", **fields: str
) -> tuple[int, str]:
    """Status and text of what is at a port: of a page, or of the answer to a message, with more fields."""
    with closing(http.client.HTTPConnection(host, port, timeout=EVENTUALLY_S)) as connection:
        if message is None:
            connection.request("GET", path, headers=fields)
        else:
            connection.request("POST", path, json.dumps(message), {"Content-Type": "application/json", **fields})
        response = connection.getresponse()
        return response.status, response.read().decode()


def is_ready(port: int, path: str = "/readyz") -> bool:
    """Whether the gateway with that admin port, or another program, says that it is ready."""
    try:
        return fetched(port, path)[0] == 200
    except OSError:
        return False


def samples(exposition: str) -> Samples:
    lines = (line.rpartition(" ") for line in exposition.split("\n") if line and not line.startswith("#"))
    return {_series(series): float(value) for series, _, value in lines}


@cache
def _series(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Name and sorted labels of a sample, by Prometheus's own parser, which takes long."""
    [family] = text_string_to_metric_families(f"{text} 0\n")
    return family.samples[0].name, tuple(sorted(family.samples[0].labels.items()))


async def eventually(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Return once `condition` holds. Nothing announces that, so it is polled."""
    deadline = time.monotonic() + EVENTUALLY_S
    while not (held := condition()) or not (held is True or await held):
        assert time.monotonic() < deadline, f"not within {EVENTUALLY_S:g} s: {what}"
        await asyncio.sleep(POLL_S)


async def logged(gateway: Gateway, text: str) -> Json:
    """The first line of the log with that text in it, once it is there."""

    async def there() -> bool:
        return any(text in json.dumps(line) for line in gateway.lines())

    await eventually(there, f"{text!r} in the log")
    return next(line for line in gateway.lines() if text in json.dumps(line))


def changes(before: Samples, after: Samples, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value - before.get(key, 0.0) for key, value in after.items() if key[0] == name and wanted <= set(key[1]))


def settings(port: int, admin: int, upstream: int, changed: Json | None = None) -> Json:
    """A configuration (JSON is YAML): one upstream on that port (`upstream` changes it), and `changed`, by section."""
    given = dict(changed or {})
    up = {"name": "up", "url": f"http://127.0.0.1:{upstream}/mcp", **given.pop("upstream", {})}
    return {
        "listen": f"127.0.0.1:{port}",
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "log": {"level": "debug"},
        "upstreams": [up],
        **given,
    }


# ---- starting one ----


@contextmanager
def ports(port: int | None = None) -> Iterator[tuple[int, int]]:
    """Two ports for a gateway, reserved: `port` if it is given, and one for the admin listener."""
    with held_port(port or 0) as listen, held_port() as admin:
        yield port_of(listen), port_of(admin)


class Gateways:
    def __init__(self, directory: Path, start: Start = spawned) -> None:
        self._directory = directory
        self._start = start
        self._count = 0

    @contextmanager
    def process(self, upstream: int, /, descriptors: int | None = None, **changed: Any) -> Iterator[Gateway]:
        """The command, ready, in front of the upstream on that port. `descriptors`: how many it may have open."""
        with (
            ports() as (listen, admin),
            self.starting(settings(listen, admin, upstream, changed), before=_limited(descriptors)) as gateway,
        ):
            gateway.wait()
            yield gateway

    @contextmanager
    def starting(
        self,
        config: Json,
        by_flags: bool = False,
        before: Sequence[str] = (),
        tree: Path = ROOT,
        serves: Callable[[], bool] | None = None,
    ) -> Iterator[Gateway]:
        """The command of a source tree, configured by flags or in a file. It may not be ready yet: `serves` tells.

        `before`: the command that runs it, if one does.
        """
        self._count += 1
        file = self._directory / f"{self._count}.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        given = _flags(config) if by_flags else ["--config", str(file)]
        line = [*before, sys.executable, "-W", "default", "-m", "gateway", *given]
        port, admin = (_port(address) for address in (config["listen"], config["admin"]["listen"]))
        origin = f"http://127.0.0.1:{port}"
        log = file.with_suffix(".log")
        ready = serves or (lambda: is_ready(admin))
        with started("the gateway", line, log, origin, ready, NO_AUTHORITIES, tree, self._start) as process:
            gateway = Gateway(port, admin, process, file)
            yield gateway
        gateway.check_end()

    @asynccontextmanager
    async def in_process(self, upstream: int, /, **changed: Any) -> AsyncIterator[Gateway]:
        """The App on the running loop; it logs if `changed` says how. In the end no task may be left.

        Where LOOP_DEBUG is set, the loop is in debug mode, in which a test takes half as long again.
        """
        before = asyncio.all_tasks()
        asyncio.get_running_loop().set_debug("LOOP_DEBUG" in os.environ)
        with self._logging(changed.get("log")) as log:
            async with app_before(upstream, changed) as gateway:
                idle = asyncio.all_tasks()
                yield replace(gateway, log_file=log)
                assert gateway.app is not None
                own, every = gateway.app._pools.probes, _probes()
                await _only_left(idle | every)  # a reload, of another App too, has begun probes of upstreams anew
            await _only_left(before | every.difference(own))

    @contextmanager
    def _logging(self, log: Json | None) -> Iterator[Path | None]:
        """The App's log in a file, as the command's is; none without `log`. A reload changes how this process logs:
        in the end it does so as before.
        """
        self._count += 1
        file = self._directory / f"{self._count}.log"
        root, ours = logging.getLogger(), logging.getLogger("taskgate")
        level, kept = ours.level, (root.handlers[:], ours.handlers[:], ours.propagate)
        try:
            if log is None:
                yield None
                return
            with file.open("w") as out, redirect_stderr(out):
                log_format.set_up(msgspec.convert(log, gateway_config.Log))
                yield file
        finally:
            root.handlers[:], ours.handlers[:], ours.propagate = kept
            ours.setLevel(level)  # loggers remember which levels they tell, until this is called
        for fault in FAULTS:
            assert fault not in file.read_text(), file.read_text()[-TAIL_BYTES:]


@asynccontextmanager
async def app_before(
    upstream: int, changed: Json, then: Callable[[gateway_config.Config], gateway_config.Config] = lambda read: read
) -> AsyncIterator[Gateway]:
    """The App on the running loop, in front of the upstream on that port. `then` changes what was read."""
    with ports() as (listen, admin):
        app = App(then(gateway_config.parse(json.dumps(settings(listen, admin, upstream, changed)), "test.yaml")))
        await app.start()
        try:
            yield Gateway(listen, admin, app=app)
        finally:
            await app.stop()


def _port(address: str) -> int:
    return 0 if address.startswith("unix:") else int(address.rpartition(":")[2])


def _flags(config: Json) -> list[str]:
    [upstream] = config["upstreams"]
    assert config.keys() == {"listen", "admin", "upstreams"} and upstream.keys() == {"name", "url"}
    return ["--upstream", upstream["url"], "--listen", config["listen"], "--admin", config["admin"]["listen"]]


def _limited(descriptors: int | None) -> list[str]:
    return [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]


def _probes() -> "set[asyncio.Task[Any]]":
    """The probes of upstreams (upstream/upstream_set.py), of all Apps."""
    return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == "watch"}


async def _only_left(allowed: "set[asyncio.Task[Any]]") -> None:
    deadline = time.monotonic() + LEAVE_S
    while left := asyncio.all_tasks() - allowed - {asyncio.current_task()}:
        assert time.monotonic() < deadline, f"left running: {left}"
        await asyncio.wait(left, timeout=LEAVE_S)
