// Metrics of the documented example, scraped by a real Prometheus and checked by promtool; the dashboard's queries answer.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import path from "node:path";
import { after, before, test } from "node:test";
import { Cantle, ROOT, until } from "./cantle.mjs";

const GIB = 2 ** 30;
const installed = spawnSync("promtool", ["--version"]).status === 0;
const skip = installed ? false : "Prometheus is not installed";

let cantle;
let agent;
let prometheus;
let ended;
let port;

/** A port that nobody uses now. */
async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** What the server's /metrics says, in the format that is asked for. */
async function scrape(accept) {
  const basic = Buffer.from(`${cantle.keys.access_key}:${cantle.keys.secret_key}`).toString("base64");
  return (await fetch(`${cantle.url}/metrics`, { headers: { Authorization: `Basic ${basic}`, Accept: accept } })).text();
}

/** The same of the agent, which asks nobody who he is. */
const scrapeAgent = async (accept) => (await fetch(`http://${agent}/metrics`, { headers: { Accept: accept } })).text();

/** The answer to a query, as `[labels, number]` pairs. */
async function query(promql) {
  const response = await fetch(`http://127.0.0.1:${port}/api/v1/query?query=${encodeURIComponent(promql)}`);
  const { status, data, error } = await response.json();
  assert.equal(status, "success", `${promql}: ${error}`);
  return data.result.map(({ metric, value }) => [metric, Number(value[1])]);
}

const number = async (promql) => (await query(promql))[0]?.[1];

/** A scrape that a busy machine is late with takes all series away until the next one. */
const is = (promql, wanted) => until(`${promql} to be ${wanted}`, async () => (await number(promql)) === wanted);
const isAtLeast = (promql, least) => until(`${promql} to be at least ${least}`, async () => (await number(promql)) >= least);

before(async () => {
  if (skip) return;
  cantle = await Cantle.start("3xA100-40GB", "up", "--metrics-listen", "127.0.0.1:0", "--gpus", "0-2", "--queue", "dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1");
  // One with a compute share, which has metrics of its own.
  const options = { half_gpu: ["--compute", "strict"] };
  for (const queue of ["dual_gpus", "quarter_gpu", "half_gpu", "single_gpu"]) cantle.fill(queue, queue, 600, ...(options[queue] ?? []));
  const target = new URL(cantle.url).host;
  port = await freePort();
  [, agent] = /serving metrics address=(\S+)/.exec(readFileSync(path.join(cantle.home, "log"), "utf8"));
  const config = path.join(cantle.home, "prometheus.yml");
  const auth = `{ username: ${cantle.keys.access_key}, password: ${cantle.keys.secret_key} }`;
  writeFileSync(config, `global: { scrape_interval: 2s, scrape_timeout: 2s }\nscrape_configs:\n  - job_name: cantle\n    basic_auth: ${auth}\n    static_configs: [{ targets: ["${target}"] }]\n  - job_name: agents\n    static_configs: [{ targets: ["${agent}"] }]\n`);
  const words = [`--config.file=${config}`, `--storage.tsdb.path=${cantle.home}/tsdb`, `--web.listen-address=127.0.0.1:${port}`];
  prometheus = spawn("prometheus", words, { stdio: "ignore" });
  // From the start: one that could not begin has ended before anybody stops it.
  ended = once(prometheus, "exit");
  await until("Prometheus to have scraped it", async () => (await number("sum(up)")) === 2);
});

after(async () => {
  if (skip) return;
  prometheus.kill();
  await ended;
  await cantle.close();
});

test("promtool finds nothing to complain about", { skip }, async () => {
  for (const ask of [scrape, scrapeAgent]) {
    const done = spawnSync("promtool", ["check", "metrics"], { input: await ask("text/plain"), encoding: "utf8" });
    assert.deepEqual([done.status, done.stdout, done.stderr], [0, "", ""]);
    assert.ok((await ask("application/openmetrics-text")).endsWith("# EOF\n"));
  }
});

test("the numbers of the example", { skip }, async () => {
  await is("sum(cantle_gpu_allocated_ratio)", 2.75);
  await is("count(cantle_gpu_memory_bytes)", 3);
  await is("sum(cantle_gpu_used_bytes)", 110 * GIB);
  await is("sum(cantle_slice_memory_used_bytes) - sum(cantle_gpu_used_bytes)", 0);
  await is('cantle_slice_memory_limit_bytes{task_name="quarter_gpu",queue="quarter_gpu"}', 10 * GIB);
  await is('cantle_queue_waiting_tasks{queue="single_gpu"}', 1);
  await isAtLeast('cantle_queue_longest_wait_seconds{queue="single_gpu"}', 0.001);
  await is('cantle_events_total{kind="place"}', 3);
  await is("sum(cantle_task_wait_seconds_count)", 3);
  await is('cantle_task_wait_seconds_count{queue="half_gpu"}', 1);
});

test("the agent counts what it decided and refused", { skip }, async () => {
  await is("sum(cantle_agent_gpu_allocated_ratio)", 2.75);
  await is("sum(cantle_agent_gpu_used_bytes)", 110 * GIB);
  await is("sum(cantle_agent_slice_memory_used_bytes)", 110 * GIB);
  await is("sum(cantle_agent_placements_total)", 3);
  await isAtLeast("cantle_agent_decision_seconds_count", 1);
  await is("cantle_agent_server_up", 1);
  await is('cantle_agent_watchdog_actions_total{action="kill"}', 0);
  // Each task asked until it was refused, on every GPU it has.
  for (const gpu of [0, 1, 2]) await isAtLeast(`cantle_agent_refused_allocations_total{gpu="${gpu}"}`, 1);
  // As docs/metrics.md has it: the labels of the task, and the bytes as they are.
  const join = "cantle_agent_slice_memory_used_bytes * on (UUID, slice) group_left (task_name, queue, project) (cantle_slice_allocated_ratio > bool 0)";
  await is(`sum(${join})`, 110 * GIB);
  const joined = async () => (await query(join)).map(([labels]) => labels.queue).sort();
  await until("each slice with its queue", async () => String(await joined()) === "dual_gpus,dual_gpus,half_gpu,quarter_gpu");
});

test("each query of the dashboard is right and has an answer", { skip }, async () => {
  const dashboard = JSON.parse(readFileSync(path.join(ROOT, "docs/grafana/cantle.json"), "utf8"));
  const queries = dashboard.panels.flatMap((panel) => (panel.targets ?? []).map((target) => target.expr));
  assert.ok(queries.length > 10);
  for (const text of queries) {
    const promql = text.replaceAll("$node", ".*").replaceAll("$__rate_interval", "30s");
    // Parts of a cluster need one, no kernel runs here, and no project has a budget: then it is enough that Prometheus understands the question.
    const answers = async () => (await query(promql)).length > 0;
    await (/cantle_(webhook|driver|extender|queues)_|_compute_share_|_project_/.test(promql) ? answers() : until(promql, answers));
  }
});

test("each metric is in docs/metrics.md and, but for those that are only there to be joined, in the dashboard", { skip }, async () => {
  const documented = readFileSync(path.join(ROOT, "docs/metrics.md"), "utf8");
  const drawn = readFileSync(path.join(ROOT, "docs/grafana/cantle.json"), "utf8");
  const names = [...((await scrape("text/plain")) + (await scrapeAgent("text/plain"))).matchAll(/^# TYPE (\S+)/gm)].map((match) => match[1]);
  assert.deepEqual(names.filter((name) => !documented.includes(`\`${name}\``)), []);
  // The server has what agents say about GPUs and slices, with names; an agent's own is for who has no such server.
  const joined = /_info$|^cantle_agent_(gpu|slice)_/;
  assert.deepEqual(names.filter((name) => !joined.test(name) && !drawn.includes(name)), []);
});
