// What slices with a compute share had of their GPU's time, in the page. The kernels take simulated time, which is a stand-in.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import path from "node:path";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, ROOT, until } from "./cantle.mjs";

let cantle;
let page;

before(async () => {
  cantle = await Cantle.start("1xA100-40GB", "up", "--queue", "quarter=0.25", "rest=0.75");
  const load = path.join(cantle.home, "load");
  const sources = [path.join(ROOT, "tests/compute/load.c"), path.join(ROOT, "dist/lib/cantle/sim/libcuda.so.1")];
  const done = spawnSync("gcc", ["-O2", "-o", load, ...sources, "-lpthread"], { encoding: "utf8" });
  assert.equal(done.status, 0, done.stderr);
  for (const queue of ["quarter", "rest"]) {
    cantle.cli("submit", "--queue", queue, "--name", `of-${queue}`, "--compute", "fair", "--", load, "async", "200", "600");
  }
  page = await open(cantle, "/gpus");
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("GPU time of each slice over the last hour", async () => {
  const gpu = page.locator('[data-gpu="0"]');
  await until("two slices", async () => (await gpu.locator(".slices li").count()) === 2);
  await gpu.getByText("GPU time in the last hour").click();
  const legend = gpu.locator(".chart .u-legend");
  const part = async (name) => Number(/([\d.]+) %/.exec(await legend.locator("tr", { hasText: name }).innerText())?.[1]);
  await until(
    "a quarter and three quarters",
    async () => {
      const [quarter, rest] = [await part("of-quarter"), await part("of-rest")];
      return Math.abs(quarter / (quarter + rest) - 0.25) < 0.08;
    },
    240_000,
  );
});

test("nothing went wrong in the page", () => assert.deepEqual(page.problems, []));
