import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { History } from "../types";

export interface Line {
  name: string;
  label: string;
  color: string;
  dashed?: boolean;
  fill?: boolean;
}

/** A color of style.css, as the canvas wants it. */
export function resolved(color: string, element: HTMLElement): string {
  element.style.color = color;
  const value = getComputedStyle(element).color;
  element.style.color = "";
  return value;
}

/** Without a pointer the legend tells what is true now. */
function tellLast(plot: uPlot): void {
  if (plot.cursor.idx == null && plot.data[0].length > 0) plot.setLegend({ idx: plot.data[0].length - 1 });
}

interface Shown {
  lines: Line[];
  format: (value: number) => string;
  label: string;
  /** Where the axis ends, and its ticks; without it the axis fits the values. */
  scale?: { most: number; steps: number[] };
}

/** Ticks at powers of two: bytes are counted in them, and for small counts they do as well. */
const POWERS = Array.from({ length: 48 }, (_, power) => 2 ** power);

function options(props: Shown, element: HTMLElement): uPlot.Options {
  const grid = { stroke: resolved("var(--line)", element), width: 1 };
  const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const axis = { stroke: resolved("var(--muted)", element), grid, ticks: grid, font: "12px system-ui, sans-serif" };
  return {
    width: element.clientWidth,
    height: 180,
    cursor: { y: false },
    legend: { live: true },
    hooks: { ready: [tellLast], setData: [tellLast], setCursor: [tellLast] },
    scales: { y: { range: (_plot, _low, high) => [0, props.scale?.most ?? Math.max(high * 1.08, 1)] } },
    axes: [
      { ...axis, space: 80, values: (_plot, ticks) => ticks.map((tick) => time.format(tick * 1000)) },
      { ...axis, size: 72, incrs: props.scale?.steps ?? POWERS, values: (_plot, ticks) => ticks.map((tick) => props.format(tick)) },
    ],
    series: [
      { label: "at", value: (_plot, value) => (value == null ? "–" : time.format(value * 1000)) },
      ...props.lines.map((line): uPlot.Series => {
        const stroke = resolved(line.color, element);
        return {
          label: line.label,
          stroke,
          width: 2,
          points: { show: false },
          ...(line.fill ? { fill: stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.18)") } : {}),
          ...(line.dashed ? { dash: [6, 4] } : {}),
          value: (_plot, value) => (value == null ? "–" : props.format(value)),
        };
      }),
    ],
  };
}

/** A time series; the numbers under the pointer are in its legend. */
export function Chart(props: Shown & { history: History }) {
  const { history, lines, label } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [history.times_s, ...lines.map((line) => history.series[line.name] ?? [])] as uPlot.AlignedData;
  useEffect(() => {
    const element = box.current!;
    plot.current = new uPlot(options(props, element), data, element);
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 180 }));
    fit.observe(element);
    return () => {
      fit.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [history]);
  return <div class="chart" ref={box} role="img" aria-label={label} />;
}
