// A whole cantle in a private folder, and a browser that looks at it.

import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";

export const ROOT = path.resolve(import.meta.dirname, "../..");
const BINARY = process.env.CANTLE ?? path.join(ROOT, "dist/bin/cantle");
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Asks until the answer is true, and says what it waited for if it never is. */
export async function until(what, ask, timeout_ms = 20_000) {
  const end = Date.now() + timeout_ms;
  let last;
  while (Date.now() < end) {
    try {
      const answer = await ask();
      if (answer) return answer;
    } catch (error) {
      last = error;
    }
    await sleep(100);
  }
  throw new Error(`waited ${timeout_ms} ms for: ${what}${last ? ` (${last.message})` : ""}`);
}

export class Cantle {
  /** Starts `cantle` with these words, e.g. `up --queue default=task`, on a port of its own. */
  static async start(simGpus, ...words) {
    const cantle = new Cantle(simGpus, words);
    await cantle.#launch("127.0.0.1:0");
    return cantle;
  }

  constructor(simGpus, words) {
    this.home = mkdtempSync(path.join(tmpdir(), "cantle-ui-"));
    this.words = words;
    this.env = {
      PATH: process.env.PATH,
      HOME: this.home,
      CANTLE_STATE_DIR: path.join(this.home, "state"),
      CANTLE_SIM_DIR: path.join(this.home, "sim"),
      CANTLE_SIM_GPUS: simGpus,
      CANTLE: BINARY,
      ...(process.env.CANTLE_LIB_DIR ? { CANTLE_LIB_DIR: process.env.CANTLE_LIB_DIR } : {}),
    };
  }

  async #launch(listen) {
    const logFile = path.join(this.home, "log");
    const log = openSync(logFile, "w");
    const [command, ...rest] = this.words;
    this.child = spawn(BINARY, [command, "--listen", listen, ...rest], { env: this.env, stdio: ["ignore", log, log] });
    await until(`cantle ${command} to come up`, () => {
      const text = readFileSync(logFile, "utf8");
      if (!this.#running) throw new Error(text);
      return /https?:\/\/127\.0\.0\.1:\d+/.test(text);
    });
    const [keys] = this.json("credentials");
    this.url = keys.url;
    this.keys = { access_key: keys.access_key, secret_key: keys.secret_key };
  }

  /** The answer of a command, and its exit code. */
  cli(...words) {
    const done = spawnSync(BINARY, words, { env: this.env, encoding: "utf8", timeout: 60_000 });
    if (done.status !== 0) throw new Error(`cantle ${words.join(" ")}: exit ${done.status}\n${done.stderr}`);
    return done.stdout.trim();
  }

  json(...words) {
    return JSON.parse(this.cli("-o", "json", ...words)).items;
  }

  submit(queue, name, ...command) {
    return this.cli("submit", "--queue", queue, "--name", name, "--", ...command);
  }

  /** A task that takes all the memory it can get and keeps it. */
  fill(queue, name, hold_s = 600) {
    return this.submit(queue, name, "python3", path.join(ROOT, "examples/fill_slice.py"), "--hold", String(hold_s));
  }

  get #running() {
    return this.child.exitCode === null && this.child.signalCode === null;
  }

  async stop(signal = "SIGTERM") {
    if (!this.#running) return;
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.kill(signal);
    const hung = sleep(20_000, "hung", { ref: false });
    if ((await Promise.race([ended, hung])) === "hung") {
      this.child.kill("SIGKILL");
      throw new Error("cantle did not end within 20 s of SIGTERM");
    }
  }

  /** Ends it and starts it again at the same address. */
  async restart(signal) {
    await this.stop(signal);
    await this.#launch(new URL(this.url).host);
  }

  /** Calls the API as any client does. */
  async call(endpoint, body = {}) {
    const basic = Buffer.from(`${this.keys.access_key}:${this.keys.secret_key}`).toString("base64");
    const response = await fetch(`${this.url}/${endpoint}`, {
      method: "POST",
      headers: { Authorization: `Basic ${basic}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const { meta, data } = await response.json();
    if (!response.ok) throw new Error(`${endpoint}: ${meta.result_msg}`);
    return data;
  }

  async close() {
    for (const task of this.#running ? this.json("tasks", "--status", "in_progress") : []) {
      spawnSync(BINARY, ["stop", task.id], { env: this.env });
    }
    await this.stop();
    rmSync(this.home, { recursive: true, force: true });
  }
}

let browser;

export async function launchBrowser() {
  browser ??= await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
  return browser;
}

export async function closeBrowser() {
  await browser?.close();
  browser = undefined;
}

/** A page that is logged in; what goes wrong in it is collected in `page.problems`. */
export async function open(cantle, address, options = {}) {
  const context = await (await launchBrowser()).newContext({ viewport: { width: 1280, height: 900 }, ...options });
  await context.request.post(`${cantle.url}/ui/-/session`, { data: cantle.keys });
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && page.problems.push(message.text()));
  await page.goto(`${cantle.url}/ui${address}`);
  return page;
}

/** The page has its first picture. */
export async function live(page) {
  await until("the page to be live", async () => (await page.getByTestId("connection").textContent()) === "live");
}
