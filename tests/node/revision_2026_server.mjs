// A server of the official 2.x packages: revision 2026-07-28, and 2025-11-25 without sessions for clients of before.
//
// PORT=3001 node revision_2026_server.mjs
//
// The endpoint is /mcp; /subscriptions says how many streams of subscriptions/listen are open. Each era has its own tasks: 2026-07-28 those of the extension (tasks/get, tasks/update and
// tasks/cancel, but no tasks/list), 2025-11-25 a tasks/list that cannot filter. The packages themselves refuse a
// request of 2026-07-28 that lacks Mcp-Method, Mcp-Name or an Mcp-Param-* header, or where one contradicts the body.
import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import {
  acceptedContent,
  createMcpHandler,
  fromJsonSchema,
  inputRequired,
  McpServer,
  ProtocolError,
} from "@modelcontextprotocol/server";

const STEP_MS = 200;
const NOTE = "notes://one";
const INVALID_PARAMS = -32602;
const ANY = fromJsonSchema({ type: "object" });
const ANY_PARAMS_AND_RESULT = { params: ANY, result: ANY };

const tasks = ["working", "completed", "working"].map((status, n) => ({
  taskId: `task ${n}/\u00e9`,
  status,
  createdAt: `2026-01-01T00:00:0${n}Z`,
  lastUpdatedAt: `2026-01-01T00:00:0${n}Z`,
  ttl: null,
}));

const object = (properties, ...required) => fromJsonSchema({ type: "object", properties, required });
const text = (words) => ({ content: [{ type: "text", text: words }] });

function taskOf(taskId) {
  const task = tasks.find((each) => each.taskId === taskId);
  if (!task) throw new ProtocolError(INVALID_PARAMS, `No task ${taskId}`);
  return task;
}

/** A server for one request. */
function build({ era }) {
  const server = new McpServer(
    { name: "revision-2026", version: "1" },
    {
      capabilities: {
        tools: { listChanged: true },
        resources: { subscribe: true },
        extensions: { "io.modelcontextprotocol/tasks": {} },
        tasks: { list: {}, requests: { tools: { call: {} } } },
      },
      instructions: "Echo, count, ask.",
    },
  );
  const echoed = object({ text: { type: "string" }, region: { type: "string", "x-mcp-header": "Region" } }, "text");
  server.registerTool("echo", { inputSchema: echoed }, (said, { http }) =>
    text(`${said.text} from ${http.req.headers.get("mcp-param-region")}`),
  );
  server.registerTool("count", { inputSchema: object({ to: { type: "integer" } }, "to") }, async ({ to }, { mcpReq }) => {
    for (let progress = 1; progress <= to; progress++) {
      const params = { progressToken: mcpReq._meta.progressToken, progress, total: to };
      await mcpReq.notify({ method: "notifications/progress", params });
      await new Promise((resolve) => setTimeout(resolve, STEP_MS));
    }
    return text(`counted to ${to}`);
  });
  server.registerTool("ask", { inputSchema: object({}) }, (_, { mcpReq }) => {
    const answer = acceptedContent(mcpReq.inputResponses, "name");
    if (answer) return text(`Hello, ${answer.name}`);
    const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
    return inputRequired({ inputRequests: { name: inputRequired.elicit({ message: "Who is it?", requestedSchema }) } });
  });
  server.registerTool("change", { inputSchema: object({}) }, () => {
    handler.notify.toolsChanged();
    handler.notify.resourceUpdated(NOTE);
    return text("changed");
  });
  server.registerResource("one", NOTE, { mimeType: "text/plain" }, (uri) => ({
    contents: [{ uri: uri.href, text: "h\u00e9llo\u2028\u{1F600}" }],
  }));
  const handle = (method, run) => server.server.setRequestHandler(method, ANY_PARAMS_AND_RESULT, run);
  if (era === "modern") {
    handle("tasks/get", ({ taskId }) => taskOf(taskId));
    handle("tasks/update", ({ taskId }) => ({ updated: taskOf(taskId).taskId }));
    handle("tasks/cancel", ({ taskId }) => ({ cancelled: taskOf(taskId).taskId }));
  } else {
    handle("tasks/list", () => ({ tasks }));
  }
  return server;
}

const handler = createMcpHandler(build);
const serve = toNodeHandler(handler);
createServer((request, response) => {
  if (request.url === "/subscriptions") response.end(String(handler.bus.listenerCount));
  else serve(request, response);
}).listen(Number(process.env.PORT), "127.0.0.1");
