import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call } from "../api";
import { cantle } from "../cli";
import { clock, plural } from "../format";
import { Select, usePageCli } from "../parts/Controls";
import { type Column, Rows } from "../parts/Rows";
import { Says } from "../parts/Says";
import { param, setParam } from "../route";
import type { AuditView } from "../types";

const EVERY_MS = 5000;
const MOST = 1000;

const records = signal<AuditView[]>([]);
const problem = signal("");

const text = (value: unknown): string => (value === null || value === undefined || value === "" ? "" : JSON.stringify(value));

const COLUMNS: Column<AuditView>[] = [
  { id: "time", head: "Time", width: "6.5rem", sort: (record) => record.id, cell: (record) => <time dateTime={record.time} title={record.time}>{clock(record.time)}</time> },
  { id: "user", head: "User", width: "minmax(5rem, 1fr)", sort: (record) => record.user, cell: (record) => <span title={record.user}>{record.user || "nobody"}</span> },
  { id: "from", head: "From", width: "7rem", narrow: "hidden", sort: (record) => record.from, cell: (record) => record.from },
  { id: "action", head: "Action", width: "minmax(7rem, 2fr)", sort: (record) => record.action, cell: (record) => record.action },
  { id: "about", head: "About", width: "minmax(5rem, 2fr)", narrow: "hidden", sort: (record) => record.subject, cell: (record) => <span title={record.subject}>{record.subject}</span> },
  {
    id: "outcome",
    head: "Outcome",
    width: "minmax(6rem, 3fr)",
    narrow: "below",
    sort: (record) => record.outcome,
    cell: (record) => (record.outcome === "done" ? <span title={`${text(record.before)} → ${text(record.after)}`}>done</span> : <Says text={record.outcome} />),
  },
];

/** The filters as the server and the command line take them. */
const wanted = () => ({ user: param("user"), action: param("action"), subject: param("about"), refused: param("refused") === "yes" });

async function load(): Promise<void> {
  const { refused, ...words } = wanted();
  const given = Object.fromEntries(Object.entries(words).filter(([, value]) => value !== ""));
  try {
    records.value = (await call<{ records: AuditView[] }>("cantle.get_audit", { ...given, refused, limit: MOST })).records.reverse();
    problem.value = "";
  } catch (error) {
    problem.value = String(error instanceof Error ? error.message : error);
  }
}

function Word({ name, label }: { name: string; label: string }) {
  return <input type="search" aria-label={label} placeholder={label} value={param(name)} onChange={(event) => setParam(name, event.currentTarget.value.trim())} />;
}

/** Who did what, for administrators. */
export function Audit() {
  const { user, action, subject, refused } = wanted();
  const flag = (name: string, value: string) => (value ? [name, value] : []);
  usePageCli(cantle("audit", ...flag("--user", user), ...flag("--action", action), ...flag("--about", subject), ...(refused ? ["--refused"] : [])));
  useEffect(() => {
    void load();
    const timer = setInterval(() => void load(), EVERY_MS);
    return () => clearInterval(timer);
  }, [user, action, subject, refused]);
  return (
    <>
      <div class="title">
        <h1>Audit</h1>
        <div class="filters">
          <Word name="user" label="User" />
          <Word name="action" label="Action" />
          <Word name="about" label="About" />
          <Select name="refused" label="Outcome" options={[["", "all"], ["yes", "refused"]]} />
        </div>
      </div>
      <p class="muted" role="status" data-testid="count">
        {problem.value || `${plural(records.value.length, "record")}, newest first`}
      </p>
      <Rows label="Audit" items={records.value} columns={COLUMNS} keyOf={(record) => String(record.id)} empty="No record matches." />
    </>
  );
}
