import { call } from "../api";
import { Filter, Select } from "../parts/Controls";
import { param, setParam } from "../route";
import { type Axis, figure } from "./lines";
import { type Drawing, ScalarChart } from "./ScalarChart";
import { useAsked } from "./useAsked";
import type { Line, SingleValue } from "./wire";
import { ofRun } from "./ofRun";

/** Points of one line that the server sends at most; it thins out evenly. */
const SAMPLES = 5000;
const MAX_WEIGHT = 0.99;

export type Graphs = Record<string, Record<string, Line>>;

/** How the address says that graphs are drawn. */
export function drawing(): Drawing {
  const weight = Number(param("smooth", "0"));
  return { axis: param("x", "iter") as Axis, weight: Math.min(Math.max(weight || 0, 0), MAX_WEIGHT), log: param("scale") === "log" };
}

/** The members of a request for lines that belong to `drawing`. */
export function asDrawn(): { key: string; samples: number } {
  return { key: drawing().axis === "iter" ? "iter" : "timestamp", samples: SAMPLES };
}

export function DrawingControls() {
  const { weight } = drawing();
  return (
    <div class="filters start">
      <Filter label="Graph" />
      <Select name="x" label="Horizontal axis" value="iter" options={[["iter", "iteration"], ["relative", "time since the start"], ["time", "time of day"]]} />
      <Select name="scale" label="Vertical axis" options={[["", "linear"], ["log", "logarithmic"]]} />
      <label class="select">
        <span>Smoothing</span>
        <input type="range" min="0" max={MAX_WEIGHT} step="0.01" value={weight} onInput={(event) => setParam("smooth", event.currentTarget.value === "0" ? "" : event.currentTarget.value)} />
        <output>{weight.toFixed(2)}</output>
      </label>
    </div>
  );
}

/** Graphs by name, those that the address' filter lets through. */
export function Graphs({ graphs }: { graphs: [title: string, lines: Line[]][] }) {
  const wanted = param("q").toLowerCase();
  const shown = graphs.filter(([title]) => title.toLowerCase().includes(wanted));
  return (
    <div class="graphs" data-testid="graphs">
      {shown.map(([title, lines]) => (
        <ScalarChart key={title} title={title} lines={lines} drawing={drawing()} />
      ))}
      {graphs.length > 0 && shown.length === 0 && <p class="muted">There is no graph of this name.</p>}
    </div>
  );
}

function SingleValues({ values }: { values: SingleValue[] }) {
  return (
    <section class="card" aria-labelledby="single">
      <h2 id="single">Single values</h2>
      <dl class="facts">
        {values.map(({ variant, value }) => (
          <div key={variant}>
            <dt>{variant}</dt>
            <dd>{figure(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

export function Scalars({ task, live }: { task: string; live: boolean }) {
  const drawn = asDrawn();
  const lines = useAsked(() => call<Graphs>("events.scalar_metrics_iter_histogram", { task, ...ofRun(), ...drawn }), `${task} ${param("run")} ${drawn.key}`, live);
  const singles = useAsked(() => call<{ tasks: { values: SingleValue[] }[] }>("events.get_task_single_value_metrics", { tasks: [task], ...ofRun() }), `${task} ${param("run")}`, live);
  if (!lines.answer) return <p class="muted">{lines.problem || "…"}</p>;
  const values = singles.answer?.tasks.flatMap((found) => found.values) ?? [];
  const graphs = Object.entries(lines.answer).map(([title, named]): [string, Line[]] => [title, Object.values(named)]);
  if (graphs.length + values.length === 0) return <p class="muted">The task has reported no scalars.</p>;
  return (
    <>
      <DrawingControls />
      <p class="muted">Drag over a graph to zoom in; a double click shows all of it again. A click on a name hides its line.</p>
      {values.length > 0 && <SingleValues values={values} />}
      <Graphs graphs={graphs} />
    </>
  );
}
