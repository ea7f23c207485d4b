import { useState } from "preact/hooks";
import type { GpuView, SliceView, TaskView } from "../types";
import { Chart } from "./Chart";
import { useHistory } from "./QueueChart";

/** In thousandths of the GPU. */
const SCALE = { most: 1000, steps: [100, 200, 250, 500] };

interface Props {
  gpu: GpuView;
  find: (id: string) => TaskView | undefined;
  colorOf: (slice: SliceView) => string;
}

/** What each slice with a compute share had of the GPU's time, folded away until asked for. */
export function GpuTime(props: Props) {
  const [open, setOpen] = useState(false);
  if (!props.gpu.slices.some((slice) => slice.compute)) return null;
  return (
    <details onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>GPU time in the last hour</summary>
      {open && <Lines {...props} />}
    </details>
  );
}

function Lines({ gpu, find, colorOf }: Props) {
  const history = useHistory(`history/gpu/${encodeURIComponent(gpu.uuid)}`, true);
  if (!history) return <p class="muted">The server has counted for less than half a minute.</p>;
  const lines = Object.keys(history.series).map((task) => {
    // Ended tasks are gray.
    const slice = gpu.slices.find((slice) => slice.task === task);
    return { name: task, label: find(task)?.name ?? task, color: slice ? colorOf(slice) : "var(--muted)" };
  });
  return (
    <Chart
      // A chart keeps its lines: others are another chart.
      key={lines.map((line) => line.name + line.label + line.color).join()}
      history={history}
      label={`GPU time of each slice of GPU ${gpu.index}, over time`}
      lines={lines}
      scale={SCALE}
      format={(thousandths) => `${Math.round(thousandths) / 10} %`}
    />
  );
}
