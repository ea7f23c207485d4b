// Every page, light and dark, wide and narrow: accessible by axe's rules, and never wider than the screen.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, newContext, open } from "./cantle.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let cantle;
let task;

before(async () => {
  cantle = await Cantle.start("2xA100-40GB", "up", "--queue", "half=0.5", "single=1", "nobody-serves=0.25");
  for (const queue of ["half", "half", "single", "single", "half"]) task = cantle.fill(queue, `${queue}-task`);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

async function findings(page) {
  // The page's own policy keeps foreign scripts out; the test's way in is not through the page.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run());
  return violations.map((found) => `${found.id}: ${found.nodes.map((node) => node.html).join(" | ")}`);
}

const PAGES = ["/gpus", "/queues", "/tasks", "/nodes", "/usage", "/new", "/projects", "/events", "/users", "/audit", "/settings", "/tasks/ID"];

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    for (const address of PAGES) {
      test(`${address}, ${colorScheme}, ${width} px`, async () => {
        const page = await open(cantle, address.replace("ID", task), { colorScheme, viewport: { width, height: 800 } });
        await live(page);
        assert.deepEqual(await findings(page), []);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${overflow} px wider than the screen`);
        assert.deepEqual(page.problems, []);
        await page.context().close();
      });
    }
  }
}

test("the login page", async () => {
  const context = await newContext();
  const page = await context.newPage();
  await page.goto(`${cantle.url}/ui`);
  await page.getByLabel("Access key").waitFor();
  assert.deepEqual(await findings(page), []);
  await context.close();
});
