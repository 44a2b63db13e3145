"""How a command of a client runs: until it ends, or a signal interrupts it.

In: its work, as a coroutine. Out: its exit status, errors in words on standard error. Always: only the first signal
counts, so that nothing interrupts tidying up.
"""

import asyncio
import io
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from gateway.client.link import NotAnswered
from gateway.config import ConfigError, StartError
from gateway.operate.logs import printable

INTERRUPTED: Final = 130


def signalled(name: str, work: Coroutine[Any, Any, int], failed: int = 2, interrupted: int = INTERRUPTED) -> int:
    """The exit status of `work`; `failed` if it raises an error that has words, `interrupted` if a signal ended it."""

    async def run() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lambda: task.cancelling() or task.cancel())
        return await work

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        return asyncio.run(run())
    except (asyncio.CancelledError, BrokenPipeError):
        return interrupted
    except (NotAnswered, ConfigError, StartError, OSError) as error:
        with suppress(OSError):
            print("\n".join(f"taskgate {name}: {printable(line)}" for line in str(error).split("\n")), file=sys.stderr)
        return failed
