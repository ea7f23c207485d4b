// Numbers and times for people. Every number has its unit.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number): string {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = value >= 100 || unit === 0 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Thousandths of a GPU as GPUs: 2750 is `2.75`. */
export function gpus(milli: number): string {
  return String(Math.round(milli) / 1000);
}

export function gpuAmount(milli: number): string {
  return `${gpus(milli)} ${milli === 1000 || (milli > 0 && milli < 1000) ? "GPU" : "GPUs"}`;
}

export function duration(ms: number): string {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** Seconds as hours: small numbers have three digits after the point. */
export function hours(seconds: number): string {
  return (seconds / 3600).toLocaleString("en", { maximumFractionDigits: seconds < 36_000 ? 3 : 1 });
}

export function age(time: string | null, now_ms: number): string {
  return time ? duration(now_ms - Date.parse(time)) : "";
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

/** Time of day, with the day where that is not today. */
export function clock(time: string): string {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  return today ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

export function plural(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** `NVIDIA A100-SXM4-40GB` without the maker. */
export function model(name: string): string {
  return name.replace(/^NVIDIA /, "");
}

export const STATE_WORDS: Record<string, string> = { in_progress: "running", created: "draft" };

export function stateWord(state: string): string {
  return STATE_WORDS[state] ?? state;
}
