import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../api";

const AGAIN_MS = 5000;

/** What the server answers; asked again and again while it may still change. `problem` is why there is no answer. */
export function useAsked<T>(ask: () => Promise<T>, key: string, live = false): { answer: T | null; problem: string } {
  const [state, setState] = useState<{ answer: T | null; problem: string }>({ answer: null, problem: "" });
  useEffect(() => {
    let ended = false;
    const load = () =>
      void ask().then(
        (answer) => !ended && setState({ answer, problem: "" }),
        // The last answer stays: the header reports a lost connection.
        (error) => !ended && setState((old) => ({ ...old, problem: error instanceof ApiError ? error.message : String(error) })),
      );
    load();
    const timer = live ? setInterval(load, AGAIN_MS) : undefined;
    return () => {
      ended = true;
      clearInterval(timer);
    };
  }, [key, live]);
  return state;
}
