// One whole conversation of the TypeScript SDK's client over the deprecated HTTP+SSE transport, step by step.
//
// node http_sse.mjs URL
//
// URL is that of the stream. Each step prints one JSON line for pytest to judge, as everything.mjs does.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import {
  CreateMessageRequestSchema,
  LoggingMessageNotificationSchema,
  ResultSchema,
} from "@modelcontextprotocol/sdk/types.js";

const WAIT_MS = 20_000;
const POLL_MS = 20;
const REQUEST_MS = 5_000;

const [url] = process.argv.slice(2);

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
const posted = [];

const client = new Client({ name: "taskgate-tests", version: "1" }, { capabilities: { sampling: {} } });
client.onerror = (error) => {
  // Progress that comes with the result in one piece is too late for this client.
  if (!/progress notification for an unknown token/.test(error.message)) errors.push(String(error));
};
client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => logged.push(params));
client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => ({
  role: "assistant",
  model: "none",
  content: { type: "text", text: `${params.messages.length} message(s), ${params.maxTokens} tokens` },
}));

/** A result as the server gave it, or the error. */
async function ask(method, params) {
  try {
    return await client.request({ method, params }, ResultSchema, { timeout: REQUEST_MS });
  } catch ({ code, message, data }) {
    return { error: { code, message, data } };
  }
}
const call = (name, args = {}, task = undefined) => ask("tools/call", { name, arguments: args, task });

/** What a message's POST was answered with: its result comes on the stream. */
async function recorded(input, init) {
  const response = await fetch(input, init);
  const { status } = response;
  if (init.method === "POST") posted.push({ status, body: await response.clone().text() });
  return response;
}

await client.connect(new SSEClientTransport(new URL(url), { fetch: recorded }));
print("initialize", {
  capabilities: client.getServerCapabilities(),
  server: client.getServerVersion(),
  instructions: client.getInstructions(),
});
print("tools/list", { result: await ask("tools/list") });
print("tools/call", { result: await call("echo", { message: "h\u00e9llo\u2028\u{1F600}" }) });
print("tools/call unknown", { result: await call("no-such-tool") });
print("unknown method", { result: await ask("no/such-method") });
print("sampling", { result: await call("trigger-sampling-request", { prompt: "Say it" }) });

const started = Date.now();
const progress = [];
const elapsed_ms = [];
const onprogress = (seen) => {
  progress.push(seen);
  elapsed_ms.push(Date.now() - started);
};
const operation = { name: "trigger-long-running-operation", arguments: { duration: 1, steps: 4 } };
print("progress", { result: await client.callTool(operation, undefined, { onprogress }) });
print("times of progress", { progress, elapsed_ms, total_ms: Date.now() - started });

await client.setLoggingLevel("debug");
const before = logged.length;
await call("toggle-simulated-logging");
await eventually("a simulated log message", () => logged.length > before);
await call("toggle-simulated-logging");
print("notification", { message: logged[before] });

const created = await call("simulate-research-query", { topic: "python" }, { ttl: 60000 });
const { taskId } = created.task;
print("create task", { created });
print("tasks/cancel", { result: await ask("tasks/cancel", { taskId }) });
print("tasks/get", { result: await ask("tasks/get", { taskId }) });
print("tasks/list", { result: await ask("tasks/list", {}) });
for (const [name, criteria] of Object.entries({
  "that none match": { status: ["failed"] },
  "in an object": { filter: { taskIds: ["none"] }, order: "asc" },
  "that is bad": { createdAfter: "yesterday" },
})) {
  print(`tasks/list with a filter ${name}`, { result: await ask("tasks/list", criteria) });
}
print("posted", { posted: posted.filter(({ status, body }) => status !== 202 || body !== "Accepted") });
print("errors of the client", { errors });
process.exit(0); // the stream, and fetch, keep their connections
