"""The real Inspector, which can set a header and nothing else, at a server of 1,500 tasks, ten a page (DESIGN 5.10)."""

import asyncio
import json
import os
from pathlib import Path

from tests.launch import Gateways
from tests.real.clients.conversation import SECONDS
from tests.relay.messages import Json, in_pages, initialized, task
from tests.relay.rig import Server, rig_with
from tests.tools import inspector, localhost

COUNT, PAGE = 1500, 10
STATUSES = ("completed", "working", "failed", "completed", "completed")


async def test_the_inspector_lists_what_its_header_asks_for(tmp_path: Path) -> None:
    async with rig_with(Gateways(tmp_path)) as rig:
        pages = in_pages([task(f"t-{n:04}", STATUSES[n % 5]) for n in range(COUNT)], PAGE)
        rig.serve(Server(pages, {"initialize": initialized(), "tasks/get": task("t-0001", "working")}))
        rows = await listed(f"http://{localhost()}:{rig.gateway.port}/mcp", "status=working,failed", tmp_path)
    wanted = {f"t-{n:04}" for n in range(COUNT) if STATUSES[n % 5] in ("working", "failed")}
    assert {row["taskId"] for row in rows} == wanted
    assert len(rows) == len(wanted)


async def listed(url: str, filter_: str, home: Path) -> list[Json]:
    """The tasks that `mcpdo tasks/list` shows."""
    environment = {**os.environ, "HOME": str(home), "MCP_CATALOG_PATH": str(home / "mcp.json")}
    node = inspector()
    command = Path(node).parents[2] / ".bin/mcpdo"

    async def run(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            node, str(command.resolve()), *words, env=environment, stdout=-1, stderr=-1
        )
        async with asyncio.timeout(SECONDS):
            out, errors = await process.communicate()
        assert process.returncode == 0, (out, errors)
        return out.decode()

    try:
        await run("connect", url, "--header", f"Taskgate-Filter: {filter_}", "--connection", "here")
        found: list[Json] = json.loads(await run("--format", "json", "--connection", "here", "tasks/list"))["tasks"]
    finally:
        await run("daemon", "stop")
    return found
