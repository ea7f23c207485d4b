// A whole cantle on a machine with GPUs of its own, and a browser that looks at it.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";

export const ROOT = path.resolve(import.meta.dirname, "../..");
const BINARY = process.env.CANTLE ?? path.join(ROOT, "dist/bin/cantle");
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Longer than anything takes here: other suites use the cores, too. */
const PATIENCE_MS = 120_000;

/** Asks until the answer is true, and says what it waited for if it never is. */
export async function until(what, ask, timeout_ms = PATIENCE_MS) {
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

/** A machine with GPUs as an installed driver makes them appear: no program on it knows that they are simulated. */
class Machine {
  static async start(gpus, driverFiles) {
    const words = [driverFiles, "--gpus", gpus];
    const holder = spawn(path.join(ROOT, "tests/machine.sh"), words, { env: { PATH: process.env.PATH }, stdio: ["pipe", "pipe", "inherit"] });
    // It ends with its output closed and nothing said if there can't be such a machine.
    const [said] = await Promise.race([once(holder.stdout, "data"), once(holder, "exit")]);
    if (String(said).trim() !== "ready") throw new Error(`no machine with ${gpus}: ${said}`);
    // Tests that fail early must still come to their end; the machine goes away with them.
    for (const each of [holder, holder.stdin, holder.stdout]) each.unref();
    return new Machine(holder);
  }

  constructor(holder) {
    this.holder = holder;
  }

  /** The command line that runs these words on the machine, in the current directory. */
  command(...words) {
    return ["nsenter", `--mount=/proc/${this.holder.pid}/ns/mnt`, "--", "env", "-C", process.cwd(), ...words];
  }

  async stop() {
    this.holder.ref();
    const ended = once(this.holder, "exit");
    this.holder.kill("SIGKILL");
    await ended;
  }
}

export class Cantle {
  /** Starts `cantle` with these words, e.g. `up --queue default=task`, on a port of its own and a machine with these GPUs. */
  static async start(gpus, ...words) {
    const home = mkdtempSync(path.join(tmpdir(), "cantle-ui-"));
    const driverFiles = path.join(home, "driver");
    mkdirSync(driverFiles);
    const cantle = new Cantle(home, await Machine.start(gpus, driverFiles), words);
    await cantle.#launch("127.0.0.1:0");
    return cantle;
  }

  constructor(home, machine, words) {
    this.home = home;
    this.machine = machine;
    this.words = words;
    this.env = {
      PATH: process.env.PATH,
      HOME: this.home,
      CANTLE: BINARY,
      ...(process.env.CANTLE_LIB_DIR ? { CANTLE_LIB_DIR: process.env.CANTLE_LIB_DIR } : {}),
    };
  }

  async #launch(listen) {
    const logFile = path.join(this.home, "log");
    const log = openSync(logFile, "w");
    const [command, ...rest] = this.words;
    this.child = this.spawn([BINARY, command, "--listen", listen, ...rest], ["ignore", log, log]);
    await until(`cantle ${command} to come up`, () => {
      const text = readFileSync(logFile, "utf8");
      if (!this.#running) throw new Error(text);
      return /https?:\/\/127\.0\.0\.1:\d+/.test(text);
    });
    const [keys] = this.json("credentials");
    this.url = keys.url;
    this.keys = { access_key: keys.access_key, secret_key: keys.secret_key };
  }

  /** Starts a program on the machine. */
  spawn(words, stdio = "ignore") {
    const [program, ...rest] = this.machine.command(...words);
    return spawn(program, rest, { env: this.env, stdio });
  }

  #run(words) {
    const [program, ...rest] = this.machine.command(BINARY, ...words);
    return spawnSync(program, rest, { env: this.env, encoding: "utf8", timeout: PATIENCE_MS });
  }

  /** The answer of a command, which must be a good one. */
  cli(...words) {
    const done = this.#run(words);
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
  fill(queue, name, hold_s = 600, ...options) {
    const program = ["python3", path.join(ROOT, "examples/fill_slice.py"), "--hold", String(hold_s)];
    return this.cli("submit", "--queue", queue, "--name", name, ...options, "--", ...program);
  }

  get #running() {
    return this.child.exitCode === null && this.child.signalCode === null;
  }

  async stop(signal = "SIGTERM") {
    if (!this.#running) return;
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.kill(signal);
    const hung = sleep(PATIENCE_MS, "hung", { ref: false });
    if ((await Promise.race([ended, hung])) === "hung") {
      this.child.kill("SIGKILL");
      throw new Error(`cantle did not end within ${PATIENCE_MS} ms of ${signal}`);
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
      this.#run(["stop", task.id]);
    }
    await this.stop();
    await this.machine.stop();
    rmSync(this.home, { recursive: true, force: true });
  }
}

let browser;

async function launchBrowser() {
  browser ??= await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
  return browser;
}

/** A user's browser, without anything from before. */
export async function newContext(options = {}) {
  const context = await (await launchBrowser()).newContext(options);
  context.setDefaultTimeout(PATIENCE_MS);
  return context;
}

export async function closeBrowser() {
  await browser?.close();
  browser = undefined;
}

/** A page that is logged in; what goes wrong in it is collected in `page.problems`. */
export async function open(cantle, address, options = {}) {
  const context = await newContext({ viewport: { width: 1280, height: 900 }, ...options });
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
