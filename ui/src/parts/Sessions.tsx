import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, may } from "../api";
import { cantle } from "../cli";
import { clock } from "../format";
import { param, setParam } from "../route";
import type { SessionView } from "../types";
import { type Column, Rows } from "./Rows";

const sessions = signal<SessionView[]>([]);
const problem = signal("");

const wantsAll = () => may("administer") && param("sessions") === "all";

async function load(): Promise<void> {
  try {
    sessions.value = (await call<{ sessions: SessionView[] }>("cantle.get_sessions", { all: wantsAll() })).sessions.reverse();
    problem.value = "";
  } catch (error) {
    problem.value = String(error instanceof Error ? error.message : error);
  }
}

async function end({ id }: SessionView): Promise<void> {
  try {
    await call("cantle.end_sessions", { session: id });
  } catch (error) {
    problem.value = String(error instanceof Error ? error.message : error);
    return;
  }
  // If it was the session of this page, the login appears.
  await load();
}

const COLUMNS: Column<SessionView>[] = [
  { id: "user", head: "User", width: "minmax(5rem, 1fr)", sort: (session) => session.user, cell: (session) => session.user },
  { id: "where", head: "Where", width: "minmax(6rem, 2fr)", sort: (session) => session.via, cell: (session) => <span title={session.client}>{session.is_own ? "this page" : session.via}</span> },
  { id: "from", head: "From", width: "8rem", narrow: "hidden", sort: (session) => session.last_used_from, cell: (session) => session.last_used_from },
  { id: "used", head: "Last used", width: "6.5rem", sort: (session) => session.last_used, cell: (session) => <time dateTime={session.last_used} title={session.last_used}>{clock(session.last_used)}</time> },
  {
    id: "end",
    head: "Action",
    width: "5rem",
    cell: (session) => (
      <button type="button" title={cantle("users", "session", "end", session.id)} aria-label={`End the session of ${session.user} from ${session.last_used_from}`} onClick={() => void end(session)}>
        End
      </button>
    ),
  },
];

/** The logins of the user, or for administrators those of everybody. */
export function Sessions() {
  const all = wantsAll();
  useEffect(() => void load(), [all]);
  return (
    <section class="card" aria-labelledby="sessions">
      <h2 id="sessions">Sessions</h2>
      <p class="muted">
        Logins in browsers and with <code>cantle login</code>. A session that you end is refused at once.
      </p>
      {may("administer") && (
        <label>
          <input type="checkbox" checked={all} onChange={() => setParam("sessions", all ? "" : "all")} /> of all users
        </label>
      )}
      {problem.value && <p role="alert">{problem.value}</p>}
      <Rows label="Sessions" items={sessions.value} columns={COLUMNS} keyOf={(session) => session.id} empty="There is no session." />
    </section>
  );
}
