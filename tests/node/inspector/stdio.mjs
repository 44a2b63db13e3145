// The Inspector's command line says to servers on stdio what it can: `initialize`, the list of tools and a call.
//
// node stdio.mjs COMMAND...
//
// A COMMAND is a JSON list of words. As in table.mjs, all command lines run in this process. Prints one JSON line a
// command: the results by method.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const folder = mkdtempSync(join(tmpdir(), "inspector-"));
Object.assign(process.env, { MCP_STORAGE_DIR: folder, MCP_INSPECTOR_SECRET_STORE: "memory" });
const { runCli } = await import("./node_modules/@modelcontextprotocol/inspector/clients/cli/build/index.js");

const ASKED = [["initialize"], ["tools/list"], ["tools/call", "--tool-name", "echo", "--tool-arg", "message=hello"]];

/** The results of one server's command, by method. */
async function visit(command, number) {
  const seen = {};
  for (const [method, ...more] of ASKED) {
    const output = join(folder, `${number}.json`);
    const given = ["--method", method, ...more, "--output", output, "--connect-timeout", "0", "--", ...command];
    await runCli(["node", "mcp-inspector", ...given]);
    seen[method] = JSON.parse(readFileSync(output, "utf8"));
  }
  return seen;
}

const seen = await Promise.all(process.argv.slice(2).map((command, number) => visit(JSON.parse(command), number)));
for (const one of seen) console.log(JSON.stringify(one));
rmSync(folder, { recursive: true });
process.exit(0);
