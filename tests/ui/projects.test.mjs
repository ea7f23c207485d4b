// Projects and quotas: what the page shows is what the command line says, and what is granted on the page is kept.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, until } from "./cantle.mjs";

let cantle;
let page;

const submit = (project, name) => cantle.cli("submit", "--queue", "half", "--project", project, "--name", name, "--", "sleep", "600");
const state = (name) => cantle.json("tasks").find((task) => task.name === name).state;
const card = (name) => page.locator(`[data-project="${name}"]`);
const shows = (name, text) => until(`${name} to show ${text}`, async () => (await card(name).locator("dl").innerText()).replaceAll("\n", " ").includes(text));

async function grant(name, fields) {
  const form = page.getByRole("form", { name: `Quota of ${name}`, exact: true });
  if (!(await form.isVisible())) await card(name).locator("summary").click();
  for (const [label, value] of Object.entries(fields)) await form.getByLabel(label).fill(value);
  await form.getByRole("button", { name: "Save" }).click();
}

before(async () => {
  cantle = await Cantle.start("2xA100-40GB", "up", "--queue", "half=0.5");
  for (const name of ["one", "two", "three"]) submit("vision", name);
  await until("three to run", () => ["one", "two", "three"].every((name) => state(name) === "in_progress"));
  page = await open(cantle, "/projects");
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("a project without a quota shows what it has", async () => {
  await shows("vision", "Allocated 1.5 GPUs");
  await until("its command line", async () => (await page.getByTestId("cli").textContent()) === "$ cantle projects");
});

test("a quota that is granted on the page is the server's, with what is lent beyond it", async () => {
  await grant("vision", { "GPUs guaranteed": "1", "Limit, GPUs": "1.5", Weight: "2" });
  await shows("vision", "Over quota 0.5 GPU");
  await shows("vision", "Quota 1 GPU");
  await shows("vision", "Limit 1.5 GPUs");
  const [quota] = cantle.json("quota", "show", "vision");
  assert.deepEqual([quota.gpu.deserved, quota.gpu.limit, quota.gpu.weight], [1000, 1500, 2]);
  const [project] = cantle.json("projects").filter((found) => found.name === "vision");
  assert.deepEqual([project.allocated_milli, project.over_quota_milli], [1500, 500]);
  await page.getByText("cantle quota set vision --gpu 1 --limit 1.5 --weight 2").first().waitFor();
});

test("a limit holds back the next task, and a higher one lets it start", async () => {
  const held = submit("vision", "four");
  await until("the fourth to be told why it waits", () => cantle.json("tasks", held)[0].reason);
  assert.equal(state("four"), "queued", "there is half a GPU free, but not for this project");
  await grant("vision", { "Limit, GPUs": "2" });
  await until("the fourth to run", () => state("four") === "in_progress");
  await shows("vision", "Allocated 2 GPUs");
});

test("priority, CPU and memory are granted, too, and what nobody touched stays as it was", async () => {
  cantle.cli("quota", "set", "vision", "--memory", "100G");
  await grant("vision", { Priority: "-1", "CPU cores guaranteed": "4.5", "Limit, CPU cores": "16", "Limit, GiB of memory": "512", "Undisturbed, seconds": "60" });
  await page.getByText("--priority -1 --min-run 60 --cpu 4.5 --cpu-limit 16 --memory-limit 512Gi").first().waitFor();
  await until("the server's word", () => cantle.json("quota", "show", "vision")[0].priority === -1);
  const [quota] = cantle.json("quota", "show", "vision");
  assert.deepEqual([quota.cpu.deserved, quota.cpu.limit, quota.memory.limit, quota.min_run_ms], [4500, 16_000, 512 * 2 ** 30, 60_000]);
  assert.equal(quota.memory.deserved, 100e9, "not a whole number of GiB");
  assert.deepEqual([quota.gpu.deserved, quota.gpu.limit, quota.gpu.weight], [1000, 2000, 2]);
  await grant("vision", { "Longest time of a task, hours": "1.5" });
  await page.getByText("--max-time 5400s").first().waitFor();
  await shows("vision", "Longest time 1 h 30 min");
  assert.equal(cantle.json("quota", "show", "vision")[0].max_time_s, 5400);
  await grant("vision", { "Longest time of a task, hours": "" });
  await until("no limit", () => cantle.json("quota", "show", "vision")[0].max_time_s == null);
  await grant("vision", { "CPU cores guaranteed": "" });
  await until("CPU cores not to be counted", () => cantle.json("quota", "show", "vision")[0].cpu.deserved == null);
});

test("what is typed while the server answers is not lost", async () => {
  let answer;
  const held = new Promise((resolve) => (answer = resolve));
  await page.route("**/cantle.set_quota", async (route) => {
    await held;
    await route.continue();
  });
  await grant("vision", { Weight: "5" });
  const priority = page.getByRole("form", { name: "Quota of vision", exact: true }).getByLabel("Priority");
  await priority.fill("7");
  answer();
  // The page says what it did once the form is done with it.
  await page.getByText("--gpu 1 --limit 2 --weight 5").first().waitFor();
  assert.equal(await priority.inputValue(), "7");
  assert.equal(cantle.json("quota", "show", "vision")[0].priority, -1, "it was not saved");
  await page.unroute("**/cantle.set_quota");
  await priority.fill("-1");
});

test("an answer that comes late is not shown over a newer one", async () => {
  let release;
  let arrived;
  const held = new Promise((resolve) => (release = resolve));
  const old = new Promise((resolve) => (arrived = resolve));
  await page.route(
    "**/cantle.get_projects",
    async (route) => {
      const response = await route.fetch();
      arrived();
      await held;
      await route.fulfill({ response });
    },
    { times: 1 },
  );
  submit("vision", "another");
  await old;
  await grant("vision", { Weight: "6" });
  await page.getByText("--gpu 1 --limit 2 --weight 6").first().waitFor();
  const late = page.waitForResponse("**/cantle.get_projects");
  release();
  await (await late).finished();
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  assert.equal(await page.getByRole("form", { name: "Quota of vision", exact: true }).getByLabel("Weight").inputValue(), "6");
});

test("pools are shown, and what is granted on the page leaves them as they are", async () => {
  cantle.cli("pools", "set", "fast", "--model", "*A100*");
  cantle.cli("quota", "set", "vision", "--pools", "fast");
  cantle.cli("quota", "set", "vision", "--pool", "fast", "--gpu", "0.5", "--limit", "2");
  await shows("vision", "Only pools fast");
  await shows("vision", "Of pool fast 2 of 0.5 GPU, limit 2 GPUs");
  await page.getByText("2 of 2 GPUs allocated: *A100*").waitFor();
  await grant("vision", { Weight: "3" });
  await until("the server's word", () => cantle.json("quota", "show", "vision")[0].gpu.weight === 3);
  const [quota] = cantle.json("quota", "show", "vision");
  assert.deepEqual([quota.pools, quota.by_pool], [["fast"], { fast: { deserved: 500, limit: 2000 } }]);
  cantle.cli("quota", "unset", "vision", "--pool", "fast");
  cantle.cli("quota", "set", "vision", "--pools", "none");
});

test("what can't be is refused in the server's words", async () => {
  await grant("vision", { "GPUs guaranteed": "3" });
  await page.getByText(/below/).first().waitFor();
  assert.equal(cantle.json("quota", "show", "vision")[0].gpu.deserved, 1000, "as it was");
});

test("another project is granted before its first task comes", async () => {
  await page.getByText("Grant another project").click();
  const form = page.getByRole("form", { name: "Quota of another project" });
  await form.getByLabel("Project").fill("speech");
  await form.getByLabel("GPUs guaranteed").fill("0.5");
  await form.getByRole("button", { name: "Save" }).click();
  await shows("speech", "Quota 0.5 GPU");
});

test("nothing went wrong in the page", () => {
  // The refusal above is the one thing that the browser complains about.
  assert.deepEqual(page.problems.filter((problem) => !problem.includes("400")), []);
});
