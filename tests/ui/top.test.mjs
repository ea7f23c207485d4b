// `cantle top` in a real terminal (tmux): what it draws, its keys, and that the terminal is whole afterwards.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, before, test } from "node:test";
import { Cantle, until } from "./cantle.mjs";

const skip = spawnSync("tmux", ["-V"]).status === 0 ? false : "tmux is not installed";
const SOCKET = `cantle-${process.pid}`;

let cantle;

function tmux(...words) {
  const done = spawnSync("tmux", ["-L", SOCKET, ...words], { env: { ...process.env, ...cantle.env, LC_ALL: "C.UTF-8" }, encoding: "utf8" });
  assert.equal(done.status, 0, `tmux ${words.join(" ")}: ${done.stderr}`);
  return done.stdout;
}

const screen = () => tmux("capture-pane", "-p", "-t", "top");
const press = (...keys) => tmux("send-keys", "-t", "top", ...keys);
/** Words or a pattern: they are there as soon as the terminal has them. */
const has = (text) => (text instanceof RegExp ? text.test(screen()) : screen().includes(text));
const shows = (text) => until(`the screen to show ${text}`, () => has(text)).catch((error) => assert.fail(`${error.message}\n${screen()}`));

before(async () => {
  if (skip) return;
  cantle = await Cantle.start("2xA100-40GB", "up", "--queue", "half=0.5", "single=1", "dual=2");
  for (const [queue, name] of [["half", "first"], ["half", "second"], ["single", "third"], ["dual", "fourth"]]) cantle.fill(queue, name);
  await until("three to run", () => cantle.json("tasks", "--status", "in_progress").length === 3);
  tmux("-f", "/dev/null", "new-session", "-d", "-s", "top", "-x", "150", "-y", "24", ...cantle.machine.command("sh"));
  press("cantle_binary() { $CANTLE \"$@\"; }; PS1='ready> '", "Enter");
});

after(async () => {
  if (skip) return;
  tmux("kill-server");
  await cantle.close();
});

test("it draws GPUs, slices, tasks and what waits", { skip }, async () => {
  press("cantle_binary top", "Enter");
  await shows("2 of 2 GPUs allocated, 80 GiB of 80 GiB used, 3 running, 1 waiting");
  for (const line of [
    /\/0 +A100-SXM4-40GB +shared +\[█{24}\] +1 of 1 +40 GiB of 40 GiB/,
    /[├└] █ first +half +0\.5 +20 GiB of 20 GiB +(mounts|preload)/,
    /pid \d+ +20 GiB\n/,
    /waiting: 1\n +fourth +dual +needs 2 GPUs/,
  ]) {
    await shows(line);
  }
});

test("a filter leaves what it names", { skip }, async () => {
  press("/", "third", "Enter");
  await until("only one GPU", () => !has("first") && has("third"));
  press("/", "Escape");
  await shows("first");
});

test("a task is stopped after a yes, and its GPU is free", { skip }, async () => {
  const [, victim] = /├ █ (\w+)/.exec(screen());
  press("Down", "s");
  await shows(`stop ${victim}? y: yes`);
  press("n");
  await until("the question to go", () => !screen().includes("y: yes"));
  assert.equal(cantle.json("tasks", "--status", "in_progress").length, 3);
  press("s");
  await shows(`stop ${victim}? y: yes`);
  press("y");
  await shows("1.5 of 2 GPUs allocated");
  await until("the end of the task", () => cantle.json("tasks").find((task) => task.name === victim).state === "stopped");
});

test("q gives the terminal back as it was", { skip }, async () => {
  press("q");
  // What is typed before is read by the program that ends.
  await until("the prompt", () => screen().trimEnd().endsWith("ready>"));
  press("echo whole $((20 + 3))", "Enter");
  await shows("whole 23");
  assert.ok(!screen().includes("GPUs allocated"), screen());
});

test("without a terminal it says what to do", { skip }, () => {
  assert.throws(() => cantle.cli("top"), /exit 2\ncantle: top needs a terminal\nhint: .*cantle top --once/);
  const lines = cantle.cli("top", "--once", "--ascii").split("\n");
  assert.match(lines[0], /^1\.5 of 2 GPUs allocated/);
  assert.ok(lines.every((line) => /^[\x20-\x7e]*$/.test(line)), "only ASCII");
});
