"""The processes that a section measures with: started, pinned to a core, asked, and always stopped."""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar
from urllib.parse import urlsplit

import orjson

from tests.bench import proc
from tests.bench.child import COMMAND_BYTES_MAX
from tests.launch import ROOT, Gateways, ports

READY_SECONDS: Final = 60.0  # ContextForge makes its database first
ANSWER_SECONDS: Final = 600.0
STOP_SECONDS: Final = 15.0  # more than the gateway takes to drain


class BenchFailed(Exception):
    """Something could not be measured; a figure for it would be a lie."""


@dataclass
class Served:
    """A process that runs: its id, and its URL if it serves one."""

    pid: int
    url: str


Server = TypeVar("Server", bound=Served)


class Child(Served):
    """A process of the bench's own, and the commands that it answers."""

    def __init__(self, process: Process, url: str) -> None:
        super().__init__(process.pid, url)
        self._process = process

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps({"do": do, **arguments}) + b"\n")
        answer = await _line(self._process, ANSWER_SECONDS)
        if "failed" in answer:
            raise BenchFailed(f"{do}: {answer['failed']}")
        return answer


@contextlib.asynccontextmanager
async def child(module: str, *arguments: str, is_measured: bool = False, tree: Path = ROOT) -> AsyncIterator[Child]:
    """Run `python -m tests.bench.MODULE`, a process that speaks as child.py says; of `tree` it has the gateway."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.bench.{module}", *arguments),
        stdin=PIPE,
        stdout=PIPE,
        limit=COMMAND_BYTES_MAX,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{ROOT}"},
        start_new_session=True,  # Ctrl-C is for the bench, which then stops its processes
    )
    try:
        proc.pin(process.pid, proc.cores().measured if is_measured else proc.cores().others)
        hello = await _line(process, READY_SECONDS)
        yield Child(process, hello.get("url", ""))
    finally:
        await stop(process)


@contextlib.asynccontextmanager
async def rig(upstream: AbstractAsyncContextManager[Server]) -> AsyncIterator[tuple[AsyncExitStack, Server, Child]]:
    """An upstream and the load, on one core; what is put onto the stack ends before them."""
    async with upstream as served, child("load") as load, AsyncExitStack() as stack:
        yield stack, served, load


@contextlib.asynccontextmanager
async def gateway(upstream: str, keys: dict[str, Any] | None = None, tree: Path = ROOT) -> AsyncIterator[Served]:
    """Run the gateway of a source tree in front of `upstream`. `keys` are further ones of its configuration."""
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder, ports() as (listen, admin):
        config: dict[str, Any] = {
            "listen": f"127.0.0.1:{listen}",
            "admin": {"listen": f"127.0.0.1:{admin}"},
            "upstreams": [{"name": "bench", "url": upstream}],
            **(keys or {}),
        }
        with Gateways(Path(folder)).starting(config, by_flags=not keys, tree=tree) as running:
            pid = running.running.popen.pid
            proc.pin(pid, proc.cores().measured)
            try:
                url = f"{running.wait()}{urlsplit(upstream).path}"
            except AssertionError as error:
                raise BenchFailed(str(error)) from None
            yield Served(pid, url)
            if running.running.popen.poll() is not None:
                raise BenchFailed(f"the gateway ended:\n{running.running.tail()}")


@contextlib.asynccontextmanager
async def program(
    core: int | None, name: str, address: str, *line: str, errors: int | TextIO = sys.stderr
) -> AsyncIterator[Served]:
    """Run a server that is not ours, which listens on `address`. Its `errors` go to the bench's, or to DEVNULL."""
    process = await asyncio.create_subprocess_exec(
        *line, stdin=DEVNULL, stdout=DEVNULL, stderr=errors, start_new_session=True
    )
    try:
        await listening(name, address)
        proc.pin(process.pid, core)
        yield Served(process.pid, f"http://{address}")
        if process.returncode is not None:
            raise BenchFailed(f"{name} ended with {process.returncode}")
    finally:
        await stop(process)


async def listening(name: str, address: str) -> None:
    """Wait until something listens on a loopback address. Raises BenchFailed."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.close()
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise BenchFailed(f"{name} does not listen after {READY_SECONDS:.0f} s") from None


def free_address() -> str:
    """A loopback address with a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def _line(process: Process, seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), seconds)
    except TimeoutError:
        raise BenchFailed(f"process {process.pid} said nothing for {seconds:.0f} s") from None
    if not line:
        raise BenchFailed(f"process {process.pid} ended")
    answer: dict[str, Any] = orjson.loads(line)
    return answer


async def stop(process: Process) -> None:
    """End a process that this bench started, by its own id."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    if process.stdin is not None:
        process.stdin.close()
