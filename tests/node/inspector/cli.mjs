// The Inspector's command lines, all in one process, through the entry that `mcp-inspector --cli` itself calls: most of
// the work of a command is to start.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const folder = mkdtempSync(join(tmpdir(), "inspector-"));
Object.assign(process.env, { MCP_STORAGE_DIR: folder, MCP_INSPECTOR_SECRET_STORE: "memory" });
const { runCli } = await import("./node_modules/@modelcontextprotocol/inspector/clients/cli/build/index.js");

/** The result of one command line. Those of one `number` come one after the other. */
export async function command(number, words, lastWords) {
  const output = join(folder, `${number}.json`);
  const patience = ["--connect-timeout", "0"]; // the test that started this process has some
  await runCli(["node", "mcp-inspector", ...words, "--output", output, ...patience, ...lastWords]);
  return JSON.parse(readFileSync(output, "utf8"));
}

/** End the process: the Inspector would keep it. */
export function over() {
  rmSync(folder, { recursive: true });
  process.exit(0);
}
