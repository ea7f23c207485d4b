import { call } from "../api";
import { cantle } from "../cli";
import { colorsFor } from "../color";
import { saveCsv } from "../csv";
import { bytes, duration, gpuAmount, hours, plural } from "../format";
import { Select, usePageCli } from "../parts/Controls";
import { Days } from "../parts/Days";
import { Table } from "../parts/Table";
import { useAsked } from "../results/useAsked";
import { link, param } from "../route";
import type { AdviceView, UsageLine } from "../types";

const DAY_MS = 86_400_000;
/** Of the tasks with unused memory. */
const MOST = 10;
/** By which it is added up: the word of the command line, and the heading of its column. */
const KEYS: [string, string][] = [["project", "Project"], ["user", "User"], ["queue", "Queue"], ["model", "GPU model"], ["pool", "Pool"], ["node", "Node"]];
const PERIODS: [string, string][] = [["1", "today"], ["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];

const percent = (part: number): string => `${(100 * part).toFixed(1)} %`;
const seconds = (value: number | null): string => (value === null ? "" : duration(value * 1000));
/** Whose the line is, or what nobody's time was. */
const nameOf = (line: UsageLine, key: string | undefined): string => (line.kind === "allocated" ? key || "(none)" : line.kind);
/** GPU time × the part of the memory limit that its runs never had. */
const unused = (line: UsageLine): number => (line.memory_peak === null ? 0 : line.gpu_seconds * (1 - line.memory_peak));

interface Report {
  from: string;
  to: string;
  lines: UsageLine[];
  /** Those of the costs; without them no line has one. */
  prices?: { currency: string } | null;
}

interface Answer {
  report: Report;
  days: UsageLine[];
}

/** What could be smaller. It is asked for apart: with very many tasks it takes longer, or is refused. */
interface Spare {
  tasks: UsageLine[];
  advice: AdviceView[];
}

/** Days are those of UTC, as on the command line. */
function period(days: number): { from: string; to: string } {
  const now = Date.now();
  return { from: new Date((Math.floor(now / DAY_MS) - days + 1) * DAY_MS).toISOString(), to: new Date(now).toISOString() };
}

async function ask(days: number, by: string): Promise<Answer> {
  const span = period(days);
  const usage = (...keys: string[]) => call<Report>("cantle.get_usage", { ...span, by: keys });
  const [report, perDay] = await Promise.all([usage(by), usage("day", by)]);
  return { report, days: perDay.lines };
}

async function askSpare(days: number): Promise<Spare> {
  const span = period(days);
  const [tasks, advice] = await Promise.all([
    call<Report>("cantle.get_usage", { ...span, by: ["task"], most_unused: MOST }),
    call<{ lines: AdviceView[] }>("cantle.get_advice", span),
  ]);
  return { tasks: tasks.lines, advice: advice.lines };
}

/** The file of `cantle -o csv usage`. */
function download({ from, to, lines, prices }: Report, by: string): void {
  const columns = ["runs", "gpu_seconds", "guaranteed_gpu_seconds", "borrowed_gpu_seconds", "lent_gpu_seconds", "memory_gib_seconds", "memory_peak", "wait_median_s", "wait_p95_s", "given_up", "lost_gpu_seconds"] as const;
  const cost = (line: UsageLine) => (prices ? [line.cost, prices.currency] : []);
  const rows = lines.map((line) => [from, to, line.kind, line.keys[0], ...columns.map((column) => line[column]), ...cost(line)]);
  const heads = ["period_start", "period_end", "kind", by, ...columns, ...(prices ? ["cost", "currency"] : [])];
  saveCsv(`usage-by-${by}.csv`, [heads, ...rows]);
}

function Sums({ by, report: { lines, prices }, color }: { by: string; report: Report; color: (name: string) => string }) {
  const all = lines.reduce((sum, line) => sum + line.gpu_seconds, 0);
  const heads = [KEYS.find(([key]) => key === by)![1], "Kind", "Runs", "GPU-hours", "Borrowed", "Lent", "Share", "GiB-hours", "Peak", "Wait", "Wait, 95 %", "Lost", ...(prices ? [`Cost (${prices.currency})`] : [])];
  return (
    <Table label="Usage" heads={heads}>
      {lines.map((line) => {
        const name = nameOf(line, line.keys[0]);
        return (
          <tr key={`${line.kind} ${line.keys[0]}`} data-usage={name}>
            <th scope="row">
              <span class="dot" style={{ background: color(name) }} aria-hidden="true" /> {line.kind === "allocated" ? name : line.keys[0] || "nobody"}
            </th>
            <td>{line.kind}</td>
            <td>{line.kind === "allocated" && line.runs}</td>
            <td>{hours(line.gpu_seconds)}</td>
            <td>{line.borrowed_gpu_seconds > 0 && hours(line.borrowed_gpu_seconds)}</td>
            <td>{(line.lent_gpu_seconds ?? 0) > 0 && hours(line.lent_gpu_seconds!)}</td>
            <td>{all > 0 && percent(line.gpu_seconds / all)}</td>
            <td>{line.kind === "allocated" && hours(line.memory_gib_seconds)}</td>
            <td>{line.memory_peak !== null && percent(line.memory_peak)}</td>
            <td>{seconds(line.wait_median_s)}</td>
            <td>{seconds(line.wait_p95_s)}</td>
            <td>{line.lost_gpu_seconds > 0 && hours(line.lost_gpu_seconds)}</td>
            {prices && <td>{line.cost?.toFixed(2)}</td>}
          </tr>
        );
      })}
    </Table>
  );
}

/** The tasks that left most of their memory unused: only those whose peak is known. */
function Unused({ tasks }: { tasks: UsageLine[] }) {
  if (tasks.length === 0) return null;
  return (
    <section class="card" aria-labelledby="unused">
      <h2 id="unused">
        Most allocated, least used <span class="muted">GPU-hours times the part of the memory limit that was never in use</span>
      </h2>
      <Table label="Unused" heads={["Task", "Runs", "GPU-hours", "Peak", "Unused GPU-hours"]}>
        {tasks.map((line) => (
          <tr key={line.keys[0]}>
            <th scope="row">
              <a href={link(`tasks/${line.keys[0]}`)}>{line.name || line.keys[0]}</a>
            </th>
            <td>{line.runs}</td>
            <td>{hours(line.gpu_seconds)}</td>
            <td>{percent(line.memory_peak!)}</td>
            <td>{hours(unused(line))}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

function Advice({ advice }: { advice: AdviceView[] }) {
  if (advice.length === 0) return null;
  return (
    <section class="card" aria-labelledby="advice">
      <h2 id="advice">
        Sizes that were too large <span class="muted">nothing is changed by itself</span>
      </h2>
      <Table label="Advice" heads={["Task", "Project", "Asked for", "Enough", "Peak", "Runs", "Spare GPU-hours"]}>
        {advice.map((line) => (
          <tr key={`${line.project} ${line.name}`}>
            <th scope="row">{line.name}</th>
            <td>{line.project}</td>
            <td>{gpuAmount(line.milli)}</td>
            <td>{gpuAmount(line.enough_milli)}</td>
            <td>{bytes(line.peak_bytes)}</td>
            <td>{line.runs}</td>
            <td>{hours(line.spare_gpu_seconds)}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

/** Who had which part of the GPUs, and what nobody had. Members see their own and what their rights show them. */
export function Usage() {
  const days = Math.min(Math.max(Number(param("days", "7")) || 7, 1), 90);
  const by = KEYS.some(([key]) => key === param("by")) ? param("by") : "project";
  const { answer, problem } = useAsked(() => ask(days, by), `${days} ${by}`);
  const spare = useAsked(() => askSpare(days), `${days}`);
  usePageCli(cantle("usage", "--from", period(days).from.slice(0, 10), "--by", by));
  const lines = answer?.report.lines ?? [];
  const names = lines.filter((line) => line.kind === "allocated").map((line) => nameOf(line, line.keys[0]));
  const colors = colorsFor(names);
  const color = (name: string) => (names.includes(name) ? colors(name) : `var(--${name})`);
  const had = lines.filter((line) => line.kind === "allocated").reduce((sum, line) => sum + line.gpu_seconds, 0);
  const all = lines.reduce((sum, line) => sum + line.gpu_seconds, 0);
  return (
    <>
      <div class="title">
        <h1>Usage</h1>
        <div class="filters">
          <Select name="days" label="Period" options={PERIODS} value="7" />
          <Select name="by" label="By" options={KEYS} value="project" />
          <button type="button" disabled={!answer} onClick={() => answer && download(answer.report, by)}>
            Download CSV
          </button>
        </div>
      </div>
      <p class="muted" role="status">
        {problem || (answer && (all > 0 ? `${hours(had)} of ${hours(all)} GPU-hours allocated, ${percent(had / all)}` : `No GPU has a record in ${plural(days, "day")}.`))}
      </p>
      {answer && all > 0 && (
        <section class="card" aria-labelledby="days">
          <h2 id="days">
            GPU-hours per day <span class="muted">days of UTC</span>
          </h2>
          <Days lines={answer.days} nameOf={(line) => nameOf(line, line.keys[1])} order={[...names, "free", "faulty", "away"]} color={color} />
          <Sums by={by} report={answer.report} color={color} />
        </section>
      )}
      {spare.problem && (
        <p class="muted" role="status">
          Tasks with unused memory: {spare.problem}
        </p>
      )}
      {spare.answer && <Unused tasks={spare.answer.tasks.filter((line) => line.keys[0] !== "(others)")} />}
      {spare.answer && <Advice advice={spare.answer.advice} />}
    </>
  );
}
