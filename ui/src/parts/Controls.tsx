import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { type Action, asking, execute, outcome, perform } from "../actions";
import { readOnly } from "../api";
import { param, setParam } from "../route";

/** The command line of the page, and of the button under the pointer or the focus. */
export const pageCli = signal("");
const buttonCli = signal<string | null>(null);

export function usePageCli(line: string): void {
  useEffect(() => {
    pageCli.value = line;
    buttonCli.value = null;
  }, [line]);
}

/** What a form has besides what was saved: what is typed while the server answers stays. */
export function unsaved<Texts extends Partial<Record<string, string>>>(now: Texts, saved: Texts): Texts {
  return Object.fromEntries(Object.entries(now).filter(([field, text]) => text !== saved[field])) as Texts;
}

/** A button that does something to a task, and shows how to do the same on the command line. */
export function ActionButton(props: { action: Action; children?: ComponentChildren; label?: string; disabled?: boolean; danger?: boolean }) {
  const { action, children, label, disabled = false, danger = false } = props;
  if (readOnly.value || action.allowed === false) return null;
  const show = () => (buttonCli.value = action.cli);
  const hide = () => (buttonCli.value = null);
  return (
    <button
      type="button"
      class={danger ? "danger" : ""}
      aria-label={label}
      title={`${label ?? action.label}\n$ ${action.cli}`}
      disabled={disabled}
      onMouseEnter={show}
      onFocus={show}
      onMouseLeave={hide}
      onBlur={hide}
      onClick={() => perform(action)}
    >
      {children ?? action.label}
    </button>
  );
}

function Copy({ text }: { text: string }) {
  return (
    <button type="button" class="quiet" aria-label="Copy the command line" title="Copy" onClick={() => void navigator.clipboard?.writeText(text)}>
      Copy
    </button>
  );
}

export function CliBar() {
  const line = buttonCli.value ?? pageCli.value;
  return (
    <footer class="cli" aria-label="The same on the command line">
      <code data-testid="cli">
        <span aria-hidden="true">$ </span>
        {line}
      </code>
      <Copy text={line} />
    </footer>
  );
}

export function Outcome() {
  const last = outcome.value;
  return (
    <div class="outcome" role="status" aria-live="polite">
      {last && (
        <div class={last.failed ? "card failed" : "card"}>
          <p>{last.text}</p>
          <code>$ {last.cli}</code>
          <button type="button" class="quiet" aria-label="Dismiss" onClick={() => (outcome.value = null)}>
            ✕
          </button>
        </div>
      )}
    </div>
  );
}

/** Opens a dialog as soon as it is drawn. */
export const openModal = (dialog: HTMLDialogElement | null): void => {
  if (dialog && !dialog.open) dialog.showModal();
};

export function Confirm() {
  const action = asking.value;
  if (!action) return null;
  return (
    <dialog ref={openModal} aria-labelledby="confirm-text" onClose={() => (asking.value = null)}>
      <p id="confirm-text">{action.confirm}</p>
      <p>
        <code>$ {action.cli}</code>
      </p>
      <form method="dialog" class="row end">
        <button type="submit">No</button>
        <button type="button" class="danger solid" onClick={() => void execute(action)}>
          Yes, {action.label.split(" ")[0]}
        </button>
      </form>
    </dialog>
  );
}

export function Filter({ label }: { label: string }) {
  return (
    <input
      type="search"
      data-filter
      aria-label={label}
      aria-keyshortcuts="/"
      placeholder={label}
      title={`${label} (press / to get here)`}
      value={param("q")}
      onInput={(event) => setParam("q", event.currentTarget.value)}
    />
  );
}

export function Select(props: { name: string; label: string; options: [value: string, text: string][]; value?: string }) {
  const { name, label, options } = props;
  const value = param(name, props.value ?? "");
  const fallback = props.value ?? "";
  return (
    <label class="select">
      <span>{label}</span>
      <select value={value} onChange={(event) => setParam(name, event.currentTarget.value === fallback ? "" : event.currentTarget.value)}>
        {options.map(([key, text]) => (
          <option key={key} value={key}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}
