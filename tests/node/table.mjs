// A client of the TypeScript SDK, 1.x or 2.x, says to each server what every client of the table says:
// tests/real/clients/conversation.py has the same words.
//
// node table.mjs PACKAGE URL...
//
// PACKAGE is `sdk` or `client`. All conversations are held at once; each prints one JSON line.
import { Visitor } from "./sdk.mjs";

const urls = process.argv.slice(3);

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
  const visitor = new Visitor(url, recorded);
  await visitor.connect();
  const seen = await converse(visitor.ask);
  const logged_in = Boolean(visitor.provider.tokens());
  return { ...seen, capabilities: visitor.client.getServerCapabilities(), asked, logged_in };
}

const safely = (url) =>
  visit(url).then(
    (seen) => ({ url, ...seen }),
    (error) => ({ url, error: `${error.stack}\n${error.cause?.stack ?? ""}` }),
  );
for (const seen of await Promise.all(urls.map(safely))) console.log(JSON.stringify(seen));
process.exit(0); // fetch keeps its connections, and with them this process, for seconds
