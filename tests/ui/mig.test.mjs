// A GPU in MIG mode is drawn with its real geometry: where instances are, and where nothing is.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, until } from "./cantle.mjs";

const GIB = 2 ** 30;

let cantle;

before(async () => {
  cantle = await Cantle.start("1xT4-16GB", "server");
  const slice = (name, milli, limit_bytes, used_bytes, mig) => ({ task: name.padEnd(32, "0"), lease: name, milli, memory_limit_bytes: limit_bytes, memory_used_bytes: used_bytes, mig });
  const slices = [
    slice("b", 125, 9.75 * GIB, 0, { profile: "1g.10gb", start: 6, size: 1, uuid: "MIG-b" }),
    slice("a", 500, 39.25 * GIB, 19.625 * GIB, { profile: "3g.40gb", start: 0, size: 4, uuid: "MIG-a" }),
  ];
  const gpu = { index: 0, uuid: "GPU-0", model: "NVIDIA H100 80GB HBM3", memory_bytes: 80 * GIB, mode: "mig", allocated_milli: 625, slices };
  await cantle.call("cantle.report_node", { node: "n", worker: "n", queues: [], gpus: [gpu], waiting: [], interval_ms: 600_000 });
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("instances are where the driver put them, and gaps are gaps", async () => {
  const page = await open(cantle, "/gpus");
  await live(page);
  await until("the card to be drawn", async () => (await page.locator(".gpubar .piece").count()) > 0);
  const drawn = await page.locator(".gpubar .piece").evaluateAll((pieces) => pieces.map((piece) => [piece.querySelector(".label").textContent.trim(), parseFloat(piece.style.left), parseFloat(piece.style.width)]));
  assert.deepEqual(drawn, [
    ["3g.40gb a0000000", 0, 50],
    ["20 GiB free", 50, 25],
    ["1g.10gb b0000000", 75, 12.5],
    ["10 GiB free", 87.5, 12.5],
  ]);
  assert.equal(await page.locator(".gpubar .tick").count(), 7, "eight memory slices");
  assert.equal(await page.locator(".gpubar .used").first().evaluate((used) => used.style.width), "50%");
  await page.context().close();
});
