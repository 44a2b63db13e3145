// A server of the TypeScript SDK 1.x as its own examples have it: a tool stores its result when it is done, whatever
// became of its session, and catches nothing.
//
// PORT=3001 node lone_tool.mjs
//
// The tool `delay` takes `seconds`; the tool `count` makes no task, and tells how many it has made.
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { z } from "zod";
import { serve } from "./serve.mjs";

const taskStore = new InMemoryTaskStore();
const count = { made: 0, ended: 0 };

function build() {
  const tasks = { list: {}, cancel: {}, requests: { tools: { call: {} } } };
  const options = { capabilities: { tasks }, taskStore, taskMessageQueue: new InMemoryTaskMessageQueue() };
  const server = new McpServer({ name: "lone-tool", version: "1" }, options);
  const how = { inputSchema: { seconds: z.number() }, execution: { taskSupport: "required" } };
  server.experimental.tasks.registerToolTask("delay", how, {
    async createTask({ seconds }, { taskStore, taskRequestedTtl }) {
      const task = await taskStore.createTask({ ttl: taskRequestedTtl, pollInterval: 200 });
      count.made += 1;
      (async () => {
        await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
        await taskStore.storeTaskResult(task.taskId, "completed", { content: [{ type: "text", text: "done" }] });
        count.ended += 1;
      })();
      return { task };
    },
    getTask: (_, { taskId, taskStore }) => taskStore.getTask(taskId),
    getTaskResult: (_, { taskId, taskStore }) => taskStore.getTaskResult(taskId),
  });
  server.registerTool("count", {}, () => ({ content: [{ type: "text", text: JSON.stringify(count) }] }));
  return server;
}

serve(build);
