"""A real Redis (`redis-server`), a process of the test's own, which keeps nothing on disk."""

import asyncio
import os
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

SERVER: Final = os.environ.get("STORE_SERVER", "redis-server")  # or that of another version, or of Valkey
_TESTS: Final = "tests"


class Store:
    """A Redis. Tests are a user of their own, whom nothing locks out."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", port: int = 0, *flags: str) -> None:
        self._held = held_port(port, host)
        self.folder = directory
        self._log = directory / f"redis-{host}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._flags = flags
        self.host, self.port = host, port_of(self._held)
        self.url = f"redis://{host}:{self.port}"

    def start(self) -> None:
        address = ["--port", str(self.port), "--bind", self.host, "--dir", str(self.folder)]
        line = [SERVER, *self._flags, *address, "--save", "", "--user", _TESTS, "on", "nopass", "~*", "&*", "+@all"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._held.close()

    async def run(self, *command: str | float) -> Any:
        async with Redis(
            host=self.host, port=self.port, username=_TESTS, password="any", decode_responses=True
        ) as client:
            while True:
                try:
                    return await client.execute_command(*command)  # type: ignore[no-untyped-call]
                except NoConnection:
                    assert self._process is not None and self._process.poll() is None, self._log.read_text()
                    await asyncio.sleep(0.01)


@asynccontextmanager
async def redis(directory: Path, host: str = "127.0.0.1", port: int = 0, *flags: str) -> AsyncIterator[Store]:
    """`flags` are more of the server's own."""
    tool(SERVER, "redis-server")
    one = Store(directory, host, port, *flags)
    try:
        one.start()
        await one.run("PING")
        yield one
    finally:
        one.close()
