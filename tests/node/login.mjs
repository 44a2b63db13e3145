// A login with the OAuth client of the TypeScript SDK, 1.x or 2.x, then a task and a filtered list.
//
// node login.mjs PACKAGE URL
//
// PACKAGE is `sdk` or `client`. Prints one JSON line a step, as everything.mjs does.
import { Visitor } from "./sdk.mjs";

const [, url] = process.argv.slice(2);
const asked = [];
async function recorded(input, init) {
  const request = new URL(input);
  asked.push(`${init?.method ?? "GET"} ${request.origin}${request.pathname}`);
  return fetch(input, init);
}

const print = (step, seen) => console.log(JSON.stringify({ step, ...seen }));

const visitor = new Visitor(url, recorded);
await visitor.connect((said) => print("login", { asked: [...asked], state: said.get("state") }));
const work = { name: "work", arguments: { until: "released", label: "after the login" }, task: { ttl: 60000 } };
const { task } = await visitor.ask("tools/call", work);
const filtered = await visitor.ask("tasks/list", { status: ["working"] });
print("tasks", { capabilities: visitor.client.getServerCapabilities(), task, filtered });
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
