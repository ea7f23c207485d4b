// Who may see and do what, and what the page does while the server is away.

import assert from "node:assert/strict";
import { request } from "node:http";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, newContext, open, until } from "./cantle.mjs";

let cantle;

before(async () => {
  cantle = await Cantle.start("1xT4-16GB", "up", "--queue", "default=task");
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

const status = async (path, init) => (await fetch(`${cantle.url}${path}`, init)).status;

test("without credentials only the health, the login page and its files are there", async () => {
  assert.equal(await status("/healthz"), 200);
  assert.equal(await status("/ui"), 200);
  for (const path of ["/ui/-/session", "/ui/-/stream", "/ui/-/history/task/x", "/metrics", "/tasks.get_all", "/cantle.get_nodes"]) {
    assert.equal(await status(path), 401, path);
  }
  assert.equal(await status("/ui/-/call/cantle.get_nodes", { method: "POST", body: "{}" }), 401);
});

test("wrong keys are refused, right ones open the page", async () => {
  const context = await newContext();
  const page = await context.newPage();
  await page.goto(`${cantle.url}/ui/tasks?status=queued`);
  await page.getByLabel("Access key").fill(cantle.keys.access_key);
  await page.getByLabel("Secret key").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").getByText("the server rejected these keys").waitFor();
  await page.getByLabel("Secret key").fill(cantle.keys.secret_key);
  await page.getByRole("button", { name: "Log in" }).click();
  await live(page);
  assert.ok(page.url().endsWith("/ui/tasks?status=queued"), "where one wanted to go");
  const [cookie] = await context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/ui"]);
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Access key").waitFor();
  await context.close();
});

test("a session is listed and ended, on the page and for every copy of its cookie", async () => {
  const other = await fetch(`${cantle.url}/ui/-/session`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "User-Agent": "a laptop that was stolen" },
    body: JSON.stringify(cantle.keys),
  });
  const cookie = other.headers.get("set-cookie").split(";")[0];
  const is_good = () => status("/ui/-/session", { headers: { Cookie: cookie } });
  assert.equal(await is_good(), 200);
  const page = await open(cantle, "/settings");
  const table = page.getByRole("table", { name: "Sessions" });
  const row = table.getByRole("row").filter({ has: page.getByTitle("a laptop that was stolen") });
  await row.getByRole("button", { name: "End" }).click();
  await row.waitFor({ state: "detached" });
  assert.equal(await is_good(), 401);
  await table.getByText("this page").waitFor();
  await page.context().close();
});

test("a cookie alone does nothing: the CSRF token has to come with it", async () => {
  const login = await fetch(`${cantle.url}/ui/-/session`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(cantle.keys),
  });
  const cookie = login.headers.get("set-cookie").split(";")[0];
  const { csrf } = await login.json();
  const call = (headers) => status("/ui/-/call/cantle.get_nodes", { method: "POST", headers: { Cookie: cookie, ...headers }, body: "{}" });
  assert.equal(await call({}), 403);
  assert.equal(await call({ "X-CSRF-Token": "0".repeat(64) }), 403);
  assert.equal(await call({ "X-CSRF-Token": csrf }), 200);
  assert.equal(await status("/cantle.get_nodes", { headers: { Cookie: cookie } }), 401, "the API knows no cookies");
});

test("the page comes back by itself after the server was killed and started again", async () => {
  const page = await open(cantle, "/tasks");
  await live(page);
  await cantle.stop("SIGKILL");
  await page.getByTestId("connection").getByText("connection lost").waitFor();
  await cantle.restart();
  await live(page);
  cantle.submit("default", "after-the-restart", "true");
  await page.getByText("after-the-restart").first().waitFor();
  await page.context().close();
});

test("an open page does not keep the server from ending", async () => {
  const page = await open(cantle, "/");
  await live(page);
  // If the server waited for the end of the page's stream, it would not end, and this would fail.
  await cantle.restart("SIGTERM");
  await live(page);
  await page.context().close();
});

test("the keys that may only look show everything and change nothing", async () => {
  const [viewer] = cantle.json("credentials", "--read-only");
  const basic = `Basic ${Buffer.from(`${viewer.access_key}:${viewer.secret_key}`).toString("base64")}`;
  const api = (endpoint, authorization = basic) => fetch(`${cantle.url}/${endpoint}`, { method: "POST", headers: { Authorization: authorization, "Content-Type": "application/json" }, body: "{}" });
  assert.equal((await api("cantle.get_nodes")).status, 200);
  assert.equal((await api("queues.get_next_task")).status, 403);
  const { data } = await (await api("auth.login")).json();
  assert.equal((await api("queues.create", `Bearer ${data.token}`)).status, 403, "a token is worth no more than the keys that bought it");
  const id = cantle.submit("default", "looked-at", "sleep", "600");
  const context = await newContext();
  await context.request.post(`${cantle.url}/ui/-/session`, { data: viewer });
  const page = await context.newPage();
  await page.goto(`${cantle.url}/ui/tasks/${id}`);
  await live(page);
  await page.getByTestId("task").getByText("running").waitFor();
  assert.equal(await page.getByRole("button", { name: "Stop" }).count(), 0);
  await page.getByText("read only").waitFor();
  await context.close();
});

/** A page of a user who logged in with this pair. */
async function pageOf(keys, where) {
  const context = await newContext();
  await context.request.post(`${cantle.url}/ui/-/session`, { data: keys });
  const page = await context.newPage();
  await page.goto(`${cantle.url}/ui/${where}`);
  await live(page);
  return page;
}

test("administrators see the audit, and everybody their own tasks first", async () => {
  cantle.submit("default", "of-the-admin", "true");
  const [anna] = cantle.json("users", "add", "anna", "--role", "member");
  const basic = `Basic ${Buffer.from(`${anna.access_key}:${anna.secret_key}`).toString("base64")}`;
  const asAnna = async (endpoint, body) => {
    const answer = await fetch(`${cantle.url}/${endpoint}`, { method: "POST", headers: { Authorization: basic, "Content-Type": "application/json" }, body: JSON.stringify(body) });
    return [answer.status, (await answer.json()).data];
  };
  const [, made] = await asAnna("tasks.create", { name: "of-anna", type: "training" });
  const [, queue] = await asAnna("queues.get_all", { name: "^default$" });
  await asAnna("tasks.enqueue", { task: made.id, queue: queue.queues[0].id });
  cantle.submit("default", "of-the-admin-later", "true");
  assert.equal((await asAnna("cantle.get_users", {}))[0], 403);

  const hers = await pageOf(anna, "tasks");
  await hers.getByText("of-the-admin-later").first().waitFor();
  const first = hers.getByRole("table", { name: "Tasks" }).getByRole("row").nth(1);
  await until("her task to be first", async () => (await first.textContent()).includes("of-anna"));
  assert.equal(await hers.getByRole("link", { name: "Audit" }).count(), 0, "what she may not see is not offered");
  await hers.goto(`${cantle.url}/ui/audit`);
  await hers.getByTestId("count").getByText('needs the right "administer"').waitFor();
  await hers.context().close();

  const page = await open(cantle, "/audit");
  await live(page);
  const rows = page.getByRole("table", { name: "Audit" }).getByRole("row");
  await page.getByLabel("User", { exact: true }).fill("anna");
  await page.getByLabel("User", { exact: true }).press("Enter");
  await until("her refusal and her login on the page", async () => {
    const text = (await rows.allTextContents()).join("\n");
    return text.includes("cantle.get_users") && text.includes("login") && !text.includes("admin127");
  });
  await page.getByLabel("Outcome").selectOption("yes");
  await until("refusals alone", async () => (await rows.allTextContents()).slice(1).every((text) => text.includes("Forbidden")));
  assert.equal(await page.getByTestId("cli").textContent(), "$ cantle audit --user anna --refused");
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("a session that ended leads to the login, not to endless tries", async () => {
  const page = await open(cantle, "/nodes");
  await live(page);
  await page.context().clearCookies();
  await cantle.restart();
  await page.getByLabel("Access key").waitFor();
  await page.context().close();
});

test("keys, filters in the address, and their command line", async () => {
  const page = await open(cantle, "/");
  await live(page);
  // The second key counts within a second of the first one, which a busy machine may miss.
  await until("the page of tasks", async () => {
    await page.keyboard.press("g");
    await page.keyboard.press("t");
    return page.url().endsWith("/ui/tasks");
  });
  await until("the filter to have the focus", async () => {
    await page.keyboard.press("/");
    return page.locator("[data-filter]").evaluate((filter) => filter === document.activeElement);
  });
  await page.keyboard.type("restart");
  await page.getByLabel("State").selectOption("completed");
  await until("the filters in the address", () => page.url().endsWith("/ui/tasks?q=restart&status=completed"));
  await until("its command line", async () => (await page.getByTestId("cli").textContent()) === "$ cantle tasks --status completed");
  await page.reload();
  await live(page);
  await until("the filtered table", async () => (await page.getByTestId("count").textContent()).startsWith("1 "));
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

/** The status of a call with these headers; fetch would not let us write them. */
function ask(address, headers, body = "{}") {
  return new Promise((resolve, reject) => {
    const call = request(address, { method: "POST", headers }, (answer) => resolve(answer.resume().statusCode));
    call.on("error", reject).end(body);
  });
}

test("an open server asks its own user for nothing, and takes nothing from other sites", async () => {
  const opened = await Cantle.start("1xT4-16GB", "up", "--open", "--queue", "default=task");
  try {
    const nodes = `${opened.url}/cantle.get_nodes`;
    const { port } = new URL(opened.url);
    assert.equal(await ask(nodes, {}), 200);
    assert.equal(await ask(nodes, { Host: `localhost:${port}`, Origin: `http://localhost:${port}` }), 200);
    assert.equal(await ask(nodes, { Host: `rebound.example:${port}` }), 403);
    assert.equal(await ask(nodes, { Origin: "http://other.example" }), 403);
    assert.equal(await ask(nodes, { "Sec-Fetch-Site": "cross-site" }), 403);
    assert.equal(await ask(`${cantle.url}/cantle.get_nodes`, { Host: "rebound.example" }), 401, "with credentials the name does not matter");
    const page = await (await newContext()).newPage();
    await page.goto(`${opened.url}/ui/tasks`);
    await live(page);
    assert.equal(await page.getByRole("button", { name: "Log out" }).count(), 0);
    // A page of nobody's tries what needs no preflight (the browser may keep it back itself); the same words from a program
    // do what they say.
    await page.goto("about:blank");
    const plant = (url) => fetch(`${url}/queues.create`, { method: "POST", mode: "no-cors", body: '{"name": "planted"}' }).catch(() => undefined).then(() => undefined);
    await page.evaluate(plant, opened.url);
    assert.equal(await ask(`${opened.url}/queues.create`, {}, '{"name": "own"}'), 200);
    assert.deepEqual(opened.json("queues").map((queue) => queue.name).sort(), ["default", "own"]);
    await page.context().close();
  } finally {
    await opened.close();
  }
});

test("a server that others can reach is never open", () => {
  assert.throws(() => cantle.cli("server", "--open", "--listen", "0.0.0.0:0"), /exit 2\ncantle: --open .*loopback only/);
});
