// The TypeScript SDK, 1.x or 2.x, for the scripts whose first argument says which: `sdk` or `client`.
//
// Out: the SDK's parts under the names that both have; a login whose user agent is a fetch.
const CALLBACK = "http://127.0.0.1:1/callback";

const is1 = process.argv[2] === "sdk";
const load = async (path, name) =>
  (await import(is1 ? `@modelcontextprotocol/sdk/${path}.js` : "@modelcontextprotocol/client"))[name];

const Client = await load("client/index", "Client");
const StreamableHTTPClientTransport = await load("client/streamableHttp", "StreamableHTTPClientTransport");
const UnauthorizedError = await load("client/auth", "UnauthorizedError");
// Any result: both packages' validators take a Standard Schema or, in 1.x, one of their own.
const ANY = is1 ? await load("types", "ResultSchema") : (await load("", "fromJsonSchema"))({ type: "object" });

/** Everything that a login leaves, in memory. The user agent is a fetch that does not follow the redirect. */
class Provider {
  redirectUrl = CALLBACK;
  clientMetadata = { redirect_uris: [CALLBACK], client_name: "taskgate-tests" };
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

/** A client at this address that can log in; every request of its goes through `fetch`. */
export class Visitor {
  constructor(url, fetch) {
    this.client = new Client({ name: "taskgate-tests", version: "1" });
    this.provider = new Provider(fetch);
    this.transport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider: this.provider, fetch });
  }

  /** Connect; if the server wants a login first, `onLogin` runs between the login and the session. */
  async connect(onLogin = () => {}) {
    const first = this.transport();
    try {
      await this.client.connect(first);
    } catch (error) {
      if (!(error instanceof UnauthorizedError)) throw error;
      const said = this.provider.answered;
      await first.finishAuth(is1 ? said.get("code") : said);
      onLogin(said);
      await this.client.connect(this.transport());
    }
  }

  /** Any request, its result as the server gave it. */
  ask = (method, params) => this.client.request({ method, params }, ANY);
}
