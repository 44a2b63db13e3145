"""The processes that a section measures with: started, pinned to a core, asked, and always stopped.

In: what to run, and on which core. Out: a context in which it runs and is ready. Always: it is stopped by its own id
however the context is left; a process that does not become ready is an error that shows its last words.
"""

import asyncio
import contextlib
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from tests.bench import proc
from tests.bench.child import COMMAND_BYTES_MAX

READY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 600.0
STOP_SECONDS: Final = 15.0  # more than the gateway takes to drain
POLL_SECONDS: Final = 0.02
LAST_WORDS_BYTES: Final = 4_000


class BenchFailed(Exception):
    """Something could not be measured; a figure for it would be a lie."""


class Child:
    """A process that runs: its id, its URL if it serves one, and the commands that it answers."""

    def __init__(self, process: Process, url: str) -> None:
        self._process = process
        self.pid = process.pid
        self.url = url

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps({"do": do, **arguments}) + b"\n")
        answer = await _line(self._process, ANSWER_SECONDS)
        if "failed" in answer:
            raise BenchFailed(f"{do}: {answer['failed']}")
        return answer


@contextlib.asynccontextmanager
async def child(core: int | None, module: str, *arguments: str) -> AsyncIterator[Child]:
    """Run `python -m tests.bench.MODULE`, a process that speaks as child.py says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.bench.{module}", *arguments),
        stdin=PIPE,
        stdout=PIPE,
        limit=COMMAND_BYTES_MAX,
        start_new_session=True,  # Ctrl-C is for the bench, which then stops its processes
    )
    try:
        proc.pin(process.pid, core)
        hello = await _line(process, READY_SECONDS)
        yield Child(process, hello.get("url", ""))
    finally:
        await _stop(process)


@contextlib.asynccontextmanager
async def gateway(core: int | None, upstream: str, index: dict[str, Any] | None = None) -> AsyncIterator[Child]:
    """Run the gateway in front of `upstream`, with what `index` sets of the configuration's section of that name."""
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder:
        listen, flags = _gateway_flags(upstream, index, Path(folder))
        log = Path(folder, "stderr")
        process = await _gateway_process(flags, log)
        try:
            proc.pin(process.pid, core)
            await _listening(process, listen, log)
            yield Child(process, f"http://{listen}{urlsplit(upstream).path}")
            if process.returncode is not None:
                raise BenchFailed(f"the gateway ended with status {process.returncode}:\n{_last_words(log)}")
        finally:
            await _stop(process)


def _gateway_flags(upstream: str, index: dict[str, Any] | None, folder: Path) -> tuple[str, list[str]]:
    """Where a gateway is to listen, and its flags."""
    listen, admin = free_address(), free_address()
    if index is None:
        return listen, ["--upstream", upstream, "--listen", listen, "--admin", admin]
    upstreams = [{"name": "bench", "url": upstream}]
    config = {"listen": listen, "admin": {"listen": admin}, "upstreams": upstreams, "index": index}
    path = folder / "config.yaml"
    path.write_bytes(orjson.dumps(config))  # JSON is YAML too
    return listen, ["--config", str(path)]


async def _gateway_process(flags: list[str], log: Path) -> Process:
    with log.open("wb") as stderr:  # nothing is measured yet
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *flags),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )


def free_address() -> str:
    """A loopback address with a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def _listening(process: Process, address: str, log: Path) -> None:
    host, port = address.split(":")
    for _ in range(int(READY_SECONDS / POLL_SECONDS)):
        if process.returncode is not None:
            break
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(POLL_SECONDS)
        else:
            writer.close()
            return
    raise BenchFailed(f"the gateway does not listen on {address}:\n{_last_words(log)}")


def _last_words(log: Path) -> str:
    return log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace")


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


async def _stop(process: Process) -> None:
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
