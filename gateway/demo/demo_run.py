"""What `taskgate demo` does: `taskgate try` at a server of its own, then a gateway that stays in front of it."""

import asyncio
import os
import shutil
import socket
import sys
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Final

from gateway import config
from gateway.app import App
from gateway.cli import command_line, try_command
from gateway.demo.legacy_server import UNFINISHED, LegacyServer

CHANGE_EVERY_S: Final = 2.0
PORTS: Final = (8080, 9090)  # of the gateway and its admin listener, if they are free
# As it can be typed here: `make run` leaves it out of the PATH.
_TASKGATE: Final = "taskgate" if shutil.which("taskgate") else os.path.relpath(f"{sys.prefix}/bin/taskgate")


async def demo(once: bool) -> int:
    """Try the server, then serve until it is cancelled. Returns the exit status. Raises NotAnswered, StartError."""
    async with AsyncExitStack() as stack:
        legacy = LegacyServer()
        stack.push_async_callback(legacy.stop)
        url = await legacy.start()
        print(
            f"An MCP server has {legacy.tasks} tasks. It lists {legacy.page_size} at a time, and cannot filter them.\n"
            f"Which are not finished? By hand all are read; taskgate in front of it is asked.\n\n$ taskgate try {url}"
        )
        status = await try_command.trial(command_line.read(try_command.parser(), [url]))
        if once or status:
            return status
        listen, admin = (f"127.0.0.1:{port}" for port in _free_ports())
        app = App(config.for_upstream(url, listen, admin))
        stack.push_async_callback(app.stop)
        await app.start()
        print(
            f"\n  taskgate    http://{listen}/mcp\n  the server  {url}\n  the page    http://{admin}/\n\n"
            f"A task changes every {CHANGE_EVERY_S:g} s. To see it, in another terminal:\n\n"
            f"  {_TASKGATE} tasks --watch --status {','.join(UNFINISHED)} http://{listen}/mcp\n\nCtrl-C ends it."
        )
        with suppress(asyncio.CancelledError):
            await legacy.keep_changing(CHANGE_EVERY_S)
        print("\nStopped.")
    return 0


def _free_ports() -> list[int]:
    with ExitStack() as opened:  # all at once, so that no two are the same
        found = []
        for port in PORTS:
            try:
                sock = socket.create_server(("127.0.0.1", port))
            except OSError:
                sock = socket.create_server(("127.0.0.1", 0))
            found.append(int(opened.enter_context(sock).getsockname()[1]))
        return found
