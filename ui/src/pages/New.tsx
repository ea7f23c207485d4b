import { useEffect, useState } from "preact/hooks";
import { type WireTask, outcome } from "../actions";
import { ApiError, call, may } from "../api";
import { fetchTask, loadProjects, projects, queues, tasks } from "../live";
import { usePageCli } from "../parts/Controls";
import { go, link, param } from "../route";
import { EMPTY, SIZES, type Submission, fromTask, isCode, mayBorrow, submit, submitLine } from "../submission";
import type { TaskView } from "../types";

/** The projects in which this user may submit. */
const offered = () => (projects.value ?? []).map((project) => project.name).filter((name) => may("submit", name));

function Text(props: { label: string; value: string; hint?: string; list?: string; required?: boolean; set: (value: string) => void }) {
  const { label, value, hint = "", required = false, set } = props;
  return (
    <label>
      <span>{label}</span>
      <input value={value} placeholder={hint} list={props.list} required={required} spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />
    </label>
  );
}

function Choice(props: { label: string; value: string; options: [string, string][]; set: (value: string) => void }) {
  return (
    <label>
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.set(event.currentTarget.value)}>
        {props.options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

/** What the task runs: a command, or code that only its author's SDK can change. */
function Work({ form, set }: { form: Submission; set: (change: Partial<Submission>) => void }) {
  if (!isCode(form)) {
    return (
      <label class="whole">
        <span>Command</span>
        <textarea rows={3} required spellcheck={false} value={form.command} placeholder="python3 train.py --epochs 10" onInput={(event) => set({ command: event.currentTarget.value })} />
      </label>
    );
  }
  const script = (form.from?.["script"] ?? {}) as { repository?: string; entry_point?: string };
  return (
    <p class="whole">
      Code: <code>{script.entry_point || "without an entry point"}</code> {script.repository && <>of <code>{script.repository}</code></>}
    </p>
  );
}

function Parameters({ form, set }: { form: Submission; set: (change: Partial<Submission>) => void }) {
  if (form.parameters.length === 0) return null;
  const change = (index: number, value: string) => set({ parameters: form.parameters.map(([section, name, old], at) => [section, name, at === index ? value : old]) });
  return (
    <fieldset class="whole fields">
      <legend>Parameters</legend>
      {form.parameters.map(([section, name, value], index) => (
        <Text key={`${section}/${name}`} label={`${section}/${name}`} value={value} set={(text) => change(index, text)} />
      ))}
    </fieldset>
  );
}

function Form({ start }: { start: Submission }) {
  const [form, setForm] = useState(start);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const set = (change: Partial<Submission>) => setForm((old) => ({ ...old, ...change }));
  const line = submitLine(form);
  usePageCli(line);
  const send = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const id = await submit(form);
      outcome.value = { text: `Submitted: ${form.name || form.command}`, cli: line, failed: false };
      await fetchTask(id);
      go(link(`tasks/${id}`));
    } catch (error) {
      setProblem(error instanceof ApiError ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <form class="card fields" aria-label="New task" onSubmit={(event) => void send(event)}>
      <Work form={form} set={set} />
      <Choice label="Queue" value={form.queue} options={queues.value.map((queue) => [queue.name, queue.name])} set={(queue) => set({ queue })} />
      <Choice label="GPU" value={form.size} options={SIZES.map(([size, text]) => [size, text])} set={(size) => set({ size, amount: "" })} />
      {form.size && <Text label="Size" value={form.amount} required hint={SIZES.find(([size]) => size === form.size)![2]} set={(amount) => set({ amount })} />}
      {mayBorrow(form) && <Text label="Memory limit" value={form.memoryLimit} hint="the size; with 24Gi it uses up to that as long as it is free" set={(memoryLimit) => set({ memoryLimit })} />}
      <Text label="Name" value={form.name} hint="the command" set={(name) => set({ name })} />
      <Text label="Project" value={form.project} hint="default" list="projects" set={(project) => set({ project })} />
      <datalist id="projects">
        {offered().map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <Text label="Container image" value={form.image} hint="none" set={(image) => set({ image })} />
      <Text label="Array" value={form.array} hint="0-99%8" set={(array) => set({ array })} />
      <Text label="Time limit" value={form.time} hint="2h" set={(time) => set({ time })} />
      <Text label="Idle limit" value={form.idle} hint="2h" set={(idle) => set({ idle })} />
      <Parameters form={form} set={set} />
      <p class="whole row end">
        {problem && (
          <span role="alert" class="failed">
            {problem}
          </span>
        )}
        <button type="submit" class="solid" disabled={busy}>
          Submit
        </button>
      </p>
    </form>
  );
}

/** The form's first state: what a former task was, or nothing. */
function useStart(from: string): { start: Submission | null; problem: string } {
  const [start, setStart] = useState<Submission | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = async (): Promise<Submission> => {
      await loadProjects().catch(() => undefined);
      const [first] = queues.value;
      const project = may("submit") ? "" : (offered()[0] ?? "");
      if (!from) return { ...EMPTY, queue: queues.value.some((queue) => queue.name === "default") ? "default" : (first?.name ?? ""), project };
      const { task } = await call<{ task: WireTask }>("tasks.get_by_id", { task: from });
      if (!tasks.value.has(from)) await fetchTask(from);
      const view: TaskView | undefined = tasks.value.get(from);
      return fromTask(task, view?.queue ?? first?.name ?? "", view?.project ?? project);
    };
    load().then(setStart, (error) => setProblem(error instanceof ApiError ? error.message : String(error)));
  }, [from]);
  return { start, problem };
}

/** Submits a task: a new one, or with `?from=ID` another one like an old one, with changes. */
export function New() {
  const from = param("from");
  const { start, problem } = useStart(from);
  return (
    <>
      <div class="title">
        <h1>{from ? "Run again with changes" : "New task"}</h1>
      </div>
      {problem && <p role="alert">{problem}</p>}
      {start && <Form key={from} start={start} />}
    </>
  );
}
