// A server of the TypeScript SDK 1.x whose sessions share one InMemoryTaskStore, as the SDK's own examples have it.
//
// PORT=3001 node [--import ./sdk_1_30.mjs] shared_store.mjs
//
// The tool `work` makes a task, which completes at once if `ends`, else never.
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { z } from "zod";
import { serve } from "./serve.mjs";

const taskStore = new InMemoryTaskStore();
const taskMessageQueue = new InMemoryTaskMessageQueue();

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

serve(build);
