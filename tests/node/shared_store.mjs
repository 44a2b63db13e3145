// A server of the TypeScript SDK 1.x whose sessions share one InMemoryTaskStore, as the SDK's own examples have it.
//
// PORT=3001 node [--import ./sdk_1_30.mjs] shared_store.mjs
//
// The tool `work` makes a task, which completes at once if `ends`, else never.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const taskStore = new InMemoryTaskStore();
const taskMessageQueue = new InMemoryTaskMessageQueue();
const transports = new Map();

function build() {
  const tasks = { list: {}, cancel: {}, requests: { tools: { call: {} } } };
  const options = { capabilities: { tasks }, taskStore, taskMessageQueue };
  const server = new McpServer({ name: "shared-store", version: "1" }, options);
  const how = { inputSchema: { ends: z.boolean().default(false) }, execution: { taskSupport: "required" } };
  server.experimental.tasks.registerToolTask("work", how, {
    async createTask({ ends }, { taskStore }) {
      const task = await taskStore.createTask({});
      if (ends) await taskStore.storeTaskResult(task.taskId, "completed", { content: [{ type: "text", text: "done" }] });
      return { task };
    },
    getTask: (_, { taskId, taskStore }) => taskStore.getTask(taskId),
    getTaskResult: (_, { taskId, taskStore }) => taskStore.getTaskResult(taskId),
  });
  return server;
}

createServer(async (request, response) => {
  let transport = transports.get(request.headers["mcp-session-id"]);
  if (!transport) {
    const onsessioninitialized = (id) => transports.set(id, transport);
    transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized });
    await build().connect(transport);
  }
  await transport.handleRequest(request, response);
}).listen(Number(process.env.PORT), "127.0.0.1");
