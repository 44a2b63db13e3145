"""The real gateway as a real subprocess.

In: the URL of an upstream. Out: a gateway that is ready, its addresses, and what it writes to stderr.

Always: the process is stopped before `running` is left, by its own pid, however it is left; a gateway that
does not become ready in time is an error that shows what it wrote.
"""

import asyncio
import contextlib
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp

READY_SECONDS: Final = 20.0
STOP_SECONDS: Final = 15.0  # longer than limits.drain_timeout; then it is killed
POLL_SECONDS: Final = 0.05
STDERR_LINES_MAX: Final = 40
PREFERRED_PORTS: Final = (8080, 9090)


class GatewayFailed(Exception):
    """The gateway did not become ready, or ended by itself. The message shows its last words."""


@dataclass
class Gateway:
    """A running gateway. `echo` decides whether its stderr goes on to ours."""

    process: asyncio.subprocess.Process
    origin: str
    admin: str
    echo: bool = False
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=STDERR_LINES_MAX))

    async def read_stderr(self) -> None:
        """Keep the last lines, and keep the pipe from filling up."""
        assert self.process.stderr is not None
        # In chunks: a line may be longer than the stream's limit.
        while chunk := await self.process.stderr.read(65_536):
            text = chunk.decode(errors="replace")
            self.last_words.extend(text.splitlines())
            if self.echo:
                sys.stderr.write(text)
                sys.stderr.flush()

    def failed(self, what: str) -> GatewayFailed:
        """The error that says what went wrong, with what the gateway wrote."""
        said = "\n".join(f"  {line}" for line in self.last_words) or "  nothing"
        return GatewayFailed(f"{what}. It wrote to stderr:\n{said}")

    async def ended(self) -> GatewayFailed:
        """Wait until the gateway ends by itself."""
        status = await self.process.wait()
        await asyncio.sleep(POLL_SECONDS)  # for its last words
        return self.failed(f"The gateway ended with status {status}")


@contextlib.asynccontextmanager
async def running(upstream: str) -> AsyncIterator[Gateway]:
    """Start a gateway in front of `upstream`, wait until it is ready, and stop it in the end."""
    listen, admin = (f"127.0.0.1:{port}" for port in _ports(PREFERRED_PORTS))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "--upstream", upstream, "--listen", listen, "--admin", admin),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the demo, which then stops the gateway in its own time
    )
    gateway = Gateway(process, f"http://{listen}", f"http://{admin}")
    reading = asyncio.create_task(gateway.read_stderr())
    try:
        await _ready(gateway)
        yield gateway
    finally:
        await _stop(process)
        await reading


async def _ready(gateway: Gateway) -> None:
    ending = asyncio.create_task(gateway.ended())
    polling = asyncio.create_task(_poll(f"{gateway.admin}/readyz"))
    try:
        done, _ = await asyncio.wait((ending, polling), timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if ending in done:
            raise ending.result()
        if polling not in done:
            raise gateway.failed(f"The gateway was not ready within {READY_SECONDS:.0f} s")
    finally:
        for task in (ending, polling):
            task.cancel()
        await asyncio.gather(ending, polling, return_exceptions=True)


async def _poll(url: str) -> None:
    """Return when a GET is answered 200."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(POLL_SECONDS)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _ports(preferred: tuple[int, ...]) -> list[int]:
    """For each preferred port itself, or a free one where it is taken."""
    with contextlib.ExitStack() as held:  # all at once, so that no two are the same
        ports = []
        for port in preferred:
            try:
                probe = _bind(port)
            except OSError:
                probe = _bind(0)
            held.callback(probe.close)
            ports.append(int(probe.getsockname()[1]))
        return ports


def _bind(port: int) -> socket.socket:
    probe = socket.socket()
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        probe.listen()
    except OSError:
        probe.close()
        raise
    return probe
