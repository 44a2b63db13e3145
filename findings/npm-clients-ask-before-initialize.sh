#!/usr/bin/env bash
# Who: npm @ai-sdk/mcp 1.0.102, @openai/agents 0.20.0 (clients). Run first: 2026-11-28.
# What: before `initialize` the one opens a GET without a session, the other asks for what only revision 2026-07-28 has.
# Rule: docs/design.md 3.9: messages of other revisions pass, in the order in which they come.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
npm install --silent --no-audit --no-fund @ai-sdk/mcp@1.0.102 @openai/agents@0.20.0 zod@4.6.7 >npm.log 2>&1 ||
    { cat npm.log; exit 2; }

cat >clients.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { createMCPClient } from "@ai-sdk/mcp";
import { MCPServerStreamableHttp } from "@openai/agents";

const results = {
  initialize: { protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "finding", version: "1" } },
  "tools/list": { tools: [] },
};
let seen = [];
const server = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  const { id, method } = body ? JSON.parse(body) : {};
  seen.push(`${method ?? request.method} ${request.headers["mcp-session-id"] ? "in" : "without"} a session`);
  if (id === undefined) return response.writeHead(request.method === "POST" ? 202 : 405).end();
  const result = results[method];
  response.writeHead(200, { "Content-Type": "application/json", "Mcp-Session-Id": "1" });
  const said = result ? { result } : { error: { code: -32601, message: "Method not found" } };
  response.end(JSON.stringify({ jsonrpc: "2.0", id, ...said }));
}).listen(0, "127.0.0.1");
await new Promise((resolve) => server.once("listening", resolve));
const url = `http://127.0.0.1:${server.address().port}/mcp`;

const first = await createMCPClient({ transport: { type: "http", url } });
await first.tools();
console.log(`@ai-sdk/mcp: ${seen.slice(0, 2).join(", ")}`);
seen = [];
const second = new MCPServerStreamableHttp({ url, name: "finding" });
await second.connect();
await second.listTools();
console.log(`@openai/agents: ${seen.slice(0, 2).join(", ")}`);
process.exit();
JAVASCRIPT

timeout 100 node clients.mjs | tee seen.txt
diff - seen.txt <<'SEEN'
@ai-sdk/mcp: GET without a session, initialize without a session
@openai/agents: server/discover without a session, initialize without a session
SEEN
