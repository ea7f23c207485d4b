// Everything the page can do to tasks, each with the command line that does the same.

import { signal } from "@preact/signals";
import { ApiError, call, may, mayChange } from "./api";
import { cantle } from "./cli";
import { gpuAmount, gpus } from "./format";
import { loadProjects, projects, queueId } from "./live";
import { fromTask, submit, submitLine } from "./submission";
import type { ProjectQuota, TaskView } from "./types";

export interface Action {
  label: string;
  cli: string;
  run: () => Promise<unknown>;
  /** Without the right to it, it is not offered. */
  allowed?: boolean;
  /** Asked before it is done, for what cannot be undone. */
  confirm?: string;
}

/** What the last action came to; shown until the next one or until dismissed. */
export const outcome = signal<{ text: string; cli: string; failed: boolean } | null>(null);

/** The action that waits for a yes. */
export const asking = signal<Action | null>(null);

/** Does it, after asking where that is due. */
export function perform(action: Action): void {
  if (action.confirm) asking.value = action;
  else void execute(action);
}

export async function execute(action: Action): Promise<void> {
  asking.value = null;
  try {
    await action.run();
    outcome.value = { text: `Done: ${action.label}`, cli: action.cli, failed: false };
  } catch (error) {
    const why = error instanceof ApiError ? error.message : String(error);
    outcome.value = { text: `${action.label}: ${why}`, cli: action.cli, failed: true };
  }
}

export const canStop = (task: TaskView) => task.state === "in_progress" || task.state === "queued";
export const canRequeue = (task: TaskView) => !canStop(task) && task.queue !== null;

export function stop(task: TaskView): Action {
  return {
    label: `stop ${task.name}`,
    allowed: mayChange(task),
    cli: cantle("stop", task.id),
    confirm: `Stop “${task.name}”? Its processes are ended and its slice is freed.`,
    run: () => call("tasks.stop", { task: task.id }),
  };
}

export function requeue(task: TaskView): Action {
  return {
    label: `requeue ${task.name}`,
    allowed: mayChange(task),
    cli: cantle("requeue", task.id),
    // What never ran has nothing to lose.
    ...(task.state !== "created" && {
      confirm: `Requeue “${task.name}”? It loses the artifacts of its last run. Output and graphs stay with that run. “Run again” makes a task of its own.`,
    }),
    run: async () => {
      await call("tasks.reset", { task: task.id, force: true });
      await call("tasks.enqueue", { task: task.id, queue_name: task.queue });
    },
  };
}

export function dequeue(task: TaskView): Action {
  return {
    label: `remove ${task.name} from ${task.queue}`,
    allowed: mayChange(task),
    cli: cantle("move", task.id, "--out"),
    run: () => call("tasks.dequeue", { task: task.id }),
  };
}

/** Moves a waiting task to a position of its own queue; 0 is the front. */
export function moveTo(task: TaskView, from: number, to: number, length: number): Action {
  const place = to <= 0 ? ["--front"] : to >= length - 1 ? ["--back"] : ["--position", String(to + 1)];
  const run = () => {
    const body = { queue: queueId(task.queue ?? ""), task: task.id };
    if (to <= 0) return call("queues.move_task_to_front", body);
    if (to >= length - 1) return call("queues.move_task_to_back", body);
    const direction = to < from ? "forward" : "backward";
    return call(`queues.move_task_${direction}`, { ...body, count: Math.abs(to - from) });
  };
  const label = `move ${task.name} to place ${Math.min(Math.max(to, 0), length - 1) + 1} of ${task.queue}`;
  const allowed = to < from ? may("manage", task.project) : mayChange(task);
  return { label, cli: cantle("move", task.id, ...place), allowed, run };
}

/** Moves a waiting task to the end of another queue. */
export function moveToQueue(task: TaskView, queue: string): Action {
  return {
    label: `move ${task.name} to ${queue}`,
    allowed: mayChange(task),
    cli: cantle("move", task.id, "--to", queue),
    run: async () => {
      await call("tasks.dequeue", { task: task.id });
      await call("tasks.enqueue", { task: task.id, queue_name: queue });
    },
  };
}

/** The flags of `quota set` that make `quota` of `old`. GPUs and weight are always named: they are what people look for. */
function quotaFlags(quota: ProjectQuota, old: ProjectQuota): string[] {
  const cores = (milli?: number | null) => (milli == null ? "none" : gpus(milli));
  const memory = (bytes?: number | null) => (bytes == null ? "none" : `${Math.round((bytes / 2 ** 30) * 1000) / 1000}Gi`);
  const flag = (name: string, of: (quota: ProjectQuota) => string, always = false) => (always || of(quota) !== of(old) ? [name, of(quota)] : []);
  return [
    ...flag("--gpu", (q) => cores(q.gpu.deserved), quota.gpu.deserved != null),
    ...flag("--limit", (q) => cores(q.gpu.limit), true),
    ...flag("--weight", (q) => String(q.gpu.weight), true),
    ...flag("--priority", (q) => String(q.priority ?? 0)),
    ...flag("--min-run", (q) => String((q.min_run_ms ?? 0) / 1000)),
    ...flag("--max-time", (q) => (q.max_time_s == null ? "none" : `${q.max_time_s}s`)),
    ...flag("--preempt", (q) => q.preempt?.join() ?? "none"),
    ...flag("--cpu", (q) => cores(q.cpu?.deserved)),
    ...flag("--cpu-limit", (q) => cores(q.cpu?.limit)),
    ...flag("--memory", (q) => memory(q.memory?.deserved)),
    ...flag("--memory-limit", (q) => memory(q.memory?.limit)),
  ];
}

/** What a new project is granted: nothing guaranteed of GPUs, nothing counted of the rest. */
export const NO_QUOTA: ProjectQuota = { gpu: { deserved: 0, weight: 1 } };

/** Changes a project's quota, `old` as far as this page knows: what others changed meanwhile stays as they want it. */
export function setQuota(name: string, old: ProjectQuota, change: (quota: ProjectQuota) => ProjectQuota): Action {
  const quota = change(old);
  return {
    label: `grant ${name} ${gpuAmount(quota.gpu.deserved ?? 0)}`,
    cli: cantle("quota", "set", name, ...quotaFlags(quota, old)),
    run: async () => {
      await loadProjects();
      const now = projects.value?.find((project) => project.name === name)?.quota ?? NO_QUOTA;
      await call("cantle.set_quota", { project: name, quota: change(now) });
      await loadProjects();
    },
  };
}

export function unsetQuota(name: string): Action {
  return {
    label: `remove ${name}'s quota`,
    cli: cantle("quota", "unset", name),
    confirm: `Remove the quota of “${name}”? Its tasks then count against the nearest project above it that has a quota.`,
    run: async () => {
      await call("cantle.set_quota", { project: name });
      await loadProjects();
    },
  };
}

interface WireTask {
  name: string;
  type: string;
  hyperparams?: Record<string, Record<string, { value: string }>>;
  [field: string]: unknown;
}

/** Submits the same once more, as a new task. */
export function clone(task: TaskView, wire: WireTask): Action {
  const form = fromTask(wire, task.queue ?? "default", task.project ?? "");
  return {
    label: `run ${task.name} again`,
    cli: submitLine(form),
    run: () => submit(form),
  };
}

export type { WireTask };
