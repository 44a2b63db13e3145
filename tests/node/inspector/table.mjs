// The Inspector's command line says to each server what it can: a login, `initialize` and a call. It has no method for
// lists of tasks.
//
// node table.mjs URL...
//
// Prints one JSON line a URL, as ../table.mjs does. The user agent is a fetch of each address that the Inspector asks its
// user to open.
import { AsyncLocalStorage } from "node:async_hooks";
import { subscribe } from "node:diagnostics_channel";
import { command, over } from "./cli.mjs";

const ASKS_USER = /^Please navigate to: (.*)$/m;
process.stdin.isTTY = true; // it logs in only where it finds a user
const visits = new AsyncLocalStorage(); // which visit a request belongs to
subscribe("undici:request:create", ({ request }) => {
  visits.getStore()?.asked.push(`${request.origin}${request.path.split("?")[0]}`);
});
const write = process.stderr.write.bind(process.stderr);
process.stderr.write = (text, ...more) => {
  const [, address] = ASKS_USER.exec(text) ?? [];
  if (address) openPage(address).catch((error) => write(`${error.stack}\n`));
  return write(text, ...more);
};

/** What a browser does: it asks for the page, and is sent back to where the Inspector waits. */
async function openPage(address) {
  const answer = await fetch(address, { redirect: "manual" });
  await visits.exit(() => fetch(answer.headers.get("location")));
}

async function visit(url, number) {
  const { asked } = visits.getStore();
  const ask = (...words) => command(number, [url, "--method", ...words], ["--callback-url", "http://127.0.0.1:0/callback"]);
  const { capabilities } = await ask("initialize");
  const called = await ask("tools/call", "--tool-name", "release", "--tool-arg", "taskId=nobody");
  return { capabilities, called, asked, logged_in: asked.some((address) => address.endsWith("/token")) };
}

const safely = (url, number) =>
  visits.run({ asked: [] }, visit, url, number).then(
    (seen) => ({ url, ...seen }),
    (error) => ({ url, error: `${error.stack}\n${error.cause?.stack ?? ""}` }),
  );
for (const seen of await Promise.all(process.argv.slice(2).map(safely))) console.log(JSON.stringify(seen));
over();
