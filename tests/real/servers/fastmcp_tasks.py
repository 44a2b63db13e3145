"""A FastMCP server with background tasks, their queue in its own memory: its tasks/list is always empty.

    python -m tests.real.servers.fastmcp_tasks (--port 3001 | --stdio)

A tool, a prompt and a resource can each be asked for as a task. `work` lasts until `release` is called with the same
name, `fail` fails, `ask` ends when its elicitation is answered.
"""

import argparse
import asyncio
from collections import defaultdict
from datetime import timedelta

from fastmcp import Context, FastMCP
from fastmcp.server.tasks import TaskConfig

AS_TASK = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=100))

server = FastMCP("fastmcp-tasks", version="1")
released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@server.tool(task=AS_TASK)
async def work(name: str) -> str:
    await released[name].wait()
    return f"{name} is done"


@server.tool(task=AS_TASK)
async def fail(name: str) -> str:
    raise ValueError(f"{name} failed")


@server.tool(task=AS_TASK)
async def ask(name: str, context: Context) -> str:
    said = await context.elicit(f"What of {name}?", str)  # type: ignore[arg-type]  # mypy sees the first overload alone
    return f"{name}: {said.action}"


@server.tool
async def release(name: str) -> str:
    released[name].set()
    return "released"


@server.prompt(task=AS_TASK)
async def advice(about: str) -> str:
    return f"Think about {about}"


@server.resource("notes://all", task=AS_TASK)
async def notes() -> str:
    return "all notes"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        server.run("stdio", show_banner=False, log_level="warning")
        return
    server.run(
        "http",
        show_banner=False,
        host="127.0.0.1",
        port=options.port,
        path="/mcp",
        log_level="warning",
        uvicorn_config={"timeout_graceful_shutdown": 1},
    )


if __name__ == "__main__":
    main()
