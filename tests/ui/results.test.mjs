// What a program reports through ClearML's SDK, seen on the page that the SDK's link leads to. The GPUs are not used.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { copyFileSync, existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { Cantle, closeBrowser, live, open, ROOT, until } from "./cantle.mjs";

const PYTHON = path.join(ROOT, ".venv-clearml/bin/python");
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const skip = existsSync(PYTHON) ? false : "ClearML's SDK cannot be installed here";

let cantle;
/** Id of each task, and the link of the first. */
const tasks = {};
let printed;

/** Runs a program with ClearML's SDK, set up as the variables of ClearML's documentation say. */
async function report(name, rate) {
  const env = {
    PATH: process.env.PATH,
    HOME: cantle.home,
    MPLCONFIGDIR: cantle.home,
    CLEARML_API_HOST: cantle.url,
    CLEARML_WEB_HOST: cantle.url,
    CLEARML_FILES_HOST: `${cantle.url}/files`,
    CLEARML_API_ACCESS_KEY: cantle.keys.access_key,
    CLEARML_API_SECRET_KEY: cantle.keys.secret_key,
    // Otherwise the SDK asks git from a thread, in parallel to others; now and then its fork is stuck forever, with any
    // server.
    CLEARML__SDK__DEVELOPMENT__VCS_REPO_DETECT_ASYNC: "false",
  };
  const { stdout } = await promisify(execFile)(PYTHON, [path.join(cantle.home, "report.py"), name, String(rate)], { env, cwd: cantle.home, timeout: 600_000 });
  const [, id, link] = /REPORTED (\w+) (\S+)/.exec(stdout);
  assert.ok(stdout.includes(`ClearML results page: ${link}`), "the link is the one that Task.init prints");
  tasks[name] = id;
  return link;
}

before(async () => {
  if (skip) return;
  cantle = await Cantle.start("1xT4-16GB", "server");
  // Outside of this repository, so that the SDK keeps the whole script, however clean the checkout is.
  copyFileSync(path.join(import.meta.dirname, "report.py"), path.join(cantle.home, "report.py"));
  printed = await report("slow", 0.05);
  await report("fast", 0.2);
});

after(async () => {
  await closeBrowser();
  await cantle?.close();
});

const tab = async (name, id = tasks.slow) => {
  const page = await open(cantle, `/tasks/${id}/${name}`);
  await live(page);
  return page;
};

const close = async (page) => {
  assert.deepEqual(page.problems, []);
  await page.context().close();
};

/** The range of iterations that a graph shows, as its axis draws it. */
const attribute = (page, title, name) => page.locator(`[data-graph="${title}"]`).getAttribute(name);

test("the link that Task.init prints leads to the task, with its console", { skip }, async () => {
  const page = await open(cantle, "/tasks");
  await page.goto(printed);
  await page.getByTestId("task").getByText("slow").waitFor();
  assert.equal(new URL(page.url()).pathname, `/ui/tasks/${tasks.slow}`);
  await until("its console", async () => (await page.getByTestId("log").textContent()).includes("step 59"));
  await page.goto(printed.replace("output/log", "output/metrics/scalar"));
  assert.equal(new URL(page.url()).pathname, `/ui/tasks/${tasks.slow}/scalars`);
  await close(page);
});

test("scalars: several lines in a graph, zoom, smoothing, logarithmic axis, time", { skip }, async () => {
  const page = await tab("scalars");
  await page.locator('[data-graph="loss"] canvas').waitFor();
  await until("all points", async () => (await attribute(page, "loss", "data-points")) === "120" && (await attribute(page, "accuracy", "data-points")) === "60");
  const legend = page.locator('[data-graph="loss"] .u-legend');
  for (const line of ["train", "validation"]) await legend.getByText(line, { exact: true }).waitFor();
  await page.getByText("best").waitFor();
  await page.getByText("0.125").waitFor();
  // Dragging over the middle third shows the middle third: the pointer at its edges is at other iterations than before.
  const box = await page.locator('[data-graph="loss"] .u-over').boundingBox();
  const at = async (part) => {
    await page.mouse.move(box.x + box.width * part, box.y + 40);
    return Number(await legend.locator(".u-value").first().textContent());
  };
  // The legend follows the pointer.
  const shows = (what, left, right) => until(what, async () => left(await at(0.02)) && right(await at(0.98)));
  await shows("all of it first", (first) => first <= 3, (last) => last >= 56);
  await page.mouse.move(box.x + box.width / 3, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + (box.width * 2) / 3, box.y + 40, { steps: 5 });
  await page.mouse.up();
  await shows("the middle third", (first) => first >= 18, (last) => last <= 41);
  await page.mouse.dblclick(box.x + box.width / 2, box.y + 40);
  await shows("all again after a double click", (first) => first <= 3, (last) => last >= 56);
  await page.getByLabel("Vertical axis").selectOption("log");
  await until("a logarithmic axis", async () => (await attribute(page, "loss", "data-log")) === "true");
  await page.getByLabel("Smoothing").fill("0.8");
  await until("the raw line behind the smoothed one", async () => /train, raw/.test(await legend.textContent()));
  await until("both in the address", () => page.url().includes("scale=log") && page.url().includes("smooth=0.8"));
  await page.getByLabel("Horizontal axis").selectOption("relative");
  await until("time on the axis", async () => /since the start/.test(await legend.textContent()));
  await page.getByLabel("Graph", { exact: true }).fill("accur");
  await until("one graph", async () => (await page.locator("[data-graph]").count()) === 1);
  await close(page);
});

test("plots are drawn by Plotly, in a frame that can do nothing else", { skip }, async () => {
  const page = await open(cantle, `/tasks/${tasks.slow}/scalars`);
  const loaded = [];
  page.on("request", (request) => loaded.push(new URL(request.url()).pathname));
  await live(page);
  await page.locator("[data-graph]").first().waitFor();
  assert.deepEqual(loaded.filter((name) => name.includes("plots")), [], "the library is not loaded where there is no plot");
  await page.getByRole("link", { name: "Plots" }).click();
  const frame = page.frameLocator('[data-testid="plots"]');
  for (const title of ["weights / layer 1", "confusion / of two", "table / of pandas", "as a picture / polar", "surface / of a hill"]) {
    const plot = frame.locator(`[data-plot="${title}"]`);
    await plot.scrollIntoViewIfNeeded();
    await until(`${title} to be drawn`, async () => (await plot.getAttribute("data-drawn")) === "yes");
  }
  await frame.locator('[data-plot="table / of pandas"]').getByText("Oslo").first().waitFor();
  await frame.locator('[data-plot="confusion / of two"] .heatmaplayer image, [data-plot="confusion / of two"] .heatmaplayer path').first().waitFor({ state: "attached" });
  const picture = frame.locator('[data-plot="as a picture / polar"] image').first();
  await picture.waitFor({ state: "attached" });
  assert.match(await picture.getAttribute("href") ?? (await picture.getAttribute("xlink:href")), /^data:image\/png/);
  assert.ok((await frame.locator("[data-plot]").allTextContents()).join().includes("a figure of matplotlib"));
  // Negative control: what a task sends can't reach the session, though the frame does run scripts.
  const inner = page.frames().find((each) => each.url().endsWith("/ui/plots.html"));
  assert.equal(await inner.evaluate(() => self.origin), "null");
  const tried = await inner.evaluate(() => fetch("/ui/-/session").then((answer) => answer.status, () => "refused"));
  assert.equal(tried, "refused");
  assert.equal(await page.evaluate(() => fetch("/ui/-/session").then((answer) => answer.status)), 200, "the page itself may");
  page.problems = page.problems.filter((problem) => !problem.includes("/ui/-/session"));
  await close(page);
});

test("debug samples: a picture by iteration; a page that a task sent is saved, not shown", { skip }, async () => {
  const page = await tab("images");
  const box = page.locator('[data-image="samples / noise"]');
  const shown = () => box.locator("img").evaluate((img) => (img.complete ? [img.naturalWidth, img.naturalHeight] : []));
  await until("the picture", async () => String(await shown()) === "48,32");
  await box.getByText("iteration 40").waitFor();
  await box.getByLabel("Iteration of").fill("0");
  await box.getByText("iteration 0").waitFor();
  await until("the first picture", async () => String(await shown()) === "48,32");
  const saved = page.waitForEvent("download");
  await page.locator('[data-image="page / html"]').getByRole("link", { name: /Download/ }).click();
  await saved;
  assert.notEqual(await page.title(), "taken");
  const address = await page.locator('[data-image="page / html"] a').getAttribute("href");
  const answer = await page.request.get(cantle.url + address);
  assert.deepEqual([answer.headers()["content-type"], answer.headers()["content-disposition"]], ["application/octet-stream", "attachment"]);
  assert.equal((await fetch(cantle.url + address)).status, 401, "nobody without a session gets it");
  await close(page);
});

test("artifacts and models, with previews and their bytes", { skip }, async () => {
  const page = await tab("artifacts");
  const frame = page.locator('[data-artifact="frame"]');
  await frame.getByText("Preview").click();
  await frame.locator("pre").getByText("Oslo").waitFor();
  const bytes = async (locator) => {
    const [download] = await Promise.all([page.waitForEvent("download"), locator.getByRole("link", { name: /Download/ }).click()]);
    return readFileSync(await download.path());
  };
  assert.deepEqual((await bytes(page.locator('[data-model="net"]'))).toString(), "weights");
  assert.ok((await bytes(page.locator('[data-artifact="settings"]'))).toString().includes("rate"));
  await close(page);
});

test("hyperparameters, configuration and code", { skip }, async () => {
  const page = await tab("configuration");
  assert.match(await page.locator('[data-section="General"]').textContent(), /rate0\.05/);
  await page.locator('[data-text="Configuration: net"] summary').click();
  await page.locator('[data-text="Configuration: net"] pre').getByText("64").waitFor();
  await page.locator('[data-text="Uncommitted changes, or the whole script"]').waitFor();
  await close(page);
});

test("two tasks side by side: what differs, and their lines in one graph", { skip }, async () => {
  const page = await open(cantle, "/tasks");
  await live(page);
  for (const name of ["slow", "fast"]) await page.getByLabel(`Compare ${name}`).check();
  await page.getByRole("link", { name: "Compare 2 tasks" }).click();
  const table = page.getByTestId("differences");
  await table.getByText("0.05").waitFor();
  await table.getByText("0.2").waitFor();
  assert.equal(await table.getByText("steps", { exact: true }).count(), 0, "what is the same is left out");
  await page.getByLabel("Show equal parameters").check();
  await table.getByText("steps", { exact: true }).waitFor();
  const graph = page.locator('[data-graph="loss / train"]');
  await graph.locator("canvas").waitFor();
  for (const name of ["slow", "fast"]) await graph.locator(".u-legend").getByText(name, { exact: true }).waitFor();
  await until("the points of both", async () => (await graph.getAttribute("data-points")) === "120");
  await page.goto(`${cantle.url}/projects/x/compare-experiments;ids=${tasks.slow},${tasks.fast}/details`);
  await table.getByText("0.05").waitFor();
  await close(page);
});

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`accessible by axe, and never wider than the screen: ${colorScheme}, ${width} px`, { skip }, async () => {
      for (const address of [...["scalars", "plots", "images", "artifacts", "configuration"].map((name) => `/tasks/${tasks.slow}/${name}`), `/compare?tasks=${tasks.slow},${tasks.fast}`]) {
        const page = await open(cantle, address, { colorScheme, viewport: { width, height: 800 } });
        await live(page);
        await page.locator(".card, iframe").first().waitFor();
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => window.axe.run({ exclude: [["iframe"]] }));
        assert.deepEqual(violations.map((found) => `${address}: ${found.id}: ${found.nodes.map((node) => node.html).join(" | ")}`), []);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${address}: ${overflow} px wider than the screen`);
        await close(page);
      }
    });
  }
}
