import { useState } from "preact/hooks";
import { NO_QUOTA, perform, setQuota, unsetQuota } from "../actions";
import type { ProjectQuota, ProjectView, Quota } from "../types";
import { ActionButton, unsaved } from "./Controls";

interface Amount {
  label: string;
  of: "gpu" | "cpu" | "memory";
  part: "deserved" | "limit";
  /** Units of the server per unit of the form. */
  unit: number;
  /** What an empty field means. */
  none: string;
}

const AMOUNTS: Amount[] = [
  { label: "GPUs guaranteed", of: "gpu", part: "deserved", unit: 1000, none: "all" },
  { label: "Limit, GPUs", of: "gpu", part: "limit", unit: 1000, none: "none" },
  { label: "CPU cores guaranteed", of: "cpu", part: "deserved", unit: 1000, none: "not counted" },
  { label: "Limit, CPU cores", of: "cpu", part: "limit", unit: 1000, none: "none" },
  { label: "Memory guaranteed, GiB", of: "memory", part: "deserved", unit: 2 ** 30, none: "not counted" },
  { label: "Limit, GiB of memory", of: "memory", part: "limit", unit: 2 ** 30, none: "none" },
];

const WEIGHT = "Weight";
const PRIORITY = "Priority";
const UNDISTURBED = "Undisturbed, seconds";
const MAKES_ROOM = "Its tasks make room by";
const LONGEST = "Longest time of a task, hours";

/** What fields say, by label. */
type Texts = Record<string, string>;

function texts(quota: ProjectQuota): Texts {
  const amounts = AMOUNTS.map(({ label, of, part, unit }) => {
    const amount = quota[of]?.[part];
    return [label, amount == null ? "" : String(Math.round((amount / unit) * 1000) / 1000)];
  });
  const { gpu, priority = 0, min_run_ms = 0, max_time_s } = quota;
  const times = { [UNDISTURBED]: String(min_run_ms / 1000), [LONGEST]: max_time_s == null ? "" : String(Math.round(max_time_s / 3.6) / 1000) };
  return { ...Object.fromEntries(amounts), [MAKES_ROOM]: quota.preempt?.join() ?? "", [WEIGHT]: String(gpu.weight), [PRIORITY]: String(priority), ...times };
}

/** `quota` with these edits. A field that nobody touched leaves what it shows as exact as it is. */
function granted(quota: ProjectQuota, edits: Texts): ProjectQuota {
  const number = (label: string, old: number, unit = 1) => (edits[label] === undefined ? old : unit * Number(edits[label]));
  // As on the command line, one weight holds for all resources.
  const part = (old: Quota = { weight: 1 }): Quota => ({ ...old, weight: number(WEIGHT, old.weight) });
  const parts = { gpu: part(quota.gpu), cpu: part(quota.cpu), memory: part(quota.memory) };
  for (const { label, of, part, unit } of AMOUNTS) {
    const text = edits[label]?.trim();
    if (text !== undefined) parts[of][part] = text === "" ? null : Math.round(Number(text) * unit);
  }
  const longest = edits[LONGEST]?.trim();
  const max_time_s = longest === undefined ? quota.max_time_s ?? null : longest === "" ? null : Math.round(3600 * Number(longest));
  const makesRoom = edits[MAKES_ROOM];
  const preempt = makesRoom === undefined ? (quota.preempt ?? null) : makesRoom === "" ? null : makesRoom.split(",");
  return { ...quota, ...parts, preempt, max_time_s, priority: number(PRIORITY, quota.priority ?? 0), min_run_ms: number(UNDISTURBED, quota.min_run_ms ?? 0, 1000) };
}

/** Grants a project its quota, or takes it away; without a project, one that has had no task yet. */
export function QuotaForm({ project }: { project?: ProjectView }) {
  const old = project?.quota ?? NO_QUOTA;
  const [name, setName] = useState("");
  // Only the edited fields: changes of others meanwhile show in the other fields.
  const [edits, setEdits] = useState<Texts>({});
  const fields = { ...texts(old), ...edits };
  const action = setQuota(project?.name ?? name.trim(), old, (quota) => granted(quota, edits));
  const save = { ...action, run: () => action.run().then(() => setEdits((now) => unsaved(now, edits))) };
  const field = (label: string, rest: object) => (
    <label key={label}>
      {label}
      <input type="number" value={fields[label]} onInput={({ currentTarget: { value } }) => setEdits((now) => ({ ...now, [label]: value }))} {...rest} />
    </label>
  );
  const amounts = (of: Amount["of"]) =>
    AMOUNTS.filter((amount) => amount.of === of).map(({ label, part, none }) =>
      field(label, { min: 0, step: 0.001, placeholder: none, required: of === "gpu" && part === "deserved" && old.gpu.deserved != null }),
    );
  return (
    <form
      class="quota"
      aria-label={project ? `Quota of ${project.name}` : "Quota of another project"}
      onSubmit={(event) => {
        event.preventDefault();
        perform(save);
      }}
    >
      {!project && (
        <label>
          Project
          <input type="text" required value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
      )}
      {amounts("gpu")}
      {field(WEIGHT, { min: 0, step: 1, required: true, title: "Share of the spare capacity, relative to the weights of the other projects" })}
      {field(PRIORITY, { step: 1, required: true, title: "Projects with a higher priority get spare capacity first" })}
      {amounts("cpu")}
      {amounts("memory")}
      {field(UNDISTURBED, { min: 0, step: 1, required: true, title: "Minimum time that its tasks run before they may be stopped for others" })}
      <label>
        {MAKES_ROOM}
        <select value={fields[MAKES_ROOM]} onChange={({ currentTarget: { value } }) => setEdits((now) => ({ ...now, [MAKES_ROOM]: value }))}>
          <option value="">inherited</option>
          <option value="requeue">requeue</option>
          <option value="suspend,requeue">suspension, else requeue</option>
        </select>
      </label>
      {field(LONGEST, { min: 0.001, max: 8784, step: 0.001, placeholder: "as the queue allows" })}
      <div class="row">
        <button type="submit" class="solid" title={`$ ${action.cli}`}>
          Save
        </button>
        {project?.quota && <ActionButton action={unsetQuota(project.name)}>No quota</ActionButton>}
      </div>
    </form>
  );
}
