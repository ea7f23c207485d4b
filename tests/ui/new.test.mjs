// The form for a new task: what it submits is what its command line submits, also as a former task with changes.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, newContext, open, until } from "./cantle.mjs";

let cantle;
let page;
let first;

const task = (id) => cantle.json("tasks", id)[0];
const ended = (id) => until(`${id} to end`, () => task(id).state === "completed" && task(id));
const box = (name) => page.getByRole("textbox", { name, exact: true });
const choice = (name) => page.getByRole("combobox", { name, exact: true });
/** Submits the form and returns the id of the task, whose page follows. */
async function submitted() {
  await page.getByRole("button", { name: "Submit" }).click();
  await page.waitForURL(/\/ui\/tasks\/[0-9a-f]{32}$/);
  return page.url().slice(-32);
}
/** The words of the command line that the page shows. */
const line = async () => (await page.getByTestId("cli").textContent()).replace(/^\$ cantle /, "");
const hyperparams = async (id) => (await cantle.call("tasks.get_by_id", { task: id })).task.hyperparams;
const values = (params) => Object.fromEntries(Object.entries(params).map(([name, { value }]) => [name, value]));

before(async () => {
  cantle = await Cantle.start("2xA100-40GB", "up", "--queue", "any=task", "half=0.5");
  page = await open(cantle, "/tasks");
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("a new task is the one that its command line submits", async () => {
  await page.getByRole("link", { name: "New task" }).click();
  await box("Command").fill(`sh -c 'echo "two  words" $((1 + 1))' it\\'s`);
  await choice("Queue").selectOption("any");
  await choice("GPU").selectOption("gpu");
  await box("Size").fill("0.25");
  await box("Name").fill("of the page");
  await choice("Project").fill("vision");
  await box("Time limit").fill("1h");
  await box("Idle limit").fill("30m");
  const words = await until("the line of all fields", async () => (await line()).includes("--time 1h --idle 30m") && line());
  first = await submitted();
  const made = await ended(first);
  assert.deepEqual([made.name, made.project, made.queue, made.milli], ["of the page", "vision", "any", 250]);
  assert.equal(cantle.cli("logs", first), "two  words 2");
  // A shell reads the line of the page.
  const { execFileSync } = await import("node:child_process");
  const [program, ...rest] = cantle.machine.command("sh", "-c", `"$CANTLE" ${words}`);
  const again = execFileSync(program, rest, { env: cantle.env, encoding: "utf8" }).trim();
  assert.deepEqual(values((await hyperparams(again)).cantle), { ...values((await hyperparams(first)).cantle), cwd: process.cwd() });
  assert.equal((await ended(again)).milli, 250);
});

test("an array of the page is one row with its progress", async () => {
  const other = await open(cantle, "/tasks");
  await live(other);
  await other.getByRole("link", { name: "New task" }).click();
  const field = (name) => other.getByRole("textbox", { name, exact: true });
  await field("Command").fill("sh -c 'test $CANTLE_ARRAY_INDEX -lt 4'");
  await other.getByRole("combobox", { name: "Queue", exact: true }).selectOption("half");
  await field("Name").fill("sweep");
  await field("Array").fill("0-4%2");
  await other.getByRole("button", { name: "Submit" }).click();
  await other.waitForURL(/\/ui\/tasks\/[0-9a-f]{32}$/);
  const id = other.url().slice(-32);
  await until("the array to end", () => task(id).state === "failed");
  assert.equal(task(id).reason, "4 of 5 completed, 1 failed");
  await other.getByText("4 of 5 completed, 1 failed").first().waitFor();
  await other.close();
});

test("an old task runs again with changes, and stays as it is", async () => {
  await page.getByRole("link", { name: "Run again with changes" }).click();
  await page.getByRole("heading", { name: "Run again with changes" }).waitFor();
  assert.equal(await box("Size").inputValue(), "0.25");
  await box("Size").fill("0.125");
  await box("Name").fill("smaller");
  const id = await submitted();
  const made = await ended(id);
  assert.deepEqual([made.name, made.project, made.milli], ["smaller", "vision", 125]);
  assert.equal(cantle.cli("logs", id), "two  words 2");
  assert.deepEqual([task(first).name, task(first).milli], ["of the page", 250]);
});

test("parameters of a task of ClearML's SDK are changed, its code is kept", async () => {
  const params = { Args: { lr: { section: "Args", name: "lr", type: "float", value: "0.1" }, epochs: { section: "Args", name: "epochs", type: "int", value: "3" } } };
  const script = { repository: "https://example.com/a.git", branch: "main", entry_point: "train.py", working_dir: "." };
  const { id } = await cantle.call("tasks.create", { name: "sdk", type: "training", script, hyperparams: params });
  await page.goto(`${cantle.url}/ui/new?from=${id}`);
  await page.getByText("train.py").waitFor();
  assert.equal(await box("Command").count(), 0);
  await page.getByLabel("Args/lr").fill("0.01");
  await choice("Queue").selectOption("half");
  const made = (await cantle.call("tasks.get_by_id", { task: await submitted() })).task;
  assert.deepEqual(values(made.hyperparams.Args), { lr: "0.01", epochs: "3" });
  assert.deepEqual([made.type, made.script.repository, made.script.entry_point, made.name], ["training", script.repository, "train.py", "sdk"]);
});

test("what is wrong is said on the form, and nothing is submitted", async () => {
  const before = cantle.json("tasks").length;
  await page.goto(`${cantle.url}/ui/new`);
  await box("Command").fill("echo 'open");
  await choice("Queue").selectOption("half");
  await page.getByRole("button", { name: "Submit" }).click();
  await page.getByRole("alert").getByText("the command has a ' that nothing closes").waitFor();
  await box("Command").fill("true");
  await choice("GPU").selectOption("gpus");
  await box("Size").fill("3");
  await page.getByRole("button", { name: "Submit" }).click();
  await page.getByRole("alert").getByText("half").waitFor();
  assert.equal(cantle.json("tasks").length, before);
  assert.deepEqual(page.problems.filter((problem) => !problem.includes("status of 400")), []);
});

test("who may only look is offered no form", async () => {
  const [keys] = cantle.json("credentials", "--read-only");
  const context = await newContext();
  await context.request.post(`${cantle.url}/ui/-/session`, { data: { access_key: keys.access_key, secret_key: keys.secret_key } });
  const theirs = await context.newPage();
  await theirs.goto(`${cantle.url}/ui/tasks/${first}`);
  await theirs.getByTestId("task").waitFor();
  assert.equal(await theirs.getByRole("link", { name: "Run again with changes" }).count(), 0);
  await theirs.goto(`${cantle.url}/ui/tasks`);
  await live(theirs);
  assert.equal(await theirs.getByRole("link", { name: "New task" }).count(), 0);
  await context.close();
});
