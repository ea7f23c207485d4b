import { param } from "../route";

/** The run whose results the page shows, as the server's calls take it; nothing for the newest one. */
export function ofRun(): { run?: number } {
  const run = Number(param("run"));
  return Number.isInteger(run) && run > 0 ? { run } : {};
}
