"""The demo's legacy server in a process of its own: it has pages and no filter.

A command loads a history of `tasks` into the session opened last.

`python -m tests.bench.legacy PAGE_SIZE [PAGE_MS]`: what it waits before it answers with a page, 0 by default.
"""

import sys
import time
from typing import Any, Final

import orjson
from aiohttp import web

from gateway.demo.legacy_server import LegacyServer
from tests.bench import child
from tests.bench.httpclient import Client
from tests.bench.processes import Child

# Of an index that never grows too old, so that no crawl is for its age.
WARM: Final[dict[str, Any]] = {"max_age": "1h", "full_crawl_interval": "1h"}


async def filled(url: str, legacy: Child, tasks: int) -> Client:
    """A client whose session holds `tasks` that the gateway does not know yet."""
    client = await Client.connect(url)
    await client.initialize()
    await legacy.ask("load", tasks=tasks)
    return client


class Slow(LegacyServer):
    """A legacy server that is as slow as it is told."""

    page_s = 0.0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        if self.page_s and orjson.loads(await request.read())["method"] == "tasks/list":
            time.sleep(self.page_s)  # noqa: ASYNC251  # the loop's own clock ticks once a millisecond
        return await super().handle(request)

    async def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        self.load(command["tasks"])
        return {}


async def main() -> None:
    server = Slow(tasks=0)
    server.page_size = int(sys.argv[1])
    server.page_s = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0
    await child.serve({"url": await server.start()}, server.answer)


if __name__ == "__main__":
    child.run(main())
