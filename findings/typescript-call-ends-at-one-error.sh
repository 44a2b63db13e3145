#!/usr/bin/env bash
# Who: npm @modelcontextprotocol/sdk 1.32.2 (client). Run first: 2026-11-28.
# What: while `callToolStream` waits for a task, one error to a tasks/get ends the call, though the task works on, and the
#       next tasks/get would have said so.
# Rule: docs/design.md 8.9: a rate lets tasks/get and tasks/result wait for their token, and refuses none at once.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 >npm.log || { cat npm.log; exit 2; }

cat >call.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

const at = new Date().toISOString();
const task = { taskId: "1", status: "working", createdAt: at, lastUpdatedAt: at, ttl: 60000, pollInterval: 50 };
const requests = { tools: { call: {} } };
let polls, refused;

function answer({ method }) {
  const tool = { name: "work", inputSchema: { type: "object" }, execution: { taskSupport: "required" } };
  if (method === "initialize") {
    const capabilities = { tools: {}, tasks: { requests } };
    return { result: { protocolVersion: "2025-11-25", capabilities, serverInfo: { name: "finding", version: "1" } } };
  }
  if (method === "tools/list") return { result: { tools: [tool] } };
  if (method === "tools/call") return { result: { task } };
  if (method === "tasks/result") return { result: { content: [{ type: "text", text: "done" }] } };
  polls += 1;
  if (polls === refused) return { error: { code: -32603, message: "too many requests" } };
  return { result: { ...task, status: polls > 3 ? "completed" : "working" } };
}

const server = createServer(async (request, response) => {
  if (request.method !== "POST") return response.writeHead(405).end();
  let text = "";
  for await (const piece of request) text += piece;
  const asked = JSON.parse(text);
  if (asked.id === undefined) return response.writeHead(202).end();
  response.writeHead(200, { "Content-Type": "application/json" });
  response.end(JSON.stringify({ jsonrpc: "2.0", id: asked.id, ...answer(asked) }));
});
await new Promise((listens) => server.listen(0, "127.0.0.1", listens));

for (refused of [undefined, 2]) {
  polls = 0;
  const client = new Client({ name: "finding", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${server.address().port}/mcp`)));
  await client.listTools();
  let end;
  for await (const message of client.experimental.tasks.callToolStream({ name: "work" }, CallToolResultSchema)) end = message;
  const said = end.type === "error" ? end.error.message : end.result.content[0].text;
  console.log(`${refused ? "one poll gets an error" : "each poll is answered"}: after ${polls} polls ${end.type}: ${said}`);
  await client.close();
}
server.close();
JAVASCRIPT

node call.mjs | tee seen.txt
diff - seen.txt <<'SEEN'
each poll is answered: after 4 polls result: done
one poll gets an error: after 2 polls error: MCP error -32603: too many requests
SEEN
