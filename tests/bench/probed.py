"""The gateway, and a probe on its loop: the longest CPU time between two turns of the loop since the last command."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Final

from gateway import app, config
from tests.bench import child
from tests.bench.processes import listening

PERIOD_S: Final = 0.001


class Probe:
    """A timer that is due every millisecond."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest_ns = 0
        self._turned_at_ns = time.thread_time_ns()
        self._turn()

    def _turn(self) -> None:
        now_ns = time.thread_time_ns()
        self._longest_ns = max(self._longest_ns, now_ns - self._turned_at_ns)
        self._turned_at_ns = now_ns
        self._loop.call_later(PERIOD_S, self._turn)

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(2 * PERIOD_S)  # the turn that this command waited for counts
        longest_ns, self._longest_ns = self._longest_ns, 0
        return {"held_ms": longest_ns / 1e6}


async def main() -> None:
    """Serve until stdin ends, or the gateway does."""
    settings = config.load(Path(sys.argv[1]))
    serving = asyncio.create_task(app.run(settings, None))
    await listening("the gateway", f"{settings.listen}")
    answering = asyncio.create_task(child.serve({"url": f"http://{settings.listen}/mcp"}, Probe().answer))
    await asyncio.wait({serving, answering}, return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, answering):
        task.cancel()
    await asyncio.gather(serving, answering, return_exceptions=True)


if __name__ == "__main__":
    child.run(main())
