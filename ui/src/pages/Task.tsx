import { useEffect, useState } from "preact/hooks";
import { type WireTask, canRequeue, canStop, clone, dequeue, requeue, stop } from "../actions";
import { ApiError, call, mayChange, maySubmit } from "../api";
import { cantle } from "../cli";
import { bytes, clock, duration, gpuAmount } from "../format";
import { fetchTask, nodes, now, suspension, tasks } from "../live";
import { Chart } from "../parts/Chart";
import { ActionButton, usePageCli } from "../parts/Controls";
import { Log } from "../parts/Log";
import { useHistory } from "../parts/QueueChart";
import { Says } from "../parts/Says";
import { Artifacts } from "../results/Artifacts";
import { Configuration } from "../results/Configuration";
import { Images } from "../results/Images";
import { Plots } from "../results/Plots";
import { Scalars } from "../results/Scalars";
import type { ReportedTask } from "../results/wire";
import { link, param } from "../route";
import type { EventView, Explanation, History, TaskView } from "../types";
import { Runs } from "./Runs";
import { State } from "./Tasks";

const FINAL = ["stopped", "completed", "failed", "closed", "published"];

/** What the server says about a task beyond its row in the list; asked again whenever that row changes. */
function useDetails(task: TaskView | undefined): { explanation: Explanation | null; wire: WireTask | null; events: EventView[] } {
  const [explanation, setExplanation] = useState<Explanation | null>(null);
  const [wire, setWire] = useState<WireTask | null>(null);
  const [events, setEvents] = useState<EventView[]>([]);
  const id = task?.id;
  useEffect(() => {
    if (!id) return;
    const ignore = () => undefined;
    call<Explanation>("cantle.explain_task", { task: id }).then(setExplanation, ignore);
    call<{ task: WireTask }>("tasks.get_by_id", { task: id }).then((found) => setWire(found.task), ignore);
    call<{ events: EventView[] }>("cantle.get_events", { task: id, limit: 100 }).then((found) => setEvents(found.events), ignore);
  }, [id, task?.state, task?.reason]);
  return { explanation, wire, events };
}

/** When the task first held GPU memory, if the server saw it. */
function firstMemory(history: History | null): string | null {
  const at = history?.series["used_bytes"]?.findIndex((used) => (used ?? 0) > 0) ?? -1;
  return history && at >= 0 ? new Date(history.times_s[at]! * 1000).toISOString() : null;
}

function Timeline({ task, events, history }: { task: TaskView; events: EventView[]; history: History | null }) {
  const last = (kind: string) => events.filter((event) => event.kind === kind).at(-1)?.time ?? null;
  const steps: [string, string | null][] = [
    ["created", task.created],
    ["queued", last("enqueue")],
    ["placed", last("place")],
    ["started", task.started],
    ["first GPU memory", firstMemory(history)],
    [FINAL.includes(task.state) ? task.state : "ended", task.ended],
  ];
  const reached = steps.filter((step): step is [string, string] => step[1] !== null).sort((a, b) => Date.parse(a[1]) - Date.parse(b[1]));
  const open = steps.filter(([, time]) => time === null && !task.ended);
  return (
    <ol class="timeline" aria-label="Timeline" data-testid="timeline">
      {reached.map(([name, time], index) => (
        <li key={name} class="reached">
          <b>{name}</b>
          <time dateTime={time}>{clock(time)}</time>
          {index > 0 && <span class="muted">after {duration(Date.parse(time) - Date.parse(reached[index - 1]![1]))}</span>}
        </li>
      ))}
      {open.map(([name]) => (
        <li key={name}>
          <b>{name}</b>
          <span class="muted">not yet</span>
        </li>
      ))}
    </ol>
  );
}

const WHY: Record<string, string> = { queued: "Why it waits", in_progress: "Where it runs", created: "What it is" };

function Why({ task, explanation }: { task: TaskView; explanation: Explanation }) {
  const { position } = explanation;
  return (
    <section class="card" aria-labelledby="why" data-testid="why">
      <h2 id="why">{suspension(task) ? "Why it is suspended" : (WHY[explanation.state] ?? "How it ended")}</h2>
      <p>
        <Says text={explanation.reason} />
      </p>
      {position !== null && <p class="muted">{position === 0 ? "It is the first" : `${position} before it`} in {explanation.queue}.</p>}
      {explanation.state === "queued" && (
        <ul>
          {explanation.nodes.map((node) => (
            <li key={node.node}>
              {node.node}
              {node.alive ? "" : " (gone)"}: <Says text={node.reason ?? "has not considered it yet"} />
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Memory({ task, history }: { task: TaskView; history: History | null }) {
  const slices = nodes.value.flatMap((node) => node.gpus.flatMap((gpu) => gpu.slices.filter((slice) => slice.task === task.id)));
  const parked = suspension(task);
  const used = slices.reduce((sum, slice) => sum + slice.memory_used_bytes, 0);
  return (
    <section class="card" aria-labelledby="memory">
      <h2 id="memory">
        GPU memory
        {slices.length > 0 && (
          <span class="figures">
            <b>{bytes(used)}</b> of {bytes(task.memory_limit_bytes)} used
          </span>
        )}
        {parked && (
          <span class="figures" data-testid="parked">
            <b>{bytes(parked.parked_bytes)}</b> in the memory of {task.node} since {clock(parked.since)}
          </span>
        )}
      </h2>
      {history ? (
        <Chart
          history={history}
          label="Limit against used GPU memory, over time"
          format={bytes}
          lines={[
            { name: "used_bytes", label: "used", color: "var(--c0)", fill: true },
            { name: "limit_bytes", label: "limit", color: "var(--c3)", dashed: true },
          ]}
        />
      ) : (
        <p class="muted">The server has no record of its memory: the task has not run, or it ran too long ago.</p>
      )}
    </section>
  );
}

function Facts({ task }: { task: TaskView }) {
  const where = nodes.value.flatMap((node) => node.gpus.filter((gpu) => task.gpus.includes(gpu.uuid)).map((gpu) => `GPU ${gpu.index} of ${node.node}`));
  const rows: [string, string | null][] = [
    ["Id", task.id],
    ["Queue", task.queue],
    ["Project", task.project],
    ["Node", task.node],
    ["GPUs", where.join(", ") || task.gpus.join(", ")],
    ["Share", task.milli ? gpuAmount(task.milli) : null],
    ["Limit", task.memory_limit_bytes ? bytes(task.memory_limit_bytes) : null],
    ["CPU cores", task.host?.cpu_milli ? String(task.host.cpu_milli / 1000) : null],
    ["Main memory", task.host?.memory_bytes ? bytes(task.host.memory_bytes) : null],
    ["Exit code", task.exit_code === null ? null : String(task.exit_code)],
    ["Time limit", task.time_limit_s ? duration(task.time_limit_s * 1000) : null],
    ["Idle limit", task.idle_limit_s ? duration(task.idle_limit_s * 1000) : null],
    ["Ran", task.started ? duration((task.ended ? Date.parse(task.ended) : now.value) - Date.parse(task.started)) : null],
  ];
  return (
    <dl class="facts card">
      {rows.map(
        ([name, value]) =>
          value && (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

const TABS: [tab: string, text: string][] = [
  ["", "Overview"],
  ["scalars", "Scalars"],
  ["plots", "Plots"],
  ["images", "Debug samples"],
  ["artifacts", "Artifacts and models"],
  ["configuration", "Configuration"],
];

function Tabs({ id, tab }: { id: string; tab: string }) {
  return (
    <div class="tabs" role="navigation" aria-label="Of this task">
      {TABS.map(([name, text]) => (
        <a key={name} href={link(name ? `tasks/${id}/${name}` : `tasks/${id}`, { run: param("run") })} aria-current={name === tab ? "page" : undefined}>
          {text}
        </a>
      ))}
    </div>
  );
}

/** What the task reported, by the last part of the address. */
function Reported({ id, tab, wire, live }: { id: string; tab: string; wire: WireTask | null; live: boolean }) {
  switch (tab) {
    case "scalars":
      return <Scalars task={id} live={live} />;
    case "plots":
      return <Plots task={id} live={live} />;
    case "images":
      return <Images task={id} live={live} />;
  }
  if (!wire) return <p class="muted">…</p>;
  const reported = wire as unknown as ReportedTask;
  switch (tab) {
    case "artifacts":
      return <Artifacts task={reported} />;
    case "configuration":
      return <Configuration task={reported} />;
    default:
      return <p>A task has no page “{tab}”.</p>;
  }
}

function Overview({ task, explanation, events }: { task: TaskView; explanation: Explanation | null; events: EventView[] }) {
  const history = useHistory(`history/task/${task.id}`, task.state === "in_progress");
  return (
    <>
      <Timeline task={task} events={events} history={history} />
      <div class="columns">
        <div>
          {explanation && <Why task={task} explanation={explanation} />}
          <Facts task={task} />
        </div>
        <Memory task={task} history={history} />
      </div>
      <section class="card" aria-labelledby="output">
        <h2 id="output">Output</h2>
        <Log task={task.id} live={!FINAL.includes(task.state)} />
      </section>
      <Runs task={task} />
      {events.length > 0 && (
        <section class="card" aria-labelledby="happened">
          <h2 id="happened">Events</h2>
          <ul class="eventlist">
            {events.map((event) => (
              <li key={event.id}>
                <time dateTime={event.time}>{clock(event.time)}</time> <span class="badge">{event.kind}</span> <Says text={event.message} />
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

export function TaskPage({ id, tab }: { id: string; tab: string }) {
  const task = tasks.value.get(id);
  const [problem, setProblem] = useState("");
  usePageCli(cantle(task?.state === "queued" ? "why" : "logs", ...(task?.state === "in_progress" ? ["-f"] : []), id));
  useEffect(() => {
    if (!task) fetchTask(id).then(() => setProblem(tasks.value.has(id) ? "" : `There is no task ${id}.`), (error) => setProblem(error instanceof ApiError ? error.message : String(error)));
  }, [id]);
  const { explanation, wire, events } = useDetails(task);
  if (!task) return problem ? <h1>{problem}</h1> : <h1 class="muted">…</h1>;
  return (
    <>
      <p class="crumbs">
        <a href={link("tasks")}>Tasks</a> /
      </p>
      <div class="title">
        <h1 data-testid="task">
          {task.name} <State task={task} />
        </h1>
        <div class="row">
          {task.state === "in_progress" && mayChange(task) && wire?.hyperparams?.["cantle"]?.["notebook"] && (
            <a class="button" href={link(`-/notebook/${id}`)} target="_blank" rel="noopener" data-testid="notebook" title={`$ ${cantle("notebook", "--attach", id)}`}>
              Open notebook
            </a>
          )}
          {task.state === "queued" && <ActionButton action={dequeue(task)}>Dequeue</ActionButton>}
          {canStop(task) && (
            <ActionButton action={stop(task)} danger>
              Stop
            </ActionButton>
          )}
          {canRequeue(task) && <ActionButton action={requeue(task)}>Requeue</ActionButton>}
          {wire?.hyperparams?.["cantle"] && <ActionButton action={clone(task, wire)}>Run again</ActionButton>}
          {maySubmit() && (
            <a class="button" href={link("new", { from: id })}>
              Run again with changes
            </a>
          )}
        </div>
      </div>
      <Tabs id={id} tab={tab} />
      {param("run") && (
        <p data-testid="run">
          Output, scalars, plots and debug samples of run {param("run")}. <a href={link(tab ? `tasks/${id}/${tab}` : `tasks/${id}`)}>Show the newest run</a>
        </p>
      )}
      {tab === "" ? (
        <Overview task={task} explanation={explanation} events={events} />
      ) : (
        <Reported id={id} tab={tab} wire={wire} live={!FINAL.includes(task.state)} />
      )}
    </>
  );
}
