// Calls to the server: ClearML's own services and `cantle.*`, through the session of this page.

import { computed, signal } from "@preact/signals";
import type { Session, TaskView } from "./types";

/** `undefined`: not known yet; `null`: not logged in. */
export const session = signal<Session | null | undefined>(undefined);

/** May this page only look? The server refuses everything else; the page does not offer it. */
export const readOnly = computed(() => session.value?.read_only ?? true);

/** Has the user of this page the right in a project, or without one in all projects? */
export function may(right: string, project: string | null = null): boolean {
  const trees = session.value?.rights[right] ?? [];
  return trees.some((tree) => tree === "" || project === tree || (project?.startsWith(`${tree}/`) ?? false));
}

/** May the user of this page submit a task, in whatever project? */
export const maySubmit = () => !readOnly.value && (session.value?.rights["submit"] ?? []).length > 0;

/** May the user of this page stop, move or delete a task: is it theirs, or do they manage its project? */
export const mayChange = (task: TaskView) => task.user === session.value?.user_name || may("manage", task.project);

/** What the server said no to, in its own words. */
export class ApiError extends Error {
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

async function send(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(`/ui/-/${path}`, { ...init, credentials: "same-origin" });
  } catch {
    throw new ApiError(0, "the server does not answer");
  }
}

/** Calls `service.action`; throws an ApiError with the server's message. */
export async function call<T>(endpoint: string, body: object = {}): Promise<T> {
  const response = await send(`call/${endpoint}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": session.value?.csrf ?? "" },
    body: JSON.stringify(body),
  });
  const envelope = await response.json().catch(() => null);
  if (response.status === 401) {
    session.value = null;
  }
  if (!response.ok) {
    throw new ApiError(response.status, envelope?.meta?.result_msg ?? `HTTP status ${response.status}`);
  }
  return envelope.data as T;
}

/** Reads a JSON document of the page's own, such as `history`. */
export async function read<T>(path: string): Promise<T> {
  const response = await send(path, {});
  if (!response.ok) {
    throw new ApiError(response.status, `${path}: HTTP status ${response.status}`);
  }
  return (await response.json()) as T;
}

/** Who are we? */
export async function resume(): Promise<void> {
  const response = await send("session", {});
  if (response.status === 401) {
    session.value = null;
  } else if (response.ok) {
    session.value = (await response.json()) as Session;
  } else {
    throw new ApiError(response.status, `the server answers with HTTP status ${response.status}`);
  }
}

/** Exchanges a pair of keys for a session. */
export async function logIn(access_key: string, secret_key: string): Promise<void> {
  const response = await send("session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ access_key, secret_key }),
  });
  if (!response.ok) {
    throw new ApiError(response.status, response.status === 401 ? "the server rejected these keys" : `HTTP status ${response.status}`);
  }
  session.value = (await response.json()) as Session;
}

export async function logOut(): Promise<void> {
  await send("session", { method: "DELETE", headers: { "X-CSRF-Token": session.value?.csrf ?? "" } });
  session.value = null;
}
