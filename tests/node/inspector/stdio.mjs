// The Inspector's command line says to servers on stdio what it can: `initialize`, the list of tools and a call.
//
// node stdio.mjs COMMAND...
//
// A COMMAND is a JSON list of words. As in table.mjs, all command lines run in this process. Prints one JSON line a
// command: the results by method.
import { command, over } from "./cli.mjs";

const ASKED = [["initialize"], ["tools/list"], ["tools/call", "--tool-name", "echo", "--tool-arg", "message=hello"]];

/** The results of one server's command, by method. */
async function visit(server, number) {
  const seen = {};
  for (const [method, ...more] of ASKED)
    seen[method] = await command(number, ["--method", method, ...more], ["--", ...server]);
  return seen;
}

const seen = await Promise.all(process.argv.slice(2).map((server, number) => visit(JSON.parse(server), number)));
for (const one of seen) console.log(JSON.stringify(one));
over();
