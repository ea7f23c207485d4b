// Lines of measured values, made ready to be drawn.

import type { Line } from "./wire";

export type Axis = "iter" | "relative" | "time";

/** Exponential moving average, without the bias of its first values: `weight` 0 changes nothing, close to 1 flattens. */
export function smooth(values: number[], weight: number): number[] {
  if (weight <= 0) return values;
  let [average, seen] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    average = average * weight + (1 - weight) * value;
    seen += 1;
    return average / (1 - weight ** seen);
  });
}

/** The points as a plot wants them: `x` in iterations, or in seconds. A logarithmic axis has no place for zero and below. */
export function points(line: Line, axis: Axis, weight: number, log: boolean): [number[], (number | null)[]] {
  const first = line.x[0] ?? 0;
  const x = axis === "iter" ? line.x : line.x.map((at) => (axis === "relative" ? at - first : at) / 1000);
  const y = smooth(line.y, weight).map((value) => (log && value <= 0 ? null : value));
  return [x, y];
}

/** A number with as many digits as people compare. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(6)));
}
