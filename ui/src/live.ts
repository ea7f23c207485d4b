// The state of the page, kept current by one event stream. Components read the signals; nothing else polls the server.

import { batch, computed, signal } from "@preact/signals";
import { ApiError, call, resume } from "./api";
import type { EventView, NodeView, PoolView, ProjectView, QueueView, SuspendedView, TaskView } from "./types";

export const nodes = signal<NodeView[]>([]);

/** Whether a task is suspended, with the host memory that it takes. */
export function suspension(task: TaskView): SuspendedView | undefined {
  if (task.state !== "in_progress") return undefined;
  return nodes.value.find((node) => node.node === task.node)?.suspended?.find((found) => found.task === task.id);
}
export const queues = signal<QueueView[]>([]);
export const events = signal<EventView[]>([]);
/** As they were when somebody asked last, see `loadProjects`; `null`: nobody has. */
export const projects = signal<ProjectView[] | null>(null);
/** Asked for with the projects. */
export const pools = signal<PoolView[]>([]);
export const tasks = signal<ReadonlyMap<string, TaskView>>(new Map());

/** `live`: the stream is open and the first picture is complete. */
export const connection = signal<"connecting" | "live" | "lost">("connecting");

/** Ticks once a second, for ages and waiting times. */
export const now = signal(Date.now());

export function queueId(name: string): string {
  const queue = queues.value.find((candidate) => candidate.name === name);
  if (!queue) throw new ApiError(404, `there is no queue ${name}`);
  return queue.id;
}

/** Newest first: ids of tasks by time of creation. */
export const taskList = computed(() => [...tasks.value.values()].sort((a, b) => (a.created < b.created ? 1 : a.created > b.created ? -1 : 0)));

/** How many of the newest tasks the page has from the start, and how many it asks for at a time: the list is there with the first of them. */
const TASKS_AT_START = 10_000;
const TASKS_AT_A_TIME = 500;
const EVENTS_KEPT = 1_000;

/** Ids whose task came by the stream while the list is on its way: the stream is newer. Each load has a set of its own. */
let newer: Set<string> | null = null;

function mergeTasks(changed: TaskView[]): void {
  if (changed.length === 0) return;
  const merged = new Map(tasks.value);
  for (const task of changed) {
    merged.set(task.id, task);
    newer?.add(task.id);
  }
  tasks.value = merged;
}

function mergeEvents(fresh: EventView[]): void {
  const last = events.value.at(-1)?.id ?? -1;
  const added = fresh.filter((event) => event.id > last);
  if (added.length > 0) events.value = [...events.value, ...added].slice(-EVENTS_KEPT);
}

/** The changed ones in place of the old ones, in order of their names. */
function merged<T>(old: T[], changed: T[], idOf: (item: T) => string, nameOf: (item: T) => string): T[] {
  const byId = new Map([...old, ...changed].map((item) => [idOf(item), item]));
  return [...byId.values()].sort((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1));
}

const getTasks = async (what: object): Promise<TaskView[]> => (await call<{ tasks: TaskView[] }>("cantle.get_tasks", what)).tasks;

async function loadAll(): Promise<void> {
  const changed = (newer = new Set<string>());
  // A page that was cut off keeps its list until the new one is complete.
  const empty = tasks.value.size === 0;
  const found = new Map<string, TaskView>();
  const show = () => {
    const came = [...changed].flatMap((id) => tasks.value.get(id) ?? []);
    tasks.value = new Map([...found, ...came.map((task) => [task.id, task] as const)]);
  };
  // Running tasks may be older than the newest tasks.
  const [running, newest, log] = await Promise.all([
    getTasks({ status: ["in_progress"], limit: TASKS_AT_A_TIME }),
    getTasks({ limit: TASKS_AT_A_TIME }),
    call<{ events: EventView[] }>("cantle.get_events", { limit: EVENTS_KEPT }),
  ]);
  for (const task of [...running, ...newest]) found.set(task.id, task);
  batch(() => {
    if (empty) show();
    events.value = [];
    mergeEvents(log.events);
    connection.value = "live";
  });
  for (let last = newest; last.length === TASKS_AT_A_TIME && found.size < TASKS_AT_START; ) {
    last = await getTasks({ limit: TASKS_AT_A_TIME, older_than: last.at(-1)!.id });
    // The stream has restarted meanwhile.
    if (newer !== changed) return;
    for (const task of last) found.set(task.id, task);
    if (empty) show();
  }
  show();
  newer = null;
}

/** Fetches one task that is not in the list, e.g. an old one that a link points at. */
export async function fetchTask(id: string): Promise<void> {
  mergeTasks(await getTasks({ id: [id] }));
}

/** Questions about the projects so far, and the newest whose answer is shown. */
let asked = 0;
let shown = 0;

/** Shares follow from everything else, so they do not come by the stream: who shows them asks when something happened. */
export async function loadProjects(): Promise<void> {
  const question = ++asked;
  const [found, named] = await Promise.all([
    call<{ projects: ProjectView[] }>("cantle.get_projects"),
    call<{ pools: PoolView[] }>("cantle.get_pools"),
  ]);
  // Answers may overtake each other.
  if (question < shown) return;
  shown = question;
  batch(() => {
    projects.value = found.projects;
    pools.value = named.pools;
  });
}

/** Opens the stream and keeps it open; returns a function that closes it. */
export function connect(): () => void {
  let source: EventSource | null = null;
  let retry: ReturnType<typeof setTimeout> | undefined;
  let pause_ms = 250;
  const clock = setInterval(() => (now.value = Date.now()), 1000);

  const lose = () => {
    source?.close();
    connection.value = "lost";
    // It may be the session that ended, not the server: then there is a login to show.
    void resume().catch(() => undefined);
    clearTimeout(retry);
    retry = setTimeout(open, pause_ms);
    pause_ms = Math.min(pause_ms * 2, 5000);
  };
  const on = <T>(name: string, take: (data: T) => void) =>
    source?.addEventListener(name, (message) => take(JSON.parse((message as MessageEvent<string>).data) as T));
  function open() {
    source = new EventSource("/ui/-/stream");
    // The browser's own reconnect gives up on a refused connection; ours does not.
    source.onerror = lose;
    source.onopen = () => (pause_ms = 250);
    on<NodeView[]>("nodes", (changed) => (nodes.value = merged(nodes.value, changed, (node) => node.node, (node) => node.node)));
    on<QueueView[]>("queues", (changed) => (queues.value = merged(queues.value, changed, (queue) => queue.id, (queue) => queue.name)));
    on<QueueView[]>("all_queues", (all) => (queues.value = merged([], all, (queue) => queue.id, (queue) => queue.name)));
    on<TaskView[]>("tasks", mergeTasks);
    on<EventView[]>("events", mergeEvents);
    // First on each connection, and again after the server had to drop messages for a slow reader.
    on<unknown>("reset", () => void loadAll().catch(lose));
  }
  open();
  return () => {
    clearInterval(clock);
    clearTimeout(retry);
    source?.close();
  };
}
