// An https server that closes each connection behind its answer.
//
// node closing.mjs PORT CERTIFICATE KEY
//
// GET /N: N bytes, 0 to 255 again and again. POST: a page of 2,000 tasks.
import { readFileSync } from "node:fs";
import { createServer } from "node:https";

const [port, cert, key] = process.argv.slice(2);
const at = "2026-01-01T00:00:00Z";
const tasks = Array.from({ length: 2000 }, (_, number) => ({
  taskId: `task-${number}`, status: "working", createdAt: at, lastUpdatedAt: at, ttl: null, statusMessage: "x".repeat(200),
}));

createServer({ cert: readFileSync(cert), key: readFileSync(key) }, async (request, response) => {
  const asked = [];
  for await (const piece of request) asked.push(piece);
  response.setHeader("Connection", "close");
  if (request.method === "GET") {
    response.end(Buffer.from(Array.from({ length: Number(request.url.slice(1)) }, (_, at) => at % 256)));
  } else {
    const { id } = JSON.parse(Buffer.concat(asked));
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({ jsonrpc: "2.0", id, result: { tasks } }));
  }
}).listen(port, "127.0.0.1");
