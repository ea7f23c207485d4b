// The frame in which plots are drawn: it gets them from the page around it, and reports its height.

import Plotly from "plotly.js-strict-dist-min";
import "./frame.css";

export interface Figure {
  title: string;
  iter: number;
  /** Plotly's own JSON. */
  plot?: { data?: unknown[]; layout?: Record<string, unknown>; frames?: unknown[] };
  /** Why it cannot be drawn. */
  problem?: string;
}

export interface ToFrame {
  figures: Figure[];
}

export type FromFrame = { kind: "ready" } | { kind: "height"; height_px: number };

const CONFIG = { responsive: true, displaylogo: false };

const tell = (message: FromFrame) => parent.postMessage(message, "*");

/** Those in sight are drawn: each costs time and memory. */
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    draw.get(target)?.();
  }
}, { rootMargin: "400px" });
const draw = new WeakMap<Element, () => void>();

function section({ title, iter, plot, problem }: Figure): HTMLElement {
  const [box, head, body] = [document.createElement("section"), document.createElement("h2"), document.createElement("div")];
  head.textContent = `${title}, iteration ${iter}`;
  box.dataset["plot"] = title;
  box.append(head, body);
  if (!plot) {
    body.textContent = `This plot is not readable: ${problem}`;
    return box;
  }
  body.className = "plot";
  // The title is above; a size that was meant for another page would not fit here.
  const layout = { ...plot.layout, width: undefined, autosize: true };
  draw.set(body, () => {
    Plotly.newPlot(body, plot.data ?? [], layout, CONFIG).then(
      () => (box.dataset["drawn"] = "yes"),
      (error: unknown) => (body.textContent = `Plotly cannot draw this: ${String(error)}`),
    );
  });
  seen.observe(body);
  return box;
}

addEventListener("message", ({ source, data }: MessageEvent<ToFrame>) => {
  if (source !== parent) return;
  for (const old of document.querySelectorAll(".plot")) Plotly.purge(old);
  document.body.replaceChildren(...data.figures.map(section));
});
new ResizeObserver(() => tell({ kind: "height", height_px: Math.ceil(document.body.getBoundingClientRect().height) })).observe(document.body);
tell({ kind: "ready" });
