// A suspended task: its state, the memory that it takes on the host, and why; tasks that borrow memory and projects that make room by a suspension.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, until } from "./cantle.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let cantle;
let page;
let task;

const badge = (on) => on.getByTestId("task").locator(".badge").textContent();

before(async () => {
  cantle = await Cantle.start("2xA100-40GB", "up", "--queue", "any=task");
  // What is suspended must fit into the memory of this machine.
  task = cantle.fill("any", "holder", 600, "--gpu", "0.05");
  page = await open(cantle, `/tasks/${task}`);
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("a suspended task shows that it is, with its memory on the host and the reason", async () => {
  await until("it to run", async () => (await badge(page)) === "running" && cantle.cli("logs", task));
  assert.equal(await page.getByTestId("parked").count(), 0);
  cantle.cli("suspend", task);
  await until("the state", async () => (await badge(page)) === "suspended");
  assert.match(await page.getByTestId("parked").textContent(), /^[0-9.]+ GiB in the memory of .+ since /);
  await page.getByRole("heading", { name: "Why it is suspended" }).waitFor();
  await page.getByTestId("why").getByText("lets it go on").waitFor();
});

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`it is accessible, ${colorScheme}, ${width} px`, async () => {
      const other = await open(cantle, `/tasks/${task}`, { colorScheme, viewport: { width, height: 800 } });
      await live(other);
      await until("the state", async () => (await badge(other)) === "suspended");
      await other.evaluate(AXE);
      const { violations } = await other.evaluate(() => window.axe.run());
      assert.deepEqual(violations.map((found) => found.id), []);
      assert.ok((await other.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, "wider than the screen");
      assert.deepEqual(other.problems, []);
      await other.context().close();
    });
  }
}

test("the list of tasks names it, and it runs again", async () => {
  const list = await open(cantle, "/tasks");
  await live(list);
  await list.locator(".badge.suspended").getByText("suspended").waitFor();
  cantle.cli("resume", task);
  await list.locator(".badge.in_progress").getByText("running").waitFor();
  await until("the state", async () => (await badge(page)) === "running");
  assert.equal(await page.getByTestId("parked").count(), 0);
  await list.context().close();
});

test("a task of the form borrows memory, and a whole GPU cannot", async () => {
  const form = await open(cantle, "/new");
  await live(form);
  const box = (name) => form.getByRole("textbox", { name, exact: true });
  const choice = (name) => form.getByRole("combobox", { name, exact: true });
  await box("Command").fill("true");
  await choice("Queue").selectOption("any");
  await choice("GPU").selectOption("gpus");
  assert.equal(await box("Memory limit").count(), 0);
  await choice("GPU").selectOption("gpu_memory");
  await box("Size").fill("4Gi");
  await box("Memory limit").fill("16Gi");
  await form.getByText("--gpu-memory 4Gi --gpu-memory-limit 16Gi").first().waitFor();
  await form.getByRole("button", { name: "Submit" }).click();
  await form.waitForURL(/\/ui\/tasks\/[0-9a-f]{32}$/);
  const { cantle: params } = (await cantle.call("tasks.get_by_id", { task: form.url().slice(-32) })).task.hyperparams;
  assert.deepEqual([params.gpu_memory.value, params.gpu_memory_limit.value], ["4Gi", "16Gi"]);
  await form.getByRole("link", { name: "Run again with changes" }).click();
  await until("the limit of the former task", async () => (await box("Memory limit").inputValue()) === "16Gi");
  await form.context().close();
});

test("a project makes room by a suspension", async () => {
  const projects = await open(cantle, "/projects");
  await live(projects);
  const form = projects.getByRole("form", { name: "Quota of vision", exact: true });
  const set = async (way) => {
    if (!(await form.isVisible())) await projects.locator('[data-project="vision"] summary').click();
    await form.getByLabel("Its tasks make room by").selectOption(way);
    await form.getByRole("button", { name: "Save" }).click();
  };
  cantle.cli("quota", "set", "vision", "--gpu", "1");
  await set("suspend,requeue");
  await projects.getByText("--preempt suspend,requeue").first().waitFor();
  await until("the server to know", () => String(cantle.json("quota", "show", "vision")[0].preempt) === "suspend,requeue");
  await set("");
  await until("the setting to be gone", () => !cantle.json("quota", "show", "vision")[0].preempt);
  assert.deepEqual(projects.problems, []);
  await projects.context().close();
});
