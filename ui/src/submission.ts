// A task before it is submitted: what the form says, as the server takes it and as the command line says it.

import { type WireTask } from "./actions";
import { ApiError, call } from "./api";
import { cantle, quote } from "./cli";
import { queueId } from "./live";

/** How a part of a GPU is named: the parameter of the task, the words of the form, and an example. */
export const SIZES: [size: string, text: string, example: string][] = [
  ["", "as the queue says", ""],
  ["gpu", "part of one GPU", "0.25"],
  ["gpu_memory", "GPU memory", "8Gi"],
  ["gpus", "whole GPUs", "1"],
  ["mig_profile", "MIG profile", "1g.10gb"],
];

export interface Submission {
  name: string;
  queue: string;
  project: string;
  /** As one types it into a shell. Empty for a task whose code is in ClearML's own fields. */
  command: string;
  size: string;
  amount: string;
  /** Memory that it may use as long as it is free. */
  memoryLimit: string;
  image: string;
  time: string;
  /** For how long it may be idle. */
  idle: string;
  /** The indices for which a task each is made: `0-99%8`. */
  array: string;
  /** Section, name and value of each parameter that is not cantle's own. */
  parameters: [section: string, name: string, value: string][];
  /** The task that it was made from. */
  from: WireTask | null;
}

const SECTION = "cantle";
/** Parameters of a request that have a field of their own. */
const OWN = ["command", "gpu", "gpus", "gpu_memory", "gpu_memory_limit", "mig_profile", "time", "idle", "array"];
/** What a new task has of the one that it is made from, apart from the fields of the form. */
const KEPT = ["type", "comment", "script", "configuration", "tags"];
const FLAGS = ["isolation", "compute", "compute_request", "compute_limit", "cpu", "memory", "priority", "after"];

export const EMPTY: Submission = { name: "", queue: "default", project: "", command: "", size: "", amount: "", memoryLimit: "", image: "", time: "", idle: "", array: "", parameters: [], from: null };

const own = (wire: WireTask | null, name: string): string => wire?.hyperparams?.[SECTION]?.[name]?.value ?? "";

/** Splits a line as a shell does, without its expansions. */
export function words(line: string): string[] {
  const found: string[] = [];
  let word: string | null = null;
  const pattern = /\s+|'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|[^\s'"\\]+|(.)/gsy;
  for (const [text, single, double, escaped, wrong] of line.matchAll(pattern)) {
    if (wrong !== undefined) throw new ApiError(0, `the command has a ${wrong} that nothing closes`);
    if (/^\s/.test(text)) {
      if (word !== null) found.push(word);
      word = null;
    } else {
      word = (word ?? "") + (single ?? double?.replace(/\\(["\\$`])/g, "$1") ?? escaped ?? text);
    }
  }
  return word === null ? found : [...found, word];
}

/** A form that says what this task was. */
export function fromTask(wire: WireTask, queue: string, project: string): Submission {
  const size = SIZES.map(([name]) => name).find((name) => name && own(wire, name)) ?? "";
  const container = (wire["container"] ?? {}) as { image?: string };
  const sections = Object.entries(wire.hyperparams ?? {}).filter(([section]) => section !== SECTION);
  return {
    name: wire.name,
    queue,
    project,
    command: (JSON.parse(own(wire, "command") || "[]") as string[]).map(quote).join(" "),
    size,
    amount: own(wire, size),
    memoryLimit: own(wire, "gpu_memory_limit"),
    image: container.image ?? "",
    time: own(wire, "time"),
    idle: own(wire, "idle"),
    array: own(wire, "array"),
    parameters: sections.flatMap(([section, params]) => Object.entries(params).map(([name, { value }]) => [section, name, value] as [string, string, string])),
    from: wire,
  };
}

/** Has the task code of ClearML's instead of a command? */
export const isCode = ({ from }: Submission): boolean => from !== null && own(from, "command") === "";

/** Only a part of a GPU may get more than it requests. */
export const mayBorrow = ({ size }: Submission): boolean => size === "gpu" || size === "gpu_memory";

function hyperparams(form: Submission): Record<string, Record<string, object>> {
  const kept = Object.entries(form.from?.hyperparams?.[SECTION] ?? {}).filter(([name]) => !OWN.includes(name));
  const all: [string, string, string][] = [...form.parameters, ...kept.map(([name, { value }]): [string, string, string] => [SECTION, name, value])];
  if (!isCode(form)) all.push([SECTION, "command", JSON.stringify(words(form.command))]);
  if (form.size && form.amount) all.push([SECTION, form.size, form.amount.trim()]);
  if (mayBorrow(form) && form.memoryLimit) all.push([SECTION, "gpu_memory_limit", form.memoryLimit.trim()]);
  if (form.time) all.push([SECTION, "time", form.time.trim()]);
  if (form.idle) all.push([SECTION, "idle", form.idle.trim()]);
  if (form.array) all.push([SECTION, "array", form.array.trim()]);
  const sections: Record<string, Record<string, object>> = {};
  // Type and description stay those of the former task.
  for (const [section, name, value] of all) (sections[section] ??= {})[name] = { ...form.from?.hyperparams?.[section]?.[name], section, name, value };
  return sections;
}

/** The command line that submits the same; empty where there is none, as for code of ClearML's. */
export function submitLine(form: Submission): string {
  if (isCode(form)) return "";
  const flag = (name: string, value: string) => (value ? [`--${name.replaceAll("_", "-")}`, value] : []);
  const kept = FLAGS.flatMap((name) => flag(name, own(form.from, name)));
  const size = form.size ? flag(form.size, form.amount) : [];
  let command: string[];
  try {
    command = words(form.command);
  } catch {
    command = [];
  }
  const limit = mayBorrow(form) ? flag("gpu_memory_limit", form.memoryLimit) : [];
  const rest = [...limit, ...flag("image", form.image), ...flag("time", form.time), ...flag("idle", form.idle), ...flag("array", form.array), ...flag("name", form.name), ...flag("project", form.project)];
  return cantle("submit", "--queue", form.queue, ...size, ...kept, ...(own(form.from, "non_preemptible") ? ["--non-preemptible"] : []), ...rest, "--", ...command);
}

/** The id of a project, which is made if there is none. */
async function projectId(name: string): Promise<string> {
  const pattern = `^${name.replace(/[^\p{L}\p{N}]/gu, "\\$&")}$`;
  const { projects } = await call<{ projects: { id: string; name: string }[] }>("projects.get_all", { name: pattern });
  const found = projects.find((project) => project.name === name);
  return found ? found.id : (await call<{ id: string }>("projects.create", { name, description: "" })).id;
}

/** Submits it; returns the id of the new task. */
export async function submit(form: Submission): Promise<string> {
  const queue = queueId(form.queue);
  const parameters = hyperparams(form);
  if (!isCode(form) && words(form.command).length === 0) throw new ApiError(0, "the command is empty; write a program and its arguments");
  if (form.size && !form.amount.trim()) throw new ApiError(0, `the size is empty; write one like ${SIZES.find(([size]) => size === form.size)![2]}`);
  const kept = Object.fromEntries(KEPT.filter((field) => form.from?.[field] != null).map((field) => [field, form.from![field]]));
  const script = isCode(form) ? {} : { script: { entry_point: form.command, working_dir: own(form.from, "cwd") } };
  const container = { ...((form.from?.["container"] ?? {}) as object), image: form.image.trim() };
  const task = {
    type: "custom",
    ...kept,
    ...script,
    container,
    hyperparams: parameters,
    name: form.name.trim() || form.command,
    project: await projectId(form.project.trim() || "default"),
  };
  const id = crypto.getRandomValues(new Uint8Array(16)).reduce((hex, byte) => hex + byte.toString(16).padStart(2, "0"), "");
  return (await call<{ id: string }>("cantle.submit_task", { queue, id, task })).id;
}
