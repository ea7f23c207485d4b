import { hours } from "../format";
import type { UsageLine } from "../types";

interface Props {
  /** By day first. */
  lines: UsageLine[];
  nameOf: (line: UsageLine) => string;
  /** From the bottom to the top. */
  order: string[];
  color: (name: string) => string;
}

/** Up to this many days, all have their dates below them; with more, every seventh has. */
const FEW = 14;

/** The days of a period as stacked columns. The table below has the same figures, so that nobody needs the picture. */
export function Days({ lines, nameOf, order, color }: Props) {
  const days = [...new Set(lines.map((line) => line.keys[0]!))].filter((day) => day !== "").sort();
  const of = (day: string) => lines.filter((line) => line.keys[0] === day && line.gpu_seconds > 0);
  const height = (day: string) => of(day).reduce((sum, line) => sum + line.gpu_seconds, 0);
  const most = Math.max(...days.map(height), 1);
  const place = (line: UsageLine) => order.indexOf(nameOf(line));
  return (
    <div class="days" role="img" aria-label={`GPU-hours of ${days.length} days, stacked; the table below has their sums`}>
      {days.map((day, index) => (
        <div key={day} class="day">
          <div class="stack" data-day={day}>
            {of(day)
              .sort((a, b) => place(a) - place(b))
              .map((line) => (
                <div
                  key={nameOf(line)}
                  title={`${day}: ${nameOf(line)}, ${hours(line.gpu_seconds)} GPU-hours`}
                  style={{ height: `${(100 * line.gpu_seconds) / most}%`, background: color(nameOf(line)) }}
                />
              ))}
          </div>
          <span>{days.length <= FEW || index % 7 === 0 ? day.slice(5) : ""}</span>
        </div>
      ))}
    </div>
  );
}
