// Serves a server of the TypeScript SDK 1.x over Streamable HTTP, at any path: each session has one that `build` makes.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

const transports = new Map();

export function serve(build) {
  createServer(async (request, response) => {
    let transport = transports.get(request.headers["mcp-session-id"]);
    if (!transport) {
      const onsessioninitialized = (id) => transports.set(id, transport);
      transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized });
      await build().connect(transport);
    }
    await transport.handleRequest(request, response);
  }).listen(Number(process.env.PORT), "127.0.0.1");
}
