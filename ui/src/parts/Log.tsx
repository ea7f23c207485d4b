import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, call } from "../api";
import { ofRun } from "../results/ofRun";
import type { LogEvent } from "../types";

const PAGE = 500;
const KEPT = 2000;
const PAUSE_MS = 1000;

interface LogPage {
  events: LogEvent[];
  position: number;
}

/** The end of a task's output, growing while it runs, or why the user may not read it. */
function useLog(task: string, live: boolean): { lines: string[]; refused: string } {
  const [lines, setLines] = useState<string[]>([]);
  const [refused, setRefused] = useState("");
  const position = useRef(0);
  const { run } = ofRun();
  useEffect(() => {
    setLines([]);
    setRefused("");
    position.current = 0;
  }, [task, run]);
  useEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout>;
    const load = async () => {
      try {
        const page = await call<LogPage>("events.get_task_log", { task, run, batch_size: PAGE, after: position.current });
        if (ended) return;
        position.current = page.position ?? position.current;
        const fresh = page.events.map((event) => (event.msg ?? "").replace(/\n$/, ""));
        if (fresh.length > 0) setLines((old) => [...old, ...fresh].slice(-KEPT));
        if (page.events.length === PAGE) return void load();
      } catch (error) {
        if (error instanceof ApiError && error.code === 403) {
          if (!ended) setRefused(error.message);
          return;
        }
        // The header reports the lost connection; the next attempt may succeed.
      }
      if (live && !ended) timer = setTimeout(load, PAUSE_MS);
    };
    void load();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [task, run, live]);
  return { lines, refused };
}

export function Log({ task, live }: { task: string; live: boolean }) {
  const { lines, refused } = useLog(task, live);
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const onScroll = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current!;
    atEnd.current = scrollTop + clientHeight >= scrollHeight - 4;
  };
  return (
    <pre class="log" ref={box} onScroll={onScroll} tabIndex={0} aria-label="Output" data-testid="log">
      {lines.length > 0 ? lines.join("\n") : <span class="muted">{refused || "No output yet."}</span>}
    </pre>
  );
}
