import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { duration } from "../format";
import { resolved } from "../parts/Chart";
import { type Axis, figure, points } from "./lines";
import type { Line } from "./wire";

export interface Drawing {
  axis: Axis;
  /** Weight of the moving average, 0 for none. */
  weight: number;
  log: boolean;
}

const HEIGHT_PX = 240;
const COLORS = 10;
const X_LABEL: Record<Axis, string> = { iter: "iteration", relative: "since the start", time: "at" };
const TIME = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

function xText(axis: Axis, value: number): string {
  return axis === "iter" ? String(value) : axis === "relative" ? duration(value * 1000) : TIME.format(value * 1000);
}

/** The lines as one table: each is drawn on its own `x`. The raw line stays in sight behind a smoothed one. */
function table(lines: Line[], { axis, weight, log }: Drawing): uPlot.AlignedData {
  const raw = weight > 0 ? lines.map((line) => points(line, axis, 0, log)) : [];
  const drawn = [...raw, ...lines.map((line) => points(line, axis, weight, log))];
  if (drawn.length === 0) return [[]];
  return uPlot.join(drawn as unknown as uPlot.AlignedData[], drawn.map((pair) => pair.map(() => 2) as uPlot.JoinNullMode[]));
}

function series(lines: Line[], { weight }: Drawing, element: HTMLElement): uPlot.Series[] {
  const color = (at: number) => resolved(`var(--c${at % COLORS})`, element);
  const value: uPlot.Series.Value = (_plot, found) => (found == null ? "–" : figure(found));
  const few = lines.every((line) => line.x.length < 40);
  const faint = weight > 0 ? lines.map((line, at): uPlot.Series => ({ label: `${line.name}, raw`, stroke: color(at), alpha: 0.25, width: 1, spanGaps: true, points: { show: false }, value })) : [];
  return [...faint, ...lines.map((line, at): uPlot.Series => ({ label: line.name, stroke: color(at), width: 2, spanGaps: true, points: { show: few, size: 4 }, value }))];
}

function options(lines: Line[], drawing: Drawing, element: HTMLElement): uPlot.Options {
  const grid = { stroke: resolved("var(--line)", element), width: 1 };
  const look = { stroke: resolved("var(--muted)", element), grid, ticks: grid, font: "12px system-ui, sans-serif" };
  const { axis } = drawing;
  return {
    width: element.clientWidth,
    height: HEIGHT_PX,
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { distr: drawing.log ? 3 : 1 } },
    axes: [
      { ...look, space: axis === "time" ? 130 : 70, values: (_plot, ticks) => ticks.map((tick) => xText(axis, tick)) },
      { ...look, size: 64, values: (_plot, ticks) => ticks.map((tick) => (tick == null ? "" : figure(tick))) },
    ],
    series: [{ label: X_LABEL[axis], value: (_plot, value) => (value == null ? "–" : xText(axis, value)) }, ...series(lines, drawing, element)],
  };
}

/** One graph. Dragging zooms in, a double click shows everything again; a click on a name hides its line. */
export function ScalarChart({ title, lines, drawing }: { title: string; lines: Line[]; drawing: Drawing }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = JSON.stringify([drawing, lines.map((line) => line.name)]);
  useEffect(() => {
    const element = box.current!;
    plot.current = new uPlot(options(lines, drawing, element), table(lines, drawing), element);
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT_PX }));
    fit.observe(element);
    return () => {
      fit.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  // New points must not end a zoom.
  useEffect(() => {
    const { min, max } = plot.current?.scales["x"] ?? {};
    const all = plot.current?.data[0] ?? [];
    const zoomed = min != null && max != null && (min > (all[0] ?? min) || max < (all.at(-1) ?? max));
    plot.current?.setData(table(lines, drawing), !zoomed);
    if (zoomed) plot.current?.redraw();
  }, [lines]);
  const count = lines.reduce((sum, line) => sum + line.x.length, 0);
  return (
    <figure class="card graph" data-graph={title} data-points={count} data-log={drawing.log}>
      <figcaption>{title}</figcaption>
      <div class="chart" ref={box} role="img" aria-label={`${title}: ${lines.map((line) => line.name).join(", ")}`} />
    </figure>
  );
}
