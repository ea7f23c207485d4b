// The page of usage: its figures are those of `cantle usage`, and its file is the one of `cantle -o csv usage`.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, open, until } from "./cantle.mjs";

let cantle;
let page;
const dir = mkdtempSync(`${tmpdir()}/cantle-usage-`);

const submit = (project, name, ...command) => cantle.cli("submit", "--queue", "half", "--project", project, "--name", name, "--", ...command);
const state = (name) => cantle.json("tasks").find((task) => task.name === name).state;
const row = (name) => page.locator(`[data-usage="${name}"]`);

before(async () => {
  // A second of a GPU costs one euro.
  writeFileSync(`${dir}/prices.toml`, 'currency = "EUR"\n[[price]]\nmodel = "*"\ngpu_hour = 3600\n');
  cantle = await Cantle.start("2xA100-40GB", "up", "--queue", "half=0.5", "--prices", `${dir}/prices.toml`);
  for (const name of ["one", "two", "three"]) submit("vision", name, "sleep", "8");
  submit("speech", "four", "sleep", "8");
  await until("all to end", () => ["one", "two", "three", "four"].every((name) => state(name) === "completed"));
  page = await open(cantle, "/usage");
});

after(async () => {
  await closeBrowser();
  await cantle.close();
  rmSync(dir, { recursive: true });
});

test("each project has its line, and the lines add up to the time of all GPUs", async () => {
  await row("vision").waitFor();
  assert.match(await row("vision").innerText(), /vision\s+allocated\s+3\s+0\.00\d\s/);
  assert.match(await row("speech").innerText(), /speech\s+allocated\s+1\s/);
  assert.match(await row("free").innerText(), /free/);
  const shares = await page.locator("[data-usage] td:nth-child(7)").allInnerTexts();
  const sum = shares.reduce((all, share) => all + Number.parseFloat(share), 0);
  assert.ok(Math.abs(sum - 100) < 0.2, `${shares}`);
  assert.match(await page.getByTestId("cli").textContent(), /^\$ cantle usage --from \d{4}-\d\d-\d\d --by project$/);
});

test("each line has its cost by the server's price sheet", async () => {
  assert.match(await page.locator("table").first().innerText(), /Cost \(EUR\)/);
  const [line] = cantle.json("usage", "--by", "project").filter((found) => found.project === "vision");
  assert.equal(await row("vision").locator("td").last().innerText(), line.gpu_seconds.toFixed(2));
});

test("the last day is a column with a part for each line", async () => {
  const parts = await page.locator(".stack").last().locator("div").evaluateAll((all) => all.map((part) => part.title.replace(/^.*: (.*), .*$/, "$1")));
  assert.deepEqual(parts, ["speech", "vision", "free"]);
});

test("what is downloaded is what the command line prints", async () => {
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download CSV" }).click()]);
  const own = readFileSync(await file.path(), "utf8").trim().split("\n");
  const theirs = cantle.cli("-o", "csv", "usage", "--by", "project").trim().split("\n");
  assert.equal(file.suggestedFilename(), "usage-by-project.csv");
  assert.equal(own[0], theirs[0]);
  // The period of the page is shorter. What has ended has its figures for ever; free time goes on.
  const ended = (lines) => lines.filter((line) => line.includes("allocated")).map((line) => line.split(",").slice(2).map((field) => (field === "" || Number.isNaN(Number(field)) ? field : Number(field))));
  assert.deepEqual(ended(own), ended(theirs));
  assert.equal(ended(own).length, 2);
});

test("it is added up by what is chosen, and the address says so", async () => {
  await page.getByLabel("By").selectOption("queue");
  await row("half").waitFor();
  assert.match(page.url(), /[?&]by=queue/);
  assert.match(await row("half").innerText(), /half\s+allocated\s+4\s/);
});

test("a member without rights in a project sees its time, not its name", async () => {
  await cantle.call("projects.create", { name: "own", description: "" });
  const [anna] = cantle.json("users", "add", "anna", "--role", "member", "--project", "own");
  const hers = await open({ url: cantle.url, keys: { access_key: anna.access_key, secret_key: anna.secret_key } }, "/usage");
  await hers.locator('[data-usage="(others)"]').waitFor();
  assert.equal(await hers.locator('[data-usage="vision"]').count(), 0);
});
