import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api";
import { embedded } from "./objects";
import type { Figure, FromFrame, ToFrame } from "./frame";
import { useAsked } from "./useAsked";
import type { PlotEvent } from "./wire";
import { param } from "../route";
import { ofRun } from "./ofRun";

interface PlotSource {
  layout?: { images?: { source?: string }[] };
}

/** Plots as they were sent, with the pictures in them: the frame may not ask the server for anything. */
async function figures(events: PlotEvent[]): Promise<Figure[]> {
  return Promise.all(
    events.map(async ({ metric, variant, iter, plot_str }): Promise<Figure> => {
      const title = `${metric} / ${variant}`;
      try {
        const plot = JSON.parse(plot_str) as PlotSource & NonNullable<Figure["plot"]>;
        for (const image of plot.layout?.images ?? []) {
          if (image.source) image.source = await embedded(image.source);
        }
        return { title, iter, plot };
      } catch (error) {
        return { title, iter, problem: String(error) };
      }
    }),
  );
}

/**
 * Draws in a frame of its own, which has no access to the page and its session: what a task sends is a stranger's. The
 * drawing library is loaded there, and nowhere else.
 */
export function Frame({ events }: { events: PlotEvent[] }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [ready, setReady] = useState(false);
  const [height_px, setHeight] = useState(480);
  useEffect(() => {
    const hear = ({ source, data }: MessageEvent<FromFrame>) => {
      if (source !== frame.current?.contentWindow) return;
      if (data.kind === "ready") setReady(true);
      else setHeight(data.height_px);
    };
    addEventListener("message", hear);
    return () => removeEventListener("message", hear);
  }, []);
  useEffect(() => {
    if (!ready) return;
    void figures(events).then((shown) => {
      const message: ToFrame = { figures: shown };
      // A frame without an origin has no other address.
      frame.current?.contentWindow?.postMessage(message, "*");
    });
  }, [ready, events]);
  return <iframe ref={frame} class="plots" title="Plots" src="/ui/plots.html" sandbox="allow-scripts allow-downloads" style={{ height: `${height_px}px` }} data-testid="plots" />;
}

export function Plots({ task, live }: { task: string; live: boolean }) {
  const { answer, problem } = useAsked(() => call<{ plots: PlotEvent[] }>("events.get_task_plots", { task, ...ofRun(), iters: 1 }), `${task} ${param("run")}`, live);
  // The same plots drawn again would lose a zoom.
  const kept = useRef<{ text: string; events: PlotEvent[] }>({ text: "", events: [] });
  if (!answer) return <p class="muted">{problem || "…"}</p>;
  if (answer.plots.length === 0) return <p class="muted">The task has reported no plots.</p>;
  const text = JSON.stringify(answer.plots);
  if (kept.current.text !== text) kept.current = { text, events: answer.plots };
  return (
    <>
      <p class="muted">The newest of each plot.</p>
      <Frame events={kept.current.events} />
    </>
  );
}
