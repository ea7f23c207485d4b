import { call } from "../api";
import { clock, duration, gpuAmount, stateWord } from "../format";
import { now } from "../live";
import { Says } from "../parts/Says";
import { Table } from "../parts/Table";
import { useAsked } from "../results/useAsked";
import { link } from "../route";
import type { RunView, TaskView } from "../types";

/** How the process ended, and why. */
function Ending({ run }: { run: RunView }) {
  const code = run.exit_code === null ? "" : `exit code ${run.exit_code}`;
  if (!run.why) return <>{code}</>;
  return (
    <>
      {code && `${code}: `}
      <Says text={run.why} />
    </>
  );
}

/** Every run of a task, the newest first: none is forgotten when the task runs again. */
export function Runs({ task }: { task: TaskView }) {
  const ask = async () => (await call<{ runs: RunView[] }>("cantle.get_runs", { task: task.id })).runs;
  const runs = useAsked(ask, `${task.id} ${task.state} ${task.node ?? ""} ${task.started ?? ""}`).answer ?? [];
  if (runs.length === 0) return null;
  return (
    <section class="card" aria-labelledby="runs">
      <h2 id="runs">Runs</h2>
      <Table testid="runs" heads={["Run", "State", "Node", "Share", "Started", "Ran", "How it ended"]}>
        {[...runs].reverse().map((run) => (
          <tr key={run.run} data-run={run.run}>
            <th scope="row">{run.started ? <a href={link(`tasks/${task.id}`, { run: String(run.run) })}>{run.run}</a> : run.run}</th>
            <td>{run.outcome ? (GIVEN_UP.includes(run.outcome) ? "given up" : stateWord(run.outcome)) : stateWord("in_progress")}</td>
            <td>{run.node}</td>
            <td>{run.milli > 0 && gpuAmount(run.milli)}</td>
            <td>{run.started && <time dateTime={run.started}>{clock(run.started)}</time>}</td>
            <td>{run.started && duration((run.ended ? Date.parse(run.ended) : now.value) - Date.parse(run.started))}</td>
            <td>
              <Ending run={run} />
            </td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

/** The task went back, and the run's result does not count. */
const GIVEN_UP = ["queued", "created"];
