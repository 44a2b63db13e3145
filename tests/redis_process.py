"""A real Redis (`redis-server`), a process of the test's own, which keeps nothing on disk."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NoConnection

from tests.launch import held_port, port_of
from tests.tools import tool

_TESTS: Final = "tests"


class Store:
    """A Redis. Tests are a user of their own, whom nothing locks out."""

    def __init__(self, directory: Path) -> None:
        self._held = held_port()
        self._log = directory / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port_of(self._held)
        self.url = f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        address = ["--port", str(self.port), "--bind", "127.0.0.1"]
        line = ["redis-server", *address, "--save", "", "--user", _TESTS, "on", "nopass", "~*", "&*", "+@all"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, and free its port."""
        self.kill()
        self._held.close()

    async def run(self, *command: str | float) -> Any:
        async with Redis(port=self.port, username=_TESTS, password="any", decode_responses=True) as client:
            while True:
                try:
                    return await client.execute_command(*command)  # type: ignore[no-untyped-call]
                except NoConnection:
                    assert self._process is not None and self._process.poll() is None, self._log.read_text()
                    await asyncio.sleep(0.01)


@asynccontextmanager
async def redis(directory: Path) -> AsyncIterator[Store]:
    tool("redis-server", "redis-server")
    one = Store(directory)
    try:
        one.start()
        await one.run("PING")
        yield one
    finally:
        one.close()
