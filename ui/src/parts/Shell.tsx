import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { logOut, may, readOnly, session } from "../api";
import { connection, taskList } from "../live";
import { go, link, path } from "../route";
import { CliBar, Confirm, Outcome, openModal } from "./Controls";

export const PAGES = [
  ["gpus", "GPUs", "g"],
  ["queues", "Queues", "q"],
  ["tasks", "Tasks", "t"],
  ["projects", "Projects", "p"],
  ["nodes", "Nodes", "n"],
  ["usage", "Usage", "u"],
  ["events", "Events", "e"],
  ["users", "Users", "w"],
  ["audit", "Audit", "a"],
  ["settings", "Settings", "s"],
] as const;

/** The pages that this user has something on. */
const offered = () => PAGES.filter(([id]) => (id !== "audit" && id !== "users") || may("administer"));

const helpOpen = signal(false);

/** `g` and a letter goes to a page, `/` to the filter, `?` shows the keys. */
function useKeys(): void {
  useEffect(() => {
    let afterG = 0;
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const typing = target.matches("input, select, textarea");
      if (event.key === "Escape" && typing) target.blur();
      if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
      const page = offered().find(([, , key]) => key === event.key);
      if (page && event.timeStamp - afterG < 1000) {
        afterG = 0;
        go(link(page[0]));
      } else if (event.key === "g") {
        afterG = event.timeStamp;
      } else if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLElement>("[data-filter]")?.focus();
      } else if (event.key === "?") {
        helpOpen.value = true;
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function Help() {
  if (!helpOpen.value) return null;
  const keys: [string, string][] = [
    ...offered().map(([, name, key]): [string, string] => [`g ${key}`, name]),
    ["/", "Filter"],
    ["Alt ↑ / Alt ↓", "Move the focused task in its queue"],
    ["?", "This list"],
  ];
  return (
    <dialog ref={openModal} aria-labelledby="help-title" onClose={() => (helpOpen.value = false)}>
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        {keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog" class="row end">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}

const CONNECTION = { connecting: "connecting…", live: "live", lost: "connection lost, trying again…" };

function Header() {
  const here = path.value.split("/")[0] || "gpus";
  const waiting = taskList.value.filter((task) => task.state === "queued").length;
  return (
    <header>
      <a class="brand" href={link("gpus")}>
        <img src="/ui/icon.svg" alt="" width="22" height="22" />
        cantle
      </a>
      <nav aria-label="Pages">
        {offered().map(([id, name, key]) => (
          <a key={id} href={link(id)} aria-current={here === id ? "page" : undefined} aria-keyshortcuts={`g ${key}`}>
            {name}
            {id === "queues" && waiting > 0 && (
              <span class="count" title={`${waiting} waiting`}>
                {waiting}
              </span>
            )}
          </a>
        ))}
      </nav>
      <span class={`connection ${connection.value}`} role="status" data-testid="connection">
        <i aria-hidden="true" />
        {CONNECTION[connection.value]}
      </span>
      {!session.value?.open && session.value && <span class="muted">{session.value.user_name}</span>}
      {readOnly.value && <span class="badge">read only</span>}
      <button type="button" class="quiet" aria-label="Keys" title="Keys (?)" onClick={() => (helpOpen.value = true)}>
        ?
      </button>
      {!session.value?.open && (
        <button type="button" class="quiet" onClick={() => void logOut()}>
          Log out
        </button>
      )}
    </header>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  useKeys();
  return (
    <>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <Header />
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <Outcome />
      <Confirm />
      <Help />
      <CliBar />
    </>
  );
}
