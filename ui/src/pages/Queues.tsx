import { useState } from "preact/hooks";
import { dequeue, moveTo, moveToQueue, perform } from "../actions";
import { mayChange, readOnly } from "../api";
import { cantle } from "../cli";
import { age, gpuAmount, plural } from "../format";
import { connection, nodes, now, queues, tasks } from "../live";
import { ActionButton, Filter, usePageCli } from "../parts/Controls";
import { QueueChart } from "../parts/QueueChart";
import { Says } from "../parts/Says";
import { link, param } from "../route";
import type { QueueView, TaskView } from "../types";

const SHOWN_AT_FIRST = 50;

/** The task that is being dragged, with its place. */
interface Dragged {
  task: TaskView;
  queue: string;
  from: number;
}

let dragged: Dragged | null = null;

function Waiting(props: { task: TaskView; queue: QueueView; place: number }) {
  const { task, queue, place } = props;
  const [over, setOver] = useState(false);
  const last = queue.waiting - 1;
  const movable = !readOnly.value && mayChange(task);
  const move = (to: number) => moveTo(task, place, to, queue.waiting);
  const onKey = (event: KeyboardEvent) => {
    const to = event.key === "ArrowUp" ? place - 1 : event.key === "ArrowDown" ? place + 1 : -1;
    if (!movable || !event.altKey || to < 0 || to > last) return;
    event.preventDefault();
    perform(move(to));
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    event.stopPropagation();
    setOver(false);
    if (!dragged) return;
    if (dragged.queue !== queue.name) perform(moveToQueue(dragged.task, queue.name));
    else if (dragged.from !== place) perform(moveTo(dragged.task, dragged.from, place, queue.waiting));
    dragged = null;
  };
  return (
    <li
      draggable={movable}
      class={over ? "over" : ""}
      data-task={task.name}
      onKeyDown={onKey}
      onDragStart={() => (dragged = { task, queue: queue.name, from: place })}
      onDragEnd={() => (dragged = null)}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      {movable && (
        <span class="grip" aria-hidden="true">
          ⠿
        </span>
      )}
      <span class="place">{place + 1}</span>
      <div class="what">
        <a href={link(`tasks/${task.id}`)}>{task.name}</a> <span class="muted">waits {age(task.created, now.value)}</span>
        <p class="muted">
          <Says text={task.reason ?? "no agent has considered it yet"} />
        </p>
      </div>
      <div class="row do">
        <ActionButton action={move(0)} label={`Move ${task.name} to the front`} disabled={place === 0}>
          ⤒
        </ActionButton>
        <ActionButton action={move(place - 1)} label={`Move ${task.name} up`} disabled={place === 0}>
          ↑
        </ActionButton>
        <ActionButton action={move(place + 1)} label={`Move ${task.name} down`} disabled={place === last}>
          ↓
        </ActionButton>
        <ActionButton action={move(last)} label={`Move ${task.name} to the back`} disabled={place === last}>
          ⤓
        </ActionButton>
        {movable && (
          <select
            aria-label={`Move ${task.name} to another queue`}
            value=""
            onChange={(event) => {
              perform(moveToQueue(task, event.currentTarget.value));
              event.currentTarget.value = "";
            }}
          >
            <option value="">to…</option>
            {queues.value
              .filter((other) => other.name !== queue.name)
              .map((other) => (
                <option key={other.id} value={other.name}>
                  {other.name}
                </option>
              ))}
          </select>
        )}
        <ActionButton action={dequeue(task)} label={`Remove ${task.name} from the queue`} danger>
          ✕
        </ActionButton>
      </div>
    </li>
  );
}

/** What tasks of a queue get, by the nodes that serve it. */
function served(queue: QueueView): string {
  const specs = nodes.value.flatMap((node) =>
    node.alive ? node.queues.filter((served) => served.name === queue.name).map((served) => `${node.node} (${served.spec})`) : [],
  );
  return specs.length > 0 ? `served by ${specs.join(", ")}` : "no agent serves it: its tasks wait forever";
}

function Queue({ queue }: { queue: QueueView }) {
  const [count, setCount] = useState(SHOWN_AT_FIRST);
  const waiting = queue.tasks.slice(0, count).map((id) => tasks.value.get(id));
  const running = [...tasks.value.values()].filter((task) => task.queue === queue.name && task.state === "in_progress");
  const drop = (event: DragEvent) => {
    event.preventDefault();
    if (dragged && dragged.queue !== queue.name) perform(moveToQueue(dragged.task, queue.name));
    dragged = null;
  };
  return (
    <section class="card queue" aria-label={`Queue ${queue.name}`} data-queue={queue.name} onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <h2>
        {queue.name}
        <span class="figures">
          <b>{queue.waiting}</b> waiting · <b>{queue.running}</b> running · {gpuAmount(running.reduce((sum, task) => sum + task.milli, 0))} held
        </span>
      </h2>
      <p class={queue.nodes.length > 0 ? "muted" : "failed"}>{served(queue)}</p>
      <QueueChart queue={queue.name} />
      {queue.waiting === 0 && <p class="muted">No task waits.</p>}
      <ol class="waitlist">
        {waiting.map((task, place) => task && <Waiting key={task.id} task={task} queue={queue} place={place} />)}
      </ol>
      {queue.tasks.length > count && (
        <button type="button" onClick={() => setCount(count * 2)}>
          Show more
        </button>
      )}
      {queue.waiting > Math.min(count, queue.tasks.length) && (
        <p class="muted">
          <a href={link("tasks", { status: "queued", queue: queue.name })}>{plural(queue.waiting - Math.min(count, queue.tasks.length), "task")}</a> behind these
        </p>
      )}
    </section>
  );
}

export function Queues() {
  usePageCli(cantle("queues"));
  const text = param("q").toLowerCase();
  const shown = queues.value.filter((queue) => queue.name.toLowerCase().includes(text));
  return (
    <>
      <div class="title">
        <h1>Queues</h1>
        <div class="filters">
          <Filter label="Queue" />
        </div>
      </div>
      <div class="queuegrid">
        {shown.map((queue) => (
          <Queue key={queue.id} queue={queue} />
        ))}
      </div>
      {shown.length === 0 && connection.value === "live" && <p class="card muted">There is no such queue.</p>}
    </>
  );
}
