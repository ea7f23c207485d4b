import { call } from "../api";
import { cantle } from "../cli";
import { plural } from "../format";
import { usePageCli } from "../parts/Controls";
import { MAX_COMPARED, type Row, differs, rows, short, sideBySide } from "../results/compared";
import { asDrawn, DrawingControls, Graphs } from "../results/Scalars";
import { useAsked } from "../results/useAsked";
import type { Line, ReportedTask } from "../results/wire";
import { link, param, setParam } from "../route";

function Table({ tasks, shown }: { tasks: ReportedTask[]; shown: Row[] }) {
  return (
    <div class="wide" tabIndex={0} role="region" aria-label="Table of parameters">
      <table data-testid="differences">
        <thead>
          <tr>
            <th scope="col">Section</th>
            <th scope="col">Name</th>
            {tasks.map((task) => (
              <th scope="col" key={task.id}>
                <a href={link(`tasks/${task.id}`)}>{task.name}</a>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={`${row.section} ${row.name}`} class={differs(row) ? "differs" : ""}>
              <td>{row.section}</td>
              <th scope="row">{row.name}</th>
              {row.values.map((value, at) => (
                <td key={tasks[at]!.id} title={value}>
                  {value === undefined ? <span class="muted">not there</span> : short(value)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Parameters({ tasks }: { tasks: ReportedTask[] }) {
  const all = rows(tasks);
  const every = param("all") !== "";
  const shown = every ? all : all.filter(differs);
  return (
    <section class="card" aria-labelledby="parameters">
      <h2 id="parameters">Parameters</h2>
      <p>
        <label class="select">
          <input type="checkbox" checked={every} onChange={(event) => setParam("all", event.currentTarget.checked ? "yes" : "")} />
          <span>Show equal parameters</span>
        </label>
      </p>
      {shown.length > 0 ? <Table tasks={tasks} shown={shown} /> : <p class="muted">They have the same parameters.</p>}
    </section>
  );
}

/** Up to ten tasks side by side; the address names them. */
export function Compare() {
  const ids = [...new Set(param("tasks").split(",").filter(Boolean))];
  const few = ids.slice(0, MAX_COMPARED);
  const drawn = asDrawn();
  const key = few.join();
  usePageCli(cantle("tasks", ...few));
  const tasks = useAsked(() => call<{ tasks: ReportedTask[] }>("tasks.get_all", { id: few }), key);
  const found = few.flatMap((id) => tasks.answer?.tasks.find((task) => task.id === id) ?? []);
  const known = found.map((task) => task.id);
  const ask = async () =>
    known.length > 0 ? (await call<{ metrics: Record<string, Record<string, Record<string, Line>>> }>("events.multi_task_scalar_metrics_iter_histogram", { tasks: known, ...drawn })).metrics : {};
  const lines = useAsked(ask, `${known.join()} ${drawn.key}`);
  if (ids.length < 2) return <h1>Choose two tasks or more on the page Tasks</h1>;
  if (!tasks.answer) return <h1 class="muted">{tasks.problem || "…"}</h1>;
  const missing = few.filter((id) => !known.includes(id));
  return (
    <>
      <p class="crumbs">
        <a href={link("tasks", { compare: key })}>Tasks</a> /
      </p>
      <h1>{plural(found.length, "task")} side by side</h1>
      {ids.length > few.length && <p class="warning">The address names {ids.length}; the first {MAX_COMPARED} are shown.</p>}
      {missing.length > 0 && <p class="warning">Not there: {missing.join(", ")}</p>}
      <Parameters tasks={found} />
      <h2>Scalars</h2>
      <DrawingControls />
      {lines.problem && <p class="warning">{lines.problem}</p>}
      <Graphs graphs={sideBySide(lines.answer ?? {}, known)} />
    </>
  );
}
