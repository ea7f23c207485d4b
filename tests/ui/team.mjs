// The page as the people of tests/e2e/team.py use it. Each line of stdin is one act of one person, {url, keys, act, task?}; the answer to it is
// one line of stdout. Each person has a browser context, and stays logged in.

import { createInterface } from "node:readline";
import { closeBrowser, live, newContext } from "./cantle.mjs";

const pages = new Map();

async function pageOf({ url, keys }) {
  if (!pages.has(keys.access_key)) {
    const context = await newContext({ viewport: { width: 1280, height: 900 } });
    const page = await context.newPage();
    await page.goto(`${url}/ui/tasks`);
    await page.getByLabel("Access key").fill(keys.access_key);
    await page.getByLabel("Secret key").fill(keys.secret_key);
    await page.getByRole("button", { name: "Log in" }).click();
    await live(page);
    pages.set(keys.access_key, page);
  }
  return pages.get(keys.access_key);
}

const acts = {
  /** How many tasks the list has. */
  async list(page, { url }) {
    await page.goto(`${url}/ui/tasks`);
    await live(page);
    return { count: await page.getByTestId("count").textContent() };
  },

  /** The page of a task: its name and output, and whether it can be stopped or run again; or that there is none. */
  async task(page, { url, task }) {
    await page.goto(`${url}/ui/tasks/${task}`);
    await live(page);
    const absent = page.getByRole("heading", { name: `There is no task ${task}.` });
    await absent.or(page.getByTestId("log")).first().waitFor();
    if (await absent.count()) return { absent: true };
    const log = page.getByTestId("log");
    // What the log has comes a moment after the page.
    await page.waitForFunction((element) => element.textContent !== "No output yet.", await log.elementHandle(), { timeout: 3000 }).catch(() => {});
    const buttons = await page.locator(".title").getByRole("button").allTextContents();
    return { name: await page.getByTestId("task").textContent(), log: await log.textContent(), buttons };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let answer;
  try {
    answer = await acts[asked.act](await pageOf(asked), asked);
  } catch (error) {
    answer = { failed: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await closeBrowser();
