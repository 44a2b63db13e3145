"""How a command of a client runs: until it ends, or the first signal interrupts it; nothing interrupts tidying up."""

import asyncio
import io
import logging
import signal
import sys
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from gateway.cli.mcp_client import NotAnswered
from gateway.cli.table import fitted
from gateway.config import ConfigError, Log, StartError
from gateway.errors import shown
from gateway.operate import log_format

INTERRUPTED: Final = 130


def signalled(name: str, work: Coroutine[Any, Any, int], failed: int = 2, interrupted: int = INTERRUPTED) -> int:
    """The exit status of `work`; `failed` if it raises an error that has words, `interrupted` if a signal ended it."""

    async def run() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lambda: task.cancelling() or task.cancel())
        return await work

    log_format.set_up(Log(level="error", format="text"))
    logging.disable(logging.WARNING)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        return asyncio.run(run())
    except (asyncio.CancelledError, BrokenPipeError):
        return interrupted
    except (NotAnswered, ConfigError, StartError, OSError) as error:
        words = str(error)
    except Exception:  # Python's own status, 1, would say that taskgate does not help
        words = f"a fault of taskgate itself: {traceback.format_exc()}"
    with suppress(OSError):
        for line in words.split("\n"):
            print(fitted(f"taskgate {name}: {shown(line)}", sys.stderr), file=sys.stderr)
    return failed
