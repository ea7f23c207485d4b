// Runs the tests in this directory, one file after the other, and closes with the line that every suite closes with.

import { readdirSync } from "node:fs";
import path from "node:path";
import { run } from "node:test";
import { spec } from "node:test/reporters";

const wanted = process.argv.slice(2);
const files = readdirSync(import.meta.dirname)
  .filter((name) => name.endsWith(".test.mjs") && (wanted.length === 0 || wanted.some((word) => name.startsWith(word))))
  .map((name) => path.join(import.meta.dirname, name));
const counts = { passed: 0, failed: 0, skipped: 0 };
const isSuite = (event) => event.details?.type === "suite" || files.includes(event.name);

const events = run({ files, concurrency: 1 });
events.on("test:pass", (event) => {
  if (!isSuite(event)) counts[event.skip === undefined ? "passed" : "skipped"] += 1;
});
events.on("test:fail", (event) => {
  counts.failed += 1;
  process.exitCode = 1;
});
events.compose(spec).on("end", () => console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`)).pipe(process.stdout, { end: false });
