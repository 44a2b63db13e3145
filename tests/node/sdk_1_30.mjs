// node --import ./sdk_1_30.mjs FILE: the same program with version 1.30 of the TypeScript SDK in the place of the newest.
import { register } from "node:module";

const hooks = `export const resolve = (name, context, next) =>
  next(name.replace(/^@modelcontextprotocol\\/sdk(?=\\/)/, "sdk-1-30"), context);`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
