import { cantle } from "../cli";
import { clock, plural } from "../format";
import { events, tasks } from "../live";
import { Filter, Select, usePageCli } from "../parts/Controls";
import { type Column, Rows } from "../parts/Rows";
import { Says } from "../parts/Says";
import { link, param } from "../route";
import type { EventView } from "../types";

const COLUMNS: Column<EventView>[] = [
  { id: "time", head: "Time", width: "6.5rem", sort: (event) => event.id, cell: (event) => <time dateTime={event.time}>{clock(event.time)}</time> },
  { id: "kind", head: "Kind", width: "6rem", sort: (event) => event.kind, cell: (event) => <span class="badge">{event.kind}</span> },
  {
    id: "task",
    head: "Task",
    width: "minmax(7rem, 1fr)",
    sort: (event) => event.task ?? "",
    cell: (event) => event.task && <a href={link(`tasks/${event.task}`)}>{tasks.value.get(event.task)?.name ?? event.task}</a>,
  },
  { id: "queue", head: "Queue", width: "minmax(5rem, 1fr)", narrow: "hidden", sort: (event) => event.queue ?? "", cell: (event) => event.queue },
  { id: "node", head: "Node", width: "minmax(5rem, 1fr)", narrow: "hidden", sort: (event) => event.node ?? "", cell: (event) => event.node },
  { id: "who", head: "Who", width: "minmax(4rem, 1fr)", narrow: "hidden", sort: (event) => event.who ?? "", cell: (event) => <span title={event.who}>{event.who}</span> },
  { id: "message", head: "What happened", width: "minmax(9rem, 4fr)", narrow: "below", cell: (event) => (
      <span title={event.message}>
        <Says text={event.message} />
      </span>
    ),
  },
];

export function Events() {
  const [kind, task, text] = [param("kind"), param("task"), param("q").toLowerCase()];
  usePageCli(cantle("events", ...(task ? ["--task", task] : [])));
  const kinds = [...new Set(events.value.map((event) => event.kind))].sort();
  const shown = events.value
    .filter(
      (event) =>
        (!kind || event.kind === kind) &&
        (!task || event.task === task) &&
        (!text || [event.message, event.queue, event.node, event.who, event.task && tasks.value.get(event.task)?.name].some((field) => field?.toLowerCase().includes(text))),
    )
    .reverse();
  return (
    <>
      <div class="title">
        <h1>Events</h1>
        <div class="filters">
          <Filter label="Message, task, queue, node, who" />
          <Select name="kind" label="Kind" options={[["", "all"], ...kinds.map((name): [string, string] => [name, name])]} />
        </div>
      </div>
      <p class="muted" role="status">
        {plural(shown.length, "event")}, newest first{task && " of one task"}
      </p>
      <Rows label="Events" items={shown} columns={COLUMNS} keyOf={(event) => String(event.id)} empty="No event matches." />
    </>
  );
}
