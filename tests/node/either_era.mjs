// The official 2.x client, which finds out what a server speaks: what it learns, and a filtered list.
//
// node either_era.mjs URL [URL...]
//
// Prints one JSON line for each URL, which is its step.
import { Client, fromJsonSchema, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const ANY = fromJsonSchema({ type: "object" });
const CRITERIA = { status: ["working"], orderBy: "createdAt", order: "asc" };

for (const url of process.argv.slice(2)) {
  const client = new Client({ name: "taskgate-tests", version: "1" }, { versionNegotiation: { mode: "auto" } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const seen = {
    step: url,
    version: client.getNegotiatedProtocolVersion(),
    server: client.getServerVersion(),
    capabilities: client.getServerCapabilities(),
    tools: await client.listTools(),
    tasks: await client.request({ method: "tasks/list", params: CRITERIA }, ANY),
  };
  console.log(JSON.stringify(seen));
}
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
