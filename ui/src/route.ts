// The current view: only the URL stores it, including filters, so every view can be linked and shared.

import { computed, signal } from "@preact/signals";

const BASE = "/ui";
const href = signal(location.pathname + location.search);

/** Path below `/ui`, without slashes at its ends. */
export const path = computed(() => href.value.split("?")[0]!.slice(BASE.length).replace(/^\/+|\/+$/g, ""));
export const query = computed(() => new URLSearchParams(href.value.split("?")[1] ?? ""));

export function link(to: string, params: Record<string, string> = {}): string {
  const search = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "")).toString();
  return `${BASE}/${to}${search ? `?${search}` : ""}`;
}

export function go(url: string, how: "push" | "replace" = "push"): void {
  if (url === href.value) return;
  history[how === "push" ? "pushState" : "replaceState"](null, "", url);
  href.value = url;
  if (how === "push") window.scrollTo(0, 0);
}

/** Changes one filter; an empty value removes it. */
export function setParam(name: string, value: string): void {
  const params = new URLSearchParams(query.value);
  if (value === "") params.delete(name);
  else params.set(name, value);
  const search = params.toString();
  go(`${BASE}/${path.value}${search ? `?${search}` : ""}`, "replace");
}

/** A filter's value, or its default. */
export function param(name: string, otherwise = ""): string {
  return query.value.get(name) ?? otherwise;
}

export function listen(): void {
  addEventListener("popstate", () => (href.value = location.pathname + location.search));
  document.addEventListener("click", (event) => {
    const anchor = (event.target as Element).closest("a");
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!anchor || !plain || anchor.target || anchor.hasAttribute("download") || anchor.origin !== location.origin || !anchor.pathname.startsWith(BASE)) return;
    event.preventDefault();
    go(anchor.pathname + anchor.search);
  });
}
