"""The gateway that is tested: the real command as a process, or the same App on the test's own event loop.

In: a configuration as a mapping. Out: its ports, its metrics, its log. Always: a process is ended by its own id, its
exit status is looked at, and so is what it logged: a traceback or a warning there fails the test.
"""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from gateway import config as gateway_config
from gateway.app import App

Json: TypeAlias = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 20.0
STOP_S: Final = 15.0
POLL_S: Final = 0.02
LEAVE_S: Final = 5.0
EVENTUALLY_S: Final = 5.0
# What must never stand in a log: a fault of ours that nobody caught, or one that Python saw.
FAULTS: Final = ("Traceback", "Warning:", "never retrieved", "was destroyed but it is pending", "could not be handled")


def held_port() -> socket.socket:
    """A port of 127.0.0.1 that is nobody else's: bound, not listening, so that who sets SO_REUSEADDR can listen."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def listening() -> socket.socket:
    """A socket that listens on 127.0.0.1: for upstreams of several tests, one after the other."""
    sock = held_port()
    sock.listen(128)
    return sock


def port_of(sock: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = sock.getsockname()[1]
    return port


Samples: TypeAlias = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values of metrics by name and sorted labels."""


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs: where it listens; its file of configuration and its log if it is a process, else the App."""

    port: int
    admin: int
    popen: "subprocess.Popen[bytes] | None" = None
    file: Path | None = None
    log: Path | None = None
    app: App | None = None

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the admin listener."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    async def metrics(self) -> Samples:
        """Every sample on /metrics."""
        return samples(await self.exposition())

    async def exposition(self) -> str:
        """The text of /metrics."""
        status, text = await asyncio.to_thread(self.get, "/metrics")
        assert status == 200
        return text

    def lines(self) -> list[Json]:
        """The log, line by line."""
        assert self.log is not None
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self.popen is not None
        self.popen.send_signal(number)

    async def exits(self) -> int:
        """The exit status of the process, once it has ended."""
        assert self.popen is not None
        return await asyncio.to_thread(self.popen.wait, STOP_S)

    def reconfigure(self, settings: Json) -> None:
        """Write the file of configuration anew."""
        assert self.file is not None
        self.file.write_text(json.dumps(settings))

    def check_log(self) -> None:
        """Fail if the log tells of a fault."""
        assert self.log is not None
        text = self.log.read_text()
        for fault in FAULTS:
            assert fault not in text, text[-4000:]


def samples(exposition: str) -> Samples:
    """The samples in a text that Prometheus reads."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Return once `condition` holds, of which nobody tells: it is looked at again and again."""
    deadline = time.monotonic() + EVENTUALLY_S
    for _ in range(round(EVENTUALLY_S / POLL_S)):
        if await condition():
            return
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"not within {EVENTUALLY_S:g} s: {what}")


async def logged(gateway: Gateway, text: str) -> Json:
    """The first line of the log with that text in it, once it is there."""

    async def there() -> bool:
        return any(text in json.dumps(line) for line in gateway.lines())

    await eventually(there, f"{text!r} in the log")
    return next(line for line in gateway.lines() if text in json.dumps(line))


def changes(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """By how much the samples of that name whose labels are these have grown, taken together."""
    wanted = set(labels.items())
    return sum(value - before.get(key, 0.0) for key, value in after.items() if key[0] == name and wanted <= set(key[1]))


def settings(port: int, admin: int, upstream: int, changed: Json | None = None) -> Json:
    """A configuration (JSON is YAML): one upstream on that port, and `changed`, section by section.

    The key `upstream` holds what is changed in the one upstream.
    """
    given = dict(changed or {})
    up = {"name": "up", "url": f"http://127.0.0.1:{upstream}/mcp", **given.pop("upstream", {})}
    return {
        "listen": f"127.0.0.1:{port}",
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "log": {"level": "debug"},
        "upstreams": [up],
        **given,
    }


class Gateways:
    """Starts gateways, their files in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    @contextmanager
    def process(self, upstream: int, /, descriptors: int | None = None, **changed: Any) -> Iterator[Gateway]:
        """The command, in front of the upstream on that port, ready; its end and its log are looked at.

        `descriptors` is how many the process may have open.
        """
        self._count += 1
        file = self._directory / f"{self._count}.yaml"
        log = file.with_suffix(".log")
        with held_port() as listen, held_port() as admin:
            config = settings(port_of(listen), port_of(admin), upstream, changed)
            file.write_text(json.dumps(config))
            with log.open("wb") as out:
                popen = subprocess.Popen(
                    [*_limited(descriptors), sys.executable, "-W", "default", "-m", "gateway", "--config", str(file)],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            gateway = Gateway(port_of(listen), port_of(admin), popen, file, log)
            try:
                _wait_until_ready(gateway)
                yield gateway
            finally:
                status = _stop(popen)
            assert status == 0, f"exit status {status}: {log.read_text()[-4000:]}"
            gateway.check_log()

    @asynccontextmanager
    async def in_process(self, upstream: int, /, **changed: Any) -> AsyncIterator[Gateway]:
        """The App on the running loop, whose debug mode watches it. No task of an exchange's may be left, nor any."""
        with held_port() as listen, held_port() as admin:
            text = json.dumps(settings(port_of(listen), port_of(admin), upstream, changed))
            before = asyncio.all_tasks()
            app = App(gateway_config.parse(text, "test.yaml"))
            await app.start()
            idle = asyncio.all_tasks()
            try:
                yield Gateway(port_of(listen), port_of(admin), app=app)
                await _only_left(idle)
            finally:
                await app.stop()
            await _only_left(before)


def _limited(descriptors: int | None) -> list[str]:
    return [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]


async def _only_left(allowed: "set[asyncio.Task[Any]]") -> None:
    """Fail if other tasks than these do not end."""
    deadline = time.monotonic() + LEAVE_S
    while left := asyncio.all_tasks() - allowed - {asyncio.current_task()}:
        assert time.monotonic() < deadline, f"left running: {left}"
        await asyncio.wait(left, timeout=LEAVE_S)


def _wait_until_ready(gateway: Gateway) -> None:
    assert gateway.popen is not None and gateway.log is not None
    deadline = time.monotonic() + START_S
    while True:
        try:
            if gateway.get("/readyz")[0] == 200:
                return
        except OSError:
            pass
        assert gateway.popen.poll() is None, f"the gateway ended: {gateway.log.read_text()}"
        assert time.monotonic() < deadline, f"the gateway is not ready: {gateway.log.read_text()}"
        time.sleep(POLL_S)


def _stop(popen: "subprocess.Popen[bytes]") -> int:
    popen.terminate()
    try:
        return popen.wait(STOP_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
        raise
