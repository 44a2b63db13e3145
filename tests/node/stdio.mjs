// A client of the TypeScript SDK, 1.x, with servers on stdio: what it says stands in tests/real/test_stdio.py.
//
// node stdio.mjs JOB...
//
// A job is JSON: {command, calls, filtered}. All are done at once; each prints one JSON line, in the order of jobs.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { ElicitRequestSchema, ResultSchema } from "@modelcontextprotocol/sdk/types.js";

async function pages(send, params) {
  const all = [];
  let cursor;
  do {
    const page = await send("tasks/list", { ...params, ...(cursor === undefined ? {} : { cursor }) });
    all.push(page);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return all;
}

function lists(tasks) {
  const created = tasks.map((task) => task.createdAt).sort();
  const updated = tasks.map((task) => task.lastUpdatedAt).sort();
  return [
    { order: "asc" },
    { orderBy: "createdAt" },
    { status: ["completed", "failed"] },
    { filter: { status: ["cancelled"] } },
    { taskIds: [tasks[0].taskId, "nobody"] },
    { methods: ["tools/call"], orderBy: "createdAt", order: "asc" },
    { createdAfter: created[1] },
    { createdBefore: created[1] },
    { lastUpdatedAfter: updated[1], lastUpdatedBefore: updated.at(-1) },
  ];
}

async function visit({ command, calls, filtered }) {
  const client = new Client({ name: "taskgate-tests", version: "1" }, { capabilities: { elicitation: {} } });
  const asked = [];
  client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
    asked.push(params.message);
    return { action: "accept", content: { interpretation: "snake", answer: "yes" } };
  });
  const [program, ...args] = command;
  const transport = new StdioClientTransport({ command: program, args, env: process.env, stderr: "ignore" });
  await client.connect(transport);
  const send = (method, params) => client.request({ method, params }, ResultSchema);
  const caught = (method, params) => send(method, params).catch(({ code, message }) => ({ code, message }));
  const steps = [client.getServerCapabilities(), await send("tools/list", {})];
  const ids = [];
  for (const [name, args] of calls) {
    const { task } = await send("tools/call", { name, arguments: args, task: { ttl: 60000 } });
    ids.push(task.taskId);
  }
  steps.push(await send("tasks/cancel", { taskId: ids.at(-1) }));
  for (const taskId of ids.slice(0, -1)) steps.push(await caught("tasks/result", { taskId }));
  const tasks = [];
  for (const taskId of ids) tasks.push(await send("tasks/get", { taskId }));
  steps.push(...tasks, asked, ...(await pages(send, {})));
  steps.push(await caught("tasks/get", { taskId: "nobody" }), await caught("no/such", {}));
  const found = [];
  for (const params of filtered ? lists(tasks) : []) {
    const ids = (await pages(send, params)).flatMap((page) => page.tasks.map((task) => task.taskId));
    found.push({ params, found: ids });
  }
  await client.close();
  return { steps, tasks, found };
}

const seen = await Promise.all(
  process.argv.slice(2).map((job) => visit(JSON.parse(job)).catch((error) => ({ error: String(error.stack) }))),
);
for (const each of seen) console.log(JSON.stringify(each));
