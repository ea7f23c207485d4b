import { useEffect, useState } from "preact/hooks";
import { read } from "../api";
import { duration, plural } from "../format";
import type { History } from "../types";
import { Chart } from "./Chart";

const REFRESH_MS = 5000;

/** Keeps what the server recorded about a queue or a task fresh while it is looked at. */
export function useHistory(path: string, live: boolean): History | null {
  const [history, setHistory] = useState<History | null>(null);
  useEffect(() => {
    // A failed read is no loss: the header reports the lost connection, and the next read follows.
    const load = () => void read<History>(path).then(setHistory, () => undefined);
    load();
    const timer = live ? setInterval(load, REFRESH_MS) : undefined;
    return () => clearInterval(timer);
  }, [path, live]);
  return history && history.times_s.length > 1 ? history : null;
}

/** Length of a queue and the longest wait in it, folded away until asked for. */
export function QueueChart({ queue }: { queue: string }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>Length and waiting time</summary>
      {open && <Charts queue={queue} />}
    </details>
  );
}

function Charts({ queue }: { queue: string }) {
  const history = useHistory(`history/queue/${encodeURIComponent(queue)}`, true);
  if (!history) return <p class="muted">The server has no record of this queue yet.</p>;
  return (
    <>
      <Chart
        history={history}
        label={`Tasks that waited in ${queue}, over time`}
        lines={[{ name: "waiting", label: "waiting", color: "var(--c0)", fill: true }]}
        format={(value) => plural(Math.round(value), "task")}
      />
      <Chart
        history={history}
        label={`Longest wait in ${queue}, over time`}
        lines={[{ name: "longest_wait_s", label: "longest wait", color: "var(--c3)", fill: true }]}
        format={(value) => duration(value * 1000)}
      />
    </>
  );
}
