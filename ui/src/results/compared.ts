// Tasks side by side: a name of one task may be missing in the others.

import type { Line, ReportedTask } from "./wire";

export const MAX_COMPARED = 10;

/** One name, and its value in each task; `undefined` where a task has none. */
export interface Row {
  section: string;
  name: string;
  values: (string | undefined)[];
}

const TEXT_LIMIT = 200;

function values(task: ReportedTask): Map<string, [section: string, name: string, value: string]> {
  const found: [string, string, string][] = [["Task", "type", task.type]];
  for (const [section, params] of Object.entries(task.hyperparams ?? {})) {
    for (const [name, { value }] of Object.entries(params)) found.push([section, name, value]);
  }
  for (const [name, { value }] of Object.entries(task.configuration ?? {})) found.push(["Configuration", name, value]);
  for (const [name, value] of Object.entries(task.script ?? {})) {
    if (typeof value === "string") found.push(["Code", name, value]);
  }
  if (task.container?.image) found.push(["Code", "image", task.container.image]);
  return new Map(found.map((each) => [`${each[0]}\n${each[1]}`, each]));
}

/** What the tasks were made with, by section and name. */
export function rows(tasks: ReportedTask[]): Row[] {
  const each = tasks.map(values);
  const keys = [...new Set(each.flatMap((task) => [...task.keys()]))].sort();
  return keys.map((key) => {
    const [section, name] = each.find((task) => task.has(key))!.get(key)!;
    return { section, name, values: each.map((task) => task.get(key)?.[2]) };
  });
}

export const differs = ({ values }: Row): boolean => values.some((value) => value !== values[0]);

/** A value as a cell of a table shows it. */
export const short = (text: string): string => (text.length > TEXT_LIMIT ? `${text.slice(0, TEXT_LIMIT)}…` : text);

/** One graph for each line that any of the tasks has, with a line for each task. The id distinguishes tasks of one name. */
export function sideBySide(metrics: Record<string, Record<string, Record<string, Line>>>, ids: string[]): [title: string, lines: Line[]][] {
  return Object.entries(metrics).flatMap(([metric, variants]) =>
    Object.entries(variants).map(([variant, tasks]): [string, Line[]] => {
      const drawn = ids.filter((id) => tasks[id]);
      const names = drawn.map((id) => tasks[id]!.name);
      const label = (name: string, id: string) => (names.filter((other) => other === name).length > 1 ? `${name} ${id.slice(0, 8)}` : name);
      return [`${metric} / ${variant}`, drawn.map((id) => ({ ...tasks[id]!, name: label(tasks[id]!.name, id) }))];
    }),
  );
}

