// Users, roles and limits: what an administrator does on the page is what the command line shows, and the keys are worth as much.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, newContext, open, until } from "./cantle.mjs";

let cantle;
let page;

const user = (name) => cantle.json("users", "list").find((found) => found.name === name);
const details = (name) => page.locator(`[data-user="${name}"]`);
const cell = (name, column) => page.getByRole("table", { name: "Users" }).locator("tbody tr").filter({ has: page.getByRole("rowheader", { name, exact: true }) }).locator("td").nth(column);

async function change(name) {
  if (!(await details(name).getByRole("form").first().isVisible())) await details(name).locator("summary").click();
  return details(name);
}

async function status(keys, endpoint) {
  const authorization = `Basic ${Buffer.from(`${keys.access_key}:${keys.secret_key}`).toString("base64")}`;
  return (await fetch(`${cantle.url}/${endpoint}`, { method: "POST", headers: { Authorization: authorization, "Content-Type": "application/json" }, body: "{}" })).status;
}

let keys;

before(async () => {
  cantle = await Cantle.start("1xA100-40GB", "up", "--queue", "half=0.5");
  cantle.cli("submit", "--queue", "half", "--project", "vision", "--", "true");
  page = await open(cantle, "/users");
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("a user who is added gets a key, which is shown once", async () => {
  await page.locator("summary", { hasText: "Add a user" }).click();
  const form = page.getByRole("form", { name: "Add a user" });
  await form.getByLabel("Name").fill("anna");
  await form.getByLabel("Role").selectOption("member");
  await form.getByLabel("In project").fill("vision");
  await form.getByRole("button", { name: "Add" }).click();
  const shown = await page.getByTestId("fresh").locator("pre").textContent();
  const [, access_key, secret_key] = /access_key: (\S+)\nsecret_key: (\S+)/.exec(shown);
  keys = { access_key, secret_key };
  assert.equal(await status(keys, "tasks.get_all"), 200);
  assert.equal(await status(keys, "cantle.get_users"), 403);
  assert.deepEqual(user("anna").roles.map(({ role, project }) => [role, project]), [["member", "vision"]]);
  await page.getByText("cantle users add anna --role member --project vision").first().waitFor();
  await page.getByRole("button", { name: "Done" }).click();
  await page.reload();
  await live(page);
  await until("the row", async () => (await cell("anna", 1).textContent()) === "member of vision");
  assert.equal(await page.getByText(secret_key).count(), 0, "the secret is shown again");
});

test("a role is given and taken away", async () => {
  const anna = await change("anna");
  const form = anna.getByRole("form", { name: "Role of anna" });
  await form.getByLabel("Role").selectOption("viewer");
  await form.getByRole("button", { name: "Give" }).click();
  await until("both roles", () => user("anna").roles.length === 2);
  await anna.getByRole("button", { name: "Take member of vision from anna" }).click();
  await until("one role", () => user("anna").roles.map(({ role }) => role).join() === "viewer");
  await until("the row", async () => (await cell("anna", 1).textContent()) === "viewer");
});

test("limits are set, and an empty field is none", async () => {
  const form = (await change("anna")).getByRole("form", { name: "Limits of anna" });
  await form.getByLabel("GPUs at once").fill("0.5");
  await form.getByLabel("Longest time of a task, hours").fill("2");
  await form.getByRole("button", { name: "Save" }).click();
  await until("the limits", () => user("anna").limits?.time_s === 7200 && user("anna").limits?.gpu_milli === 500);
  await page.getByText("cantle users set anna --gpus 0.5 --max-time 7200s").first().waitFor();
  await until("the row", async () => (await cell("anna", 3).textContent()) === "0.5 GPU, 2 h 0 min each");
  await form.getByLabel("GPUs at once").fill("");
  await form.getByRole("button", { name: "Save" }).click();
  await until("one limit", () => JSON.stringify(user("anna").limits) === '{"time_s":7200}');
});

test("what the server refuses is said", async () => {
  await page.locator("summary", { hasText: "Add a user" }).click();
  const form = page.getByRole("form", { name: "Add a user" });
  await form.getByLabel("Name").fill("anna");
  await form.getByRole("button", { name: "Add" }).click();
  await page.getByText(/add anna: .*anna/).first().waitFor();
});

test("users without the right have no such page", async () => {
  const context = await newContext();
  await context.request.post(`${cantle.url}/ui/-/session`, { data: keys });
  const hers = await context.newPage();
  await hers.goto(`${cantle.url}/ui/users`);
  await live(hers);
  await hers.getByText('needs the right "administer"').first().waitFor();
  assert.equal(await hers.getByRole("navigation", { name: "Pages" }).getByText("Users").count(), 0);
  await context.close();
});

test("a user who is removed is refused at once", async () => {
  const anna = await change("anna");
  await anna.getByRole("button", { name: "Remove", exact: true }).click();
  await page.getByRole("button", { name: "Yes, remove" }).click();
  await until("no such user", () => user("anna") === undefined);
  assert.equal(await status(keys, "tasks.get_all"), 401);
  await details("anna").waitFor({ state: "detached" });
  assert.deepEqual(page.problems.filter((problem) => !problem.includes("400")), []);
});
