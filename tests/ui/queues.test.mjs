// The order of a queue: dragged, moved by buttons and keys, and what the command line answers then.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, until } from "./cantle.mjs";

let cantle;
let page;

/** Names in line, as `cantle queues` has them. */
function line(queue) {
  const names = new Map(cantle.json("tasks").map((task) => [task.id, task.name]));
  return cantle.json("queues").find((found) => found.name === queue).tasks.map((id) => names.get(id));
}

/** Names in line, as the page has them. */
const shown = (queue) => page.locator(`[data-queue="${queue}"] [data-task]`).evaluateAll((rows) => rows.map((row) => row.dataset.task));
const row = (queue, task) => page.locator(`[data-queue="${queue}"] [data-task="${task}"]`);

async function both(queue, names) {
  await until(`${queue} to be ${names}`, () => String(line(queue)) === String(names));
  await until(`the page to show ${names}`, async () => String(await shown(queue)) === String(names));
}

before(async () => {
  cantle = await Cantle.start("1xT4-16GB", "up", "--queue", "one=1", "other=1");
  cantle.submit("one", "holder", "sleep", "600");
  await until("the holder to run", () => cantle.json("tasks").some((task) => task.state === "in_progress"));
  for (const name of ["a", "b", "c", "d"]) cantle.submit("one", name, "true");
  page = await open(cantle, "/queues");
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("the page has the order of the queue", () => both("one", ["a", "b", "c", "d"]));

test("a drag changes the order, and the command line knows", async () => {
  await row("one", "d").dragTo(row("one", "a"));
  await both("one", ["d", "a", "b", "c"]);
  await row("one", "d").dragTo(row("one", "b"));
  await both("one", ["a", "b", "d", "c"]);
});

test("buttons move to the front, up, down and back", async () => {
  await page.getByRole("button", { name: "Move c to the front" }).click();
  await both("one", ["c", "a", "b", "d"]);
  await page.getByRole("button", { name: "Move c down" }).click();
  await both("one", ["a", "c", "b", "d"]);
  await page.getByRole("button", { name: "Move b up" }).click();
  await both("one", ["a", "b", "c", "d"]);
  await page.getByRole("button", { name: "Move a to the back" }).click();
  await both("one", ["b", "c", "d", "a"]);
});

test("Alt and an arrow move the focused task", async () => {
  await row("one", "a").getByRole("link").first().focus();
  await page.keyboard.press("Alt+ArrowUp");
  await both("one", ["b", "c", "a", "d"]);
});

test("the command that a button shows does the same", async () => {
  await page.getByRole("button", { name: "Move d up" }).hover();
  const { id } = cantle.json("tasks").find((task) => task.name === "d");
  // Not that of a button from before.
  await until("its command line", async () => (await page.getByTestId("cli").textContent()).startsWith(`$ cantle move ${id} `));
  const words = (await page.getByTestId("cli").textContent()).replace("$ cantle ", "").split(" ");
  cantle.cli(...words);
  await both("one", ["b", "c", "d", "a"]);
  cantle.cli("move", words[1], "--front");
  await both("one", ["d", "b", "c", "a"]);
});

test("a drag to another queue, and out of it", async () => {
  await row("one", "d").dragTo(page.locator('[data-queue="other"]'));
  await both("other", ["d"]);
  await both("one", ["b", "c", "a"]);
  await page.getByRole("button", { name: "Remove d from the queue" }).click();
  await both("other", []);
  assert.equal(cantle.json("tasks").find((task) => task.name === "d").state, "created");
});

test("a task submitted elsewhere appears by itself, at the end", async () => {
  cantle.submit("one", "late", "true");
  await both("one", ["b", "c", "a", "late"]);
});

test("length and waiting time over time", async () => {
  const queue = page.locator('[data-queue="one"]');
  await queue.getByText("Length and waiting time").click();
  await until("two charts", async () => (await queue.locator(".chart canvas").count()) === 2);
});

test("nothing went wrong in the page", () => assert.deepEqual(page.problems, []));
