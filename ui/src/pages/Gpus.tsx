import { cantle } from "../cli";
import { colorsFor } from "../color";
import { bytes, gpuAmount, gpus as inGpus, model, plural } from "../format";
import { connection, nodes, taskList, tasks } from "../live";
import { Filter, Select, usePageCli } from "../parts/Controls";
import { computeWords, GpuBar } from "../parts/GpuBar";
import { GpuTime } from "../parts/GpuTime";
import { Says } from "../parts/Says";
import { link, param } from "../route";
import type { GpuView, NodeView, SliceView, TaskView } from "../types";

type ColorBy = "task" | "queue" | "project";
const MODE_WORDS = { idle: "idle", shared: "shared", whole: "whole", mig: "MIG" };

const find = (id: string): TaskView | undefined => tasks.value.get(id);

function colorKey(by: ColorBy): (slice: SliceView) => string {
  return (slice) => (by === "task" ? slice.task : (find(slice.task)?.[by] ?? "none"));
}

function Tile({ value, unit, label }: { value: string; unit: string; label: string }) {
  return (
    <div class="tile card">
      <strong>{value}</strong> <span>{unit}</span>
      <p>{label}</p>
    </div>
  );
}

function Tiles({ all }: { all: GpuView[] }) {
  const sum = (of: (gpu: GpuView) => number) => all.reduce((total, gpu) => total + of(gpu), 0);
  const used = sum((gpu) => gpu.slices.reduce((total, slice) => total + slice.memory_used_bytes, 0));
  const count = (state: string) => taskList.value.filter((task) => task.state === state).length;
  return (
    <section class="tiles" aria-label="In short" data-testid="tiles">
      <Tile value={`${inGpus(sum((gpu) => gpu.allocated_milli))} of ${all.length}`} unit="GPUs" label="allocated" />
      <Tile value={bytes(used)} unit={`of ${bytes(sum((gpu) => gpu.memory_bytes))}`} label="memory in use" />
      <Tile value={String(count("in_progress"))} unit="tasks" label="running" />
      <Tile value={String(count("queued"))} unit="tasks" label="waiting" />
    </section>
  );
}

const WAITING_SHOWN = 3;

function WaitingTasks() {
  const waiting = taskList.value.filter((task) => task.state === "queued").reverse();
  if (waiting.length === 0) return null;
  return (
    <section class="card waiting" aria-label="Waiting tasks" data-testid="waiting">
      {waiting.slice(0, WAITING_SHOWN).map((task) => (
        <p key={task.id}>
          <a href={link(`tasks/${task.id}`)}>{task.name}</a> waits in {task.queue}: <Says text={task.reason ?? "no agent has considered it yet"} />
        </p>
      ))}
      {waiting.length > WAITING_SHOWN && <a href={link("tasks", { status: "queued" })}>{plural(waiting.length - WAITING_SHOWN, "more task")}…</a>}
    </section>
  );
}

function Legend({ keys, colors, label }: { keys: string[]; colors: (key: string) => string; label: string }) {
  return (
    <ul class="legend" aria-label={label}>
      {[...new Set(keys)].sort().map((key) => (
        <li key={key}>
          <i style={{ background: colors(key) }} aria-hidden="true" />
          {key}
        </li>
      ))}
    </ul>
  );
}

function Gpu({ gpu, colorOf, list }: { gpu: GpuView; colorOf: (slice: SliceView) => string; list: boolean }) {
  const used = gpu.slices.reduce((total, slice) => total + slice.memory_used_bytes, 0);
  const foreign = (gpu.foreign ?? []).reduce((total, instance) => total + instance.milli, 0);
  return (
    <article class="card gpu" aria-label={`GPU ${gpu.index}`} data-gpu={gpu.index}>
      <h3>
        <span class="index">GPU {gpu.index}</span>
        <span class="model">{model(gpu.model)}</span>
        <span class={`badge ${gpu.mode}`}>{MODE_WORDS[gpu.mode]}</span>
        <span class="figures">
          <b>{inGpus(gpu.allocated_milli)}</b> of 1 allocated{foreign > 0 && `, ${inGpus(foreign)} foreign`} · {bytes(used)} of {bytes(gpu.memory_bytes)} used
        </span>
      </h3>
      <GpuBar gpu={gpu} find={find} colorOf={colorOf} />
      {list && gpu.slices.length > 0 && (
        <ul class="slices">
          {gpu.slices.map((slice) => (
            <li key={slice.lease}>
              <i style={{ background: colorOf(slice) }} aria-hidden="true" />
              <a href={link(`tasks/${slice.task}`)}>{find(slice.task)?.name ?? slice.task}</a>
              <span class="muted">{slice.mig?.profile ?? gpuAmount(slice.milli)}</span>
              {slice.compute && <span class="muted">{computeWords(slice.compute)}</span>}
              {slice.enforcement === "preload" && <span class="badge">preload</span>}
              <span class="number">
                {bytes(slice.memory_used_bytes)} / {bytes(slice.memory_limit_bytes)}
              </span>
            </li>
          ))}
        </ul>
      )}
      {list && <GpuTime gpu={gpu} find={find} colorOf={colorOf} />}
    </article>
  );
}

/** Has the GPU, its node or anything on it the text in its name? */
function matches(node: NodeView, gpu: GpuView, text: string): boolean {
  const names = gpu.slices.flatMap((slice) => {
    const task = find(slice.task);
    return [slice.task, task?.name, task?.queue, task?.project, slice.mig?.profile];
  });
  return [node.node, gpu.model, gpu.uuid, gpu.mode, ...names].some((name) => name?.toLowerCase().includes(text));
}

export function Gpus() {
  usePageCli(cantle("gpus", "-o", "wide"));
  const by = param("color", "task") as ColorBy;
  const keyOf = colorKey(by);
  const text = param("q").toLowerCase();
  const alive = nodes.value.filter((node) => node.alive);
  const all = alive.flatMap((node) => node.gpus);
  const colors = colorsFor(all.flatMap((gpu) => gpu.slices.map(keyOf)));
  const colorOf = (slice: SliceView) => colors(keyOf(slice));
  return (
    <>
      <div class="title">
        <h1>GPUs</h1>
        <div class="filters">
          <Filter label="Node, model, task, queue" />
          <Select name="color" label="Color by" value="task" options={[["task", "task"], ["queue", "queue"], ["project", "project"]]} />
          <Select name="view" label="Show" value="list" options={[["list", "bars and slices"], ["bars", "bars only"]]} />
        </div>
      </div>
      <Tiles all={all} />
      <WaitingTasks />
      {by !== "task" && <Legend keys={all.flatMap((gpu) => gpu.slices.map(keyOf))} colors={colors} label={`Colors by ${by}`} />}
      {nodes.value.map((node) => {
        const shown = node.gpus.filter((gpu) => text === "" || matches(node, gpu, text));
        if (shown.length === 0) return null;
        return (
          <section key={node.node} class={node.alive ? "node" : "node gone"} aria-label={`Node ${node.node}`}>
            <h2>
              {node.node}
              {!node.alive && <span class="badge failed">gone</span>}
              <span class="muted">
                {plural(node.gpus.length, "GPU")} · queues {node.queues.map((queue) => `${queue.name}=${queue.spec}`).join(" ") || "none"}
              </span>
            </h2>
            <div class={param("view", "list") === "bars" ? "gpugrid bars" : "gpugrid"}>
              {shown.map((gpu) => (
                <Gpu key={gpu.uuid} gpu={gpu} colorOf={colorOf} list={param("view", "list") === "list"} />
              ))}
            </div>
          </section>
        );
      })}
      {nodes.value.length === 0 && connection.value === "live" && (
        <p class="card muted">
          No node has reported yet. <code>cantle daemon --dynamic-gpus --queue default=task</code> starts an agent.
        </p>
      )}
    </>
  );
}
