import { maySubmit, session } from "../api";
import { ActionButton, Filter, Select, usePageCli } from "../parts/Controls";
import { canRequeue, canStop, requeue, stop } from "../actions";
import { cantle } from "../cli";
import { saveCsv } from "../csv";
import { age, bytes, clock, gpus, plural, stateWord } from "../format";
import { now, queues, suspension, taskList } from "../live";
import { type Column, Rows } from "../parts/Rows";
import { Says } from "../parts/Says";
import { MAX_COMPARED } from "../results/compared";
import { link, param, setParam } from "../route";
import type { TaskView } from "../types";

const STATES: [string, string][] = ["queued", "in_progress", "completed", "failed", "stopped", "created"].map((state) => [state, stateWord(state)]);

export function State({ task }: { task: TaskView }) {
  const state = suspension(task) ? "suspended" : task.state;
  return <span class={`badge ${state}`}>{stateWord(state)}</span>;
}

function lasted(task: TaskView): number {
  if (!task.started) return 0;
  return (task.ended ? Date.parse(task.ended) : now.value) - Date.parse(task.started);
}

/** Ids of the tasks that were picked to be compared; the address keeps them. */
const picked = (): string[] => param("compare").split(",").filter(Boolean);

function Pick({ task }: { task: TaskView }) {
  const chosen = picked();
  const on = chosen.includes(task.id);
  const toggle = () => setParam("compare", (on ? chosen.filter((id) => id !== task.id) : [...chosen, task.id]).join());
  return <input type="checkbox" aria-label={`Compare ${task.name}`} checked={on} disabled={!on && chosen.length >= MAX_COMPARED} onChange={toggle} />;
}

const COLUMNS: Column<TaskView>[] = [
  { id: "pick", head: "✓", width: "1.1rem", narrow: "hidden", cell: (task) => <Pick task={task} /> },
  { id: "name", head: "Task", width: "minmax(8rem, 2fr)", sort: (task) => task.name, cell: (task) => <a href={link(`tasks/${task.id}`)}>{task.name}</a> },
  { id: "state", head: "State", width: "5.8rem", sort: (task) => task.state, cell: (task) => <State task={task} /> },
  { id: "user", head: "User", width: "minmax(4rem, 1fr)", narrow: "hidden", sort: (task) => task.user, cell: (task) => task.user },
  { id: "queue", head: "Queue", width: "minmax(4.5rem, 1fr)", narrow: "hidden", sort: (task) => task.queue ?? "", cell: (task) => task.queue },
  { id: "project", head: "Project", width: "minmax(4.5rem, 1fr)", narrow: "hidden", sort: (task) => task.project ?? "", cell: (task) => task.project },
  { id: "gpu", head: "GPUs", width: "3rem", narrow: "hidden", sort: (task) => task.milli, cell: (task) => (task.milli ? gpus(task.milli) : "") },
  {
    id: "limit",
    head: "Limit",
    width: "4.6rem",
    narrow: "hidden",
    sort: (task) => task.memory_limit_bytes,
    cell: (task) => (task.memory_limit_bytes ? bytes(task.memory_limit_bytes) : ""),
  },
  { id: "node", head: "Node", width: "minmax(4rem, 1fr)", narrow: "hidden", sort: (task) => task.node ?? "", cell: (task) => task.node },
  { id: "created", head: "Created", width: "5.6rem", narrow: "hidden", sort: (task) => task.created, cell: (task) => <time dateTime={task.created}>{clock(task.created)}</time> },
  { id: "time", head: "Ran", width: "5.2rem", narrow: "hidden", sort: lasted, cell: (task) => task.started && age(task.started, task.ended ? Date.parse(task.ended) : now.value) },
  { id: "reason", head: "Reason", width: "minmax(8rem, 6fr)", narrow: "below", cell: (task) => <span title={task.reason ?? ""}>{task.reason && <Says text={task.reason} />}</span> },
  {
    id: "do",
    head: "Action",
    width: "5.5rem",
    narrow: "hidden",
    cell: (task) =>
      canStop(task) ? (
        <ActionButton action={stop(task)} label={`Stop ${task.name}`} danger>
          Stop
        </ActionButton>
      ) : canRequeue(task) ? (
        <ActionButton action={requeue(task)} label={`Requeue ${task.name}`}>
          Requeue
        </ActionButton>
      ) : null,
  },
];

/** The name under which this user's tasks are listed; on an open server all are everybody's. */
const own = (): string | null => (session.value && !session.value.open ? session.value.user_name : null);

/** The tasks that the URL's filters let through, the user's own first. */
function filtered(): TaskView[] {
  const [me, whose] = [own(), param("user")];
  const [status, queue, project, text] = [param("status"), param("queue"), param("project"), param("q").toLowerCase()];
  const found = taskList.value.filter(
    (task) =>
      (!whose || task.user === whose) &&
      (!status || task.state === status) &&
      (!queue || task.queue === queue) &&
      (!project || task.project === project) &&
      (!text || [task.name, task.id, task.reason, task.node].some((field) => field?.toLowerCase().includes(text))),
  );
  const mine = found.filter((task) => task.user === me);
  return mine.length === 0 || mine.length === found.length ? found : [...mine, ...found.filter((task) => task.user !== me)];
}

/** What the user has at this moment. */
function MyUsage() {
  const me = own();
  const [running, queued] = ["in_progress", "queued"].map((state) => taskList.value.filter((task) => task.user === me && task.state === state));
  if (!me || (running!.length === 0 && queued!.length === 0)) return null;
  const milli = running!.reduce((sum, task) => sum + task.milli, 0);
  return (
    <p role="status" data-testid="usage">
      My usage: {gpus(milli)} GPUs in {plural(running!.length, "running task")}, {queued!.length} queued
    </p>
  );
}

function cliOfFilters(): string {
  const flags = ["status", "queue", "project", "user"].flatMap((name) => (param(name) ? [`--${name}`, param(name)] : []));
  return cantle("tasks", ...flags);
}

const FIELDS = ["id", "name", "user", "project", "queue", "state", "node", "milli", "memory_limit_bytes", "created", "started", "ended", "exit_code", "reason"] as const;

export function Tasks() {
  usePageCli(cliOfFilters());
  const shown = filtered();
  const projects = [...new Set(taskList.value.map((task) => task.project ?? ""))].filter(Boolean).sort();
  const me = own();
  const users = [...new Set(taskList.value.map((task) => task.user))].sort((a, b) => Number(b === me) - Number(a === me) || (a < b ? -1 : 1));
  const named = (names: string[]): [string, string][] => names.map((name) => [name, name]);
  return (
    <>
      <div class="title">
        <h1>Tasks</h1>
        <div class="filters">
          <Filter label="Name, id, node, reason" />
          <Select name="status" label="State" options={[["", "all"], ...STATES]} />
          <Select name="queue" label="Queue" options={[["", "all"], ...named(queues.value.map((queue) => queue.name))]} />
          <Select name="user" label="User" options={[["", "all"], ...named(users)]} />
          <Select name="project" label="Project" options={[["", "all"], ...named(projects)]} />
          {picked().length > 1 && (
            <a class="button" href={link("compare", { tasks: picked().join() })}>
              Compare {picked().length} tasks
            </a>
          )}
          {maySubmit() && (
            <a class="button" href={link("new")}>
              New task
            </a>
          )}
          <button type="button" onClick={() => saveCsv("tasks.csv", [[...FIELDS], ...shown.map((task) => FIELDS.map((field) => task[field]))])}>
            CSV
          </button>
        </div>
      </div>
      <p class="muted" role="status" data-testid="count">
        {shown.length === taskList.value.length ? plural(shown.length, "task") : `${shown.length.toLocaleString("en")} of ${plural(taskList.value.length, "task")}`}
      </p>
      <MyUsage />
      <Rows label="Tasks" items={shown} columns={COLUMNS} keyOf={(task) => task.id} empty="No task matches." />
    </>
  );
}
