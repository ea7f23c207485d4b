// The page stays small: everything in dist together, compressed as a server would.

import { readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { gzipSync } from "node:zlib";

const BUDGET_BYTES = 250_000;
const dist = path.join(import.meta.dirname, "../dist");

const files = readdirSync(dist, { recursive: true }).map((name) => path.join(dist, name)).filter((file) => statSync(file).isFile());
const total = files.reduce((sum, file) => sum + gzipSync(readFileSync(file)).length, 0);
console.log(`ui: ${total} of ${BUDGET_BYTES} bytes, compressed`);
if (total > BUDGET_BYTES) {
  console.error("ui: too big; what was added last?");
  process.exit(1);
}
