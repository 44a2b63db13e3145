// A login with the OAuth client of the TypeScript SDK, 1.x or 2.x, then a task and a filtered list.
//
// node login.mjs PACKAGE URL
//
// PACKAGE is `sdk` or `client`. The user agent is a fetch that does not follow the redirect to the client. Prints one
// JSON line a step, as everything.mjs does.
const CALLBACK = "http://127.0.0.1:1/callback";
const POLL_MS = 20;

const [name, url] = process.argv.slice(2);
const sdk = async (path, names) => {
  const from = await import(name === "sdk" ? `@modelcontextprotocol/sdk/${path}.js` : "@modelcontextprotocol/client");
  return names.map((each) => from[each]);
};
const [Client] = await sdk("client/index", ["Client"]);
const [StreamableHTTPClientTransport] = await sdk("client/streamableHttp", ["StreamableHTTPClientTransport"]);
const [UnauthorizedError] = await sdk("client/auth", ["UnauthorizedError"]);
// Any result: both packages' validators take a Standard Schema or, in 1.x, one of their own.
const ANY =
  name === "sdk"
    ? (await sdk("types", ["ResultSchema"]))[0]
    : (await sdk("", ["fromJsonSchema"]))[0]({ type: "object" });

const asked = [];
async function recorded(input, init) {
  const request = new URL(input);
  asked.push(`${init?.method ?? "GET"} ${request.origin}${request.pathname}`);
  return fetch(input, init);
}

/** Everything that a login leaves, in memory. */
class Provider {
  redirectUrl = CALLBACK;
  clientMetadata = { redirect_uris: [CALLBACK], client_name: "taskgate-tests" };
  #kept = {};
  state = () => "state";
  clientInformation = () => this.#kept.client;
  saveClientInformation = (client) => void (this.#kept.client = client);
  tokens = () => this.#kept.tokens;
  saveTokens = (tokens) => void (this.#kept.tokens = tokens);
  codeVerifier = () => this.#kept.verifier;
  saveCodeVerifier = (verifier) => void (this.#kept.verifier = verifier);
  discoveryState = () => this.#kept.discovery;
  saveDiscoveryState = (discovery) => void (this.#kept.discovery = discovery);
  async redirectToAuthorization(to) {
    const answer = await recorded(to, { redirect: "manual" });
    this.answered = new URL(answer.headers.get("location")).searchParams;
  }
}

const print = (step, seen) => console.log(JSON.stringify({ step, ...seen }));

const authProvider = new Provider();
const client = new Client({ name: "taskgate-tests", version: "1" });
const transport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider, fetch: recorded });

const first = transport();
try {
  await client.connect(first);
  throw new Error("the server let somebody in who had not logged in");
} catch (error) {
  if (!(error instanceof UnauthorizedError)) {
    print("refused", { message: error.message, asked });
    process.exit(0);
  }
}
await first.finishAuth(name === "sdk" ? authProvider.answered.get("code") : authProvider.answered);
print("login", { asked: [...asked], state: authProvider.answered.get("state") });

await client.connect(transport());
const ask = (method, params) => client.request({ method, params }, ANY);
const work = { name: "work", arguments: { until: "released", label: "after the login" }, task: { ttl: 60000 } };
const { task } = await ask("tools/call", work);
const filtered = await ask("tasks/list", { status: ["working"] });
print("tasks", { capabilities: client.getServerCapabilities(), task, filtered });
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
