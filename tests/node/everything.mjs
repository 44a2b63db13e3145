// One whole conversation of the TypeScript SDK's client with the reference server, step by step.
//
// node everything.mjs URL [filtered]
//
// Each step prints one JSON line, `{"step": name, ...what it saw}`, for pytest to judge: this script asserts
// nothing, so that a run straight to the server and a run through the gateway can be laid side by side.
// `filtered` adds the steps that only a filtering server can answer.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
  ResultSchema,
} from "@modelcontextprotocol/sdk/types.js";

const WAIT_MS = 20_000;
const POLL_MS = 50;
const PLAIN_TASKS = 12; // with the ambiguous one more than a page, which is 10 tasks on this server

const [url, mode] = process.argv.slice(2);

function print(step, seen) {
  console.log(JSON.stringify({ step, ...seen }));
}

/** What `probe` returns once it is truthy; an error when that takes too long. */
async function eventually(what, probe) {
  const deadline = Date.now() + WAIT_MS;
  while (Date.now() < deadline) {
    const found = await probe();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`waited ${WAIT_MS} ms in vain for ${what}`);
}

const errors = [];
const logged = [];
const elicited = [];
let rootsAsked = 0;

const client = new Client(
  { name: "taskgate-tests", version: "1" },
  { capabilities: { roots: { listChanged: true }, sampling: {}, elicitation: {} } },
);
client.onerror = (error) => errors.push(String(error));
client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => logged.push(params));
client.setRequestHandler(ListRootsRequestSchema, () => {
  rootsAsked += 1;
  return { roots: [{ uri: "file:///a/root", name: "a root" }] };
});
client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => ({
  role: "assistant",
  model: "none",
  content: { type: "text", text: `${params.messages.length} message(s), ${params.maxTokens} tokens` },
}));
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  elicited.push(params);
  return { action: "accept", content: { interpretation: "snake" } };
});

/** Any request, its result as the server gave it: ResultSchema lets every member through. */
const ask = (method, params) => client.request({ method, params }, ResultSchema);
const call = (name, args = {}, task = undefined) => ask("tools/call", { name, arguments: args, task });

/** The pages of `tasks/list` for these criteria, cursors followed to the end. */
async function pages(criteria) {
  const all = [];
  let cursor;
  do {
    const page = await ask("tasks/list", { ...criteria, ...(cursor === undefined ? {} : { cursor }) });
    all.push(page);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return all;
}

/** The bare HTTP answer to one message of this session, past the SDK. */
async function post(sessionId, message) {
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "Mcp-Session-Id": sessionId,
    },
    body: JSON.stringify(message),
  });
  return { status: response.status, body: await response.text() };
}

const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
print("initialize", {
  protocolVersion: transport.protocolVersion,
  capabilities: client.getServerCapabilities(),
  server: client.getServerVersion(),
  instructions: client.getInstructions(),
});

// The tasks take 4 s: they run while the other steps do.
const created = [await call("simulate-research-query", { topic: "python", ambiguous: true }, { ttl: 60000 })];
for (let i = 0; i < PLAIN_TASKS; i++) {
  created.push(await call("simulate-research-query", { topic: `topic ${i}` }, { ttl: 60000 }));
}
const ids = created.map(({ task }) => task.taskId);
print("create tasks", { created });
print("cancel task", { result: await ask("tasks/cancel", { taskId: ids.at(-1) }) });
if (mode === "filtered") {
  print("filtered after cancel", { pages: await pages({ status: ["cancelled"] }) });
}

// The server asks for the roots on the GET stream, and says there that it has them.
await eventually("roots/list", () => rootsAsked > 0);
await eventually("the notification about roots", () => logged.some(({ data }) => /Roots updated/.test(data)));
print("roots on the GET stream", { asked: rootsAsked, logged: [...logged] });

print("tools/list", { result: await ask("tools/list") });
print("tools/call echo", { result: await call("echo", { message: "h\u00e9llo\u2028\u{1F600}" }) });
const resources = await ask("resources/list");
print("resources/list", { result: resources });
print("resources/read", { result: await ask("resources/read", { uri: resources.resources[0].uri }) });
print("resources/templates/list", { result: await ask("resources/templates/list") });
print("prompts/list", { result: await ask("prompts/list") });
print("prompts/get", { result: await ask("prompts/get", { name: "simple-prompt" }) });
print("tools/call unknown", { result: await call("no-such-tool") });

// Progress comes on the POST stream, each step when it happens.
const started = Date.now();
const progress = [];
const finished = await client.callTool(
  { name: "trigger-long-running-operation", arguments: { duration: 1, steps: 4 } },
  undefined,
  { onprogress: (seen) => progress.push({ ...seen, elapsed_ms: Date.now() - started }) },
);
print("progress on the POST stream", { progress, result: finished, elapsed_ms: Date.now() - started });

// The server's own request on the POST stream, answered in a POST of its own.
print("sampling on the POST stream", { result: await call("trigger-sampling-request", { prompt: "Say it" }) });

// Log messages on the GET stream: the first one at once.
await client.setLoggingLevel("debug");
const before = logged.length;
await call("toggle-simulated-logging");
await eventually("a simulated log message", () => logged.length > before);
await call("toggle-simulated-logging");
print("logging on the GET stream", { message: logged[before] });

// The ambiguous task stops for an answer, which tasks/result asks for.
const asking = await eventually("input_required", async () => {
  const task = await ask("tasks/get", { taskId: ids[0] });
  return task.status === "input_required" && task;
});
print("input required", { task: asking });
if (mode === "filtered") {
  print("filtered while input is required", { pages: await pages({ filter: { status: ["input_required"] } }) });
}
const outcome = await ask("tasks/result", { taskId: ids[0] });
print("tasks/result with elicitation", { elicited, result: outcome });
print("tasks/get after the result", { task: await ask("tasks/get", { taskId: ids[0] }) });

await eventually("the end of all tasks", async () => {
  const tasks = (await pages({})).flatMap((page) => page.tasks);
  return tasks.every(({ status }) => status !== "working");
});
const unfiltered = await pages({});
print("tasks/list unfiltered", { pages: unfiltered });

if (mode === "filtered") {
  const tasks = unfiltered.flatMap((page) => page.tasks);
  const created_at = tasks.map((task) => task.createdAt).sort();
  const updated_at = tasks.map((task) => task.lastUpdatedAt).sort();
  const answers = [];
  for (const criteria of [
    { status: ["completed"] },
    { status: ["completed", "cancelled"], order: "asc" },
    { status: ["working"] },
    { taskIds: [ids[0], ids[5], "no-such-task"] },
    { methods: ["tools/call"] },
    { methods: ["sampling/createMessage"] },
    { orderBy: "createdAt", order: "asc" },
    { orderBy: "createdAt" },
    { order: "asc" },
    { createdAfter: created_at[4] },
    { createdBefore: created_at[4], orderBy: "createdAt" },
    { lastUpdatedAfter: updated_at[6] },
    { lastUpdatedBefore: updated_at[6] },
    { filter: { status: ["completed"], createdAfter: created_at[3] }, orderBy: "createdAt", order: "asc" },
  ]) {
    answers.push({ criteria, pages: await pages(criteria) });
  }
  print("filtered", { answers });
}

print("errors of the client", { errors: [...errors] });

// Errors come last: this client takes an error that ends a stream for a stream cut short, and asks a second later
// for all events since, the server's empty priming ones included.
print("unknown method", { error: await ask("no/such-method").catch(({ code, message }) => ({ code, message })) });
if (mode === "filtered") {
  print("bad timestamp", {
    error: await ask("tasks/list", { createdAfter: "yesterday" }).catch(({ code, message, data }) => ({
      code,
      message,
      data,
    })),
  });
}

const session = transport.sessionId;
await transport.terminateSession();
await client.close();
print("after DELETE", { answer: await post(session, { jsonrpc: "2.0", id: 1, method: "ping" }) });
if (mode === "filtered") {
  print("filtered after DELETE", {
    answer: await post(session, { jsonrpc: "2.0", id: 1, method: "tasks/list", params: { status: ["completed"] } }),
  });
}
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
