// One whole conversation of the official 2.x client in revision 2026-07-28, step by step.
//
// node revision_2026.mjs URL
//
// Each step prints one JSON line for pytest to judge, as everything.mjs does: its result or its error, and its
// exchanges, with the headers that only this revision has and the status and type of each answer.
import { Client, fromJsonSchema, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const WAIT_MS = 10_000;
const POLL_MS = 20;
const NOTE = "notes://one";
const ANY = fromJsonSchema({ type: "object" });

const [url] = process.argv.slice(2);
let exchanges = [];

async function recorded(input, init) {
  const response = await fetch(input, init);
  const sent = [...new Headers(init.headers)].filter(([name]) => name.startsWith("mcp-"));
  exchanges.push({
    sent: Object.fromEntries(sent),
    status: response.status,
    type: response.headers.get("content-type"),
    session: response.headers.get("mcp-session-id"),
  });
  return response;
}

async function step(name, run) {
  exchanges = [];
  let seen;
  try {
    seen = { result: await run() };
  } catch (error) {
    const { code, message, data } = error;
    seen = { error: { name: error.constructor.name, code, message, data } };
  }
  console.log(JSON.stringify({ step: name, ...seen, exchanges }));
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
const changes = [];
const client = new Client(
  { name: "taskgate-tests", version: "1" },
  { capabilities: { elicitation: {} }, versionNegotiation: { mode: { pin: "2026-07-28" } } },
);
client.onerror = (error) => errors.push(String(error));
client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: { name: "Anna" } }));
for (const method of ["notifications/tools/list_changed", "notifications/resources/updated"]) {
  client.setNotificationHandler(method, (notification) => changes.push(notification));
}

const ask = (method, params) => client.request({ method, params }, ANY);
const call = (name, args = {}, options = undefined) => client.callTool({ name, arguments: args }, options);
const subscriptions = async () => Number(await (await fetch(new URL("/subscriptions", url))).text());

await step("connect", async () => {
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { fetch: recorded }));
  return { version: client.getNegotiatedProtocolVersion(), era: client.getProtocolEra() };
});
await step("server/discover", () => client.discover());
await step("tools/list", () => client.listTools());
await step("tools/call", () => call("echo", { text: "h\u00e9llo\u2028\u{1F600}", region: "\u00e9t\u00e9" }));
await step("tools/call unknown", () => call("no-such-tool"));
await step("resources/list", () => client.listResources());
await step("resources/read", () => client.readResource({ uri: NOTE }));
await step("input required", () => call("ask"));
await step("progress", async () => {
  const started = Date.now();
  const elapsed_ms = [];
  const progress = [];
  const onprogress = (seen) => {
    progress.push(seen);
    elapsed_ms.push(Date.now() - started);
  };
  const result = await call("count", { to: 4 }, { onprogress });
  console.log(JSON.stringify({ step: "times of progress", elapsed_ms, total_ms: Date.now() - started }));
  return { progress, result };
});
await step("subscriptions/listen", async () => {
  const subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: [NOTE] });
  await call("change");
  await eventually("both notifications", () => changes.length === 2);
  const open = await subscriptions();
  await subscription.close();
  // The server holds a subscription until its stream is closed.
  await eventually("the end of the subscription at the server", async () => (await subscriptions()) === 0);
  return { honored: subscription.honoredFilter, changes, open, closed: await subscription.closed };
});
const taskId = "task 0/\u00e9";
await step("tasks/get", () => ask("tasks/get", { taskId }));
await step("tasks/update", () => ask("tasks/update", { taskId, inputResponses: {} }));
await step("tasks/cancel", () => ask("tasks/cancel", { taskId }));
await step("tasks/get unknown", () => ask("tasks/get", { taskId: "none" }));
await step("unknown method", () => ask("no/such-method", {}));
await step("errors of the client", () => errors);
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
