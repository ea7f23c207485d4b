// The page stays small, and what draws plots is loaded only where there are some. Big files are packed once, here: the server sends them
// as they are, and the program that embeds them stays smaller.

import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { constants, gzipSync } from "node:zlib";

const PAGE_BUDGET_BYTES = 250_000;
const PLOTS_BUDGET_BYTES = 1_750_000;
const PACKED_FROM_BYTES = 1 << 20;
const dist = path.join(import.meta.dirname, "../dist");

const files = readdirSync(dist, { recursive: true }).map((name) => path.join(dist, name)).filter((file) => statSync(file).isFile());
const ofPlots = (file) => path.basename(file).startsWith("plots");
let failed = false;
for (const [what, budget, wanted] of [["page", PAGE_BUDGET_BYTES, (file) => !ofPlots(file)], ["plots", PLOTS_BUDGET_BYTES, ofPlots]]) {
  const total = files.filter(wanted).reduce((sum, file) => sum + gzipSync(readFileSync(file)).length, 0);
  console.log(`ui: ${what}: ${total} of ${budget} bytes, compressed`);
  failed ||= total > budget;
}
if (failed) {
  console.error("ui: too big; what was added last?");
  process.exit(1);
}
for (const file of files.filter((file) => statSync(file).size >= PACKED_FROM_BYTES)) {
  writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: constants.Z_BEST_COMPRESSION }));
  rmSync(file);
}
