#!/usr/bin/env bash
# Who: npm @cyanheads/mcp-ts-core 0.10.17 (server) with its store of tasks on disk, on Node.js 24.9.0. Run first: 2026-11-28.
# What: pages are cut from the tasks of all sessions, and others' are left out then. So a session without tasks gets pages
#       that are empty and name a next one.
# Rule: docs/design.md 6.6: an empty page that names a next one proves that the list is in no order of creation.
set -euo pipefail
place=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$place"' EXIT
server=
cd "$place"
npm install --silent --no-audit --no-fund @cyanheads/mcp-ts-core@0.10.17 node@24.9.0 >npm.log 2>&1 || { cat npm.log; exit 2; }

cat >server.mjs <<'JAVASCRIPT'
import { createApp, tool, z } from "@cyanheads/mcp-ts-core";

const work = tool("work", {
  description: "Works.",
  task: true,
  input: z.object({ what: z.string().default("nothing").describe("what to do") }),
  output: z.object({ said: z.string().describe("what was done") }),
  handler: async () => ({ said: "done" }),
});
await createApp({ name: "finding", version: "1.0.0", tools: [work] });
JAVASCRIPT

cat >client.mjs <<'JAVASCRIPT'
const url = `http://127.0.0.1:${process.argv[2]}/mcp`;
const clientInfo = { name: "finding", version: "1" };

async function opened() {
  const headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  const ask = async (method, params, id) => {
    const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ jsonrpc: "2.0", id, method, params }) });
    const session = response.headers.get("Mcp-Session-Id");
    if (session) headers["Mcp-Session-Id"] = session;
    const text = await response.text();
    const line = text.split("\n").find((each) => each.startsWith("data:"));
    return id === undefined ? undefined : JSON.parse(line ? line.slice(5) : text);
  };
  await ask("initialize", { protocolVersion: "2025-11-25", capabilities: {}, clientInfo }, 1);
  await ask("notifications/initialized", {});
  return ask;
}

let one;
for (let tries = 0; one === undefined && tries < 300; tries += 1) {
  one = await opened().catch(() => new Promise((resolve) => setTimeout(resolve, 200)));
}
for (let made = 0; made < 12; made += 1) {
  await one("tools/call", { name: "work", arguments: {}, task: { ttl: 600000 } }, 2 + made);
}
const tell = (page) => `${page.tasks.length} tasks, ${page.nextCursor ? "a next page" : "the end"}`;
const other = await opened();
console.log(`who made 12 tasks: ${tell((await one("tasks/list", {}, 20)).result)}`);
const first = (await other("tasks/list", {}, 2)).result;
console.log(`another session: ${tell(first)}; ${tell((await other("tasks/list", { cursor: first.nextCursor }, 3)).result)}`);
JAVASCRIPT

node=$(find node_modules -path '*bin/node' -type f | head -n 1)
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MCP_TRANSPORT_TYPE=http MCP_HTTP_HOST=127.0.0.1 MCP_HTTP_PORT=$port MCP_LOG_LEVEL=error
export TASK_STORE_TYPE=storage STORAGE_PROVIDER_TYPE=filesystem STORAGE_FILESYSTEM_PATH=$place/tasks
"$node" server.mjs >server.log 2>&1 &
server=$!
"$node" client.mjs "$port" | tee seen.txt
diff - seen.txt <<'SEEN'
who made 12 tasks: 10 tasks, a next page
another session: 0 tasks, a next page; 0 tasks, the end
SEEN
