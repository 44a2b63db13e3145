// A client of the TypeScript SDK, 1.x or 2.x, says to each server what every client of the table says:
// tests/real/clients/conversation.py has the same words.
//
// node table.mjs PACKAGE URL...
//
// PACKAGE is `sdk` or `client`. All conversations are held at once; each prints one JSON line.
const REDIRECT = "http://127.0.0.1:1/callback";

const [name, ...urls] = process.argv.slice(2);
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

/** Everything that a login leaves, in memory. The user agent is a fetch that does not follow the redirect. */
class Provider {
  redirectUrl = REDIRECT;
  clientMetadata = { redirect_uris: [REDIRECT], client_name: "taskgate-tests" };
  #kept = {};
  constructor(fetch) {
    this.fetch = fetch;
  }
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
    const answer = await this.fetch(to, { redirect: "manual" });
    this.answered = new URL(answer.headers.get("location")).searchParams;
  }
}

function lists(done, working) {
  const both = { taskIds: [done.taskId, working.taskId] };
  return [
    { ...both, orderBy: "createdAt", order: "asc" },
    { ...both, methods: ["tools/call"], createdAfter: working.createdAt },
    { ...both, requestTypes: ["prompts/get"] },
    { filter: { ...both, status: ["completed"], createdBefore: done.createdAt } },
    { ...both, lastUpdatedAfter: done.lastUpdatedAt, lastUpdatedBefore: working.lastUpdatedAt },
  ];
}

async function converse(send) {
  const made = [];
  for (const until of ["now", "released"]) {
    const params = { name: "work", arguments: { until, label: until }, task: { ttl: 60000 } };
    made.push((await send("tools/call", params)).task.taskId);
  }
  let [done, working] = [await send("tasks/get", { taskId: made[0] }), await send("tasks/get", { taskId: made[1] })];
  while (done.status === "working") {
    await new Promise((resolve) => setTimeout(resolve, 20));
    done = await send("tasks/get", { taskId: made[0] });
  }
  const seen = [];
  for (const params of lists(done, working)) {
    const found = [];
    let [pages, cursor] = [0, undefined];
    while (pages === 0 || cursor) {
      const page = await send("tasks/list", cursor ? { cursor } : params);
      found.push(...page.tasks.map((task) => task.taskId));
      cursor = page.nextCursor;
      pages += 1;
    }
    seen.push({ params, found, pages });
  }
  return { tasks: [done, working], lists: seen };
}

async function visit(url) {
  const asked = [];
  const recorded = async (input, init) => {
    const answer = await fetch(input, init);
    asked.push(answer.url.split("?")[0]); // where redirects led to
    return answer;
  };
  const authProvider = new Provider(recorded);
  const client = new Client({ name: "taskgate-tests", version: "1" });
  const transport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider, fetch: recorded });
  const first = transport();
  try {
    await client.connect(first);
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    const said = authProvider.answered;
    await first.finishAuth(name === "sdk" ? said.get("code") : said);
    await client.connect(transport());
  }
  const seen = await converse((method, params) => client.request({ method, params }, ANY));
  const logged_in = Boolean(authProvider.tokens());
  return { ...seen, capabilities: client.getServerCapabilities(), asked, logged_in };
}

const safely = (url) =>
  visit(url).then(
    (seen) => ({ url, ...seen }),
    (error) => ({ url, error: `${error.stack}\n${error.cause?.stack ?? ""}` }),
  );
for (const seen of await Promise.all(urls.map(safely))) console.log(JSON.stringify(seen));
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
