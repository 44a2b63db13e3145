#!/usr/bin/env bash
# Who: PyPI mcp 1.30.0 (server), npm @modelcontextprotocol/sdk 1.32.2 (client). Run first: 2026-11-28.
# What: a task that was asked for without a ttl comes from the Python server without the member `ttl`, which the
#       specification requires (a number or null). The TypeScript client then refuses the whole page of tasks.
# Rule: docs/design.md 5.6: tasks pass as the server wrote them; what a client cannot read it cannot read through the
#       gateway either.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv venv || exit 2
venv/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 2>pip.log || { cat pip.log; exit 2; }
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 >npm.log || { cat npm.log; exit 2; }

cat >server.py <<'PYTHON'
import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server = Server("ttl")
server.experimental.enable_tasks()


@server.list_tools()
async def tools():
    how = types.ToolExecution(taskSupport="required")
    return [types.Tool(name="work", inputSchema={"type": "object"}, execution=how)]


@server.call_tool()
async def call(name, arguments):
    async def work(task):
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    return await server.request_context.experimental.run_task(work)


async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
PYTHON

cat >client.mjs <<'JAVASCRIPT'
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { z } from "zod";

for (const task of [{ ttl: 60000 }, {}]) {
  const client = new Client({ name: "finding", version: "1" });
  await client.connect(new StdioClientTransport({ command: "venv/bin/python", args: ["-W", "ignore", "server.py"] }));
  const params = { name: "work", arguments: {}, task };
  const made = await client.request({ method: "tools/call", params }, z.object({ task: z.looseObject({}) }));
  const list = await client.experimental.tasks.listTasks().then(
    (page) => `reads ${page.tasks.length} task`,
    (error) => `refuses the page: ${error.issues.map((issue) => issue.path.join(".")).join()}`,
  );
  console.log(`asked for ${JSON.stringify(task)}: ttl is ${made.task.ttl}; the client ${list}`);
  await client.close();
}
JAVASCRIPT

node client.mjs | tee seen.txt
diff - seen.txt <<'SEEN'
asked for {"ttl":60000}: ttl is 60000; the client reads 1 task
asked for {}: ttl is undefined; the client refuses the page: tasks.0.ttl
SEEN
