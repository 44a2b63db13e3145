// A server of the TypeScript SDK 1.x with task tools whose tasks another tool moves on.
//
// PORT=3001 node [--import ./sdk_1_30.mjs] seen_tasks.mjs
//
// `render`, `train` and `index` make a task; with `ends` it is over before its result is sent, or `later`. `move` gives a task another
// status; a terminal one with a result, as its tool would.
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { z } from "zod";
import { serve } from "./serve.mjs";

const shared = new InMemoryTaskStore();
const taskMessageQueue = new InMemoryTaskMessageQueue();
const result = (status) => ({ content: [{ type: "text", text: status }], isError: status === "failed" });

function build() {
  const tasks = { list: {}, cancel: {}, requests: { tools: { call: {} } } };
  const options = { capabilities: { tasks }, taskStore: shared, taskMessageQueue };
  const server = new McpServer({ name: "seen-tasks", version: "1" }, options);
  const how = { inputSchema: { ends: z.string().default("") }, execution: { taskSupport: "required" } };
  for (const name of ["render", "train", "index"])
    server.experimental.tasks.registerToolTask(name, how, {
      async createTask({ ends }, { sessionId, taskStore, taskRequestedTtl }) {
        const task = await taskStore.createTask({ ttl: taskRequestedTtl, pollInterval: 200 });
        if (ends === "later") setTimeout(() => shared.storeTaskResult(task.taskId, "completed", result("completed"), sessionId), 1500);
        else if (ends) await taskStore.storeTaskResult(task.taskId, ends, result(ends));
        return { task };
      },
      getTask: (_, { taskId, taskStore }) => taskStore.getTask(taskId),
      getTaskResult: (_, { taskId, taskStore }) => taskStore.getTaskResult(taskId),
    });
  const moved = { inputSchema: { taskId: z.string(), to: z.string() } };
  server.registerTool("move", moved, async ({ taskId, to }, { sessionId }) => {
    if (to === "completed" || to === "failed") await shared.storeTaskResult(taskId, to, result(to), sessionId);
    else await shared.updateTaskStatus(taskId, to, undefined, sessionId);
    return { content: [] };
  });
  return server;
}

serve(build);
