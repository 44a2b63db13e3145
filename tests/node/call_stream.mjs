// A client of the TypeScript SDK 1.x calls a task tool of seen_tasks.mjs as its users do, and prints what the SDK makes of it.
//
// node call_stream.mjs URL
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

const client = new Client({ name: "call-stream", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const call = { name: "render", arguments: { ends: "later" } };
const told = { polls: 0 };
for await (const message of client.experimental.tasks.callToolStream(call, CallToolResultSchema, { task: { ttl: 60000 } })) {
  if (message.type === "taskStatus") told.polls += 1;
  if (message.type === "result") told.result = message.result;
  if (message.type === "error") told.error = String(message.error);
}
console.log(JSON.stringify({ step: "told", ...told }));
await client.close();
