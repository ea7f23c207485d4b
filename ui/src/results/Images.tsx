import { useState } from "preact/hooks";
import { call } from "../api";
import { Filter } from "../parts/Controls";
import { param } from "../route";
import { Download } from "./Download";
import { address } from "./objects";
import { useAsked } from "./useAsked";
import type { ImageEvent } from "./wire";
import { ofRun } from "./ofRun";

/** Iterations of each image that are asked for, the newest ones. */
const ITERATIONS = 100;

function Sample({ url, label }: { url: string; label: string }) {
  const found = address(url);
  if (!found?.ours) return <Download uri={url} label={label} />;
  const name = found.href.toLowerCase();
  if (/\.(mp4|webm|mov)$/.test(name)) return <video controls preload="metadata" src={found.href} aria-label={label} />;
  if (/\.(mp3|wav|ogg|flac)$/.test(name)) return <audio controls preload="metadata" src={found.href} aria-label={label} />;
  if (/\.(png|jpe?g|gif|webp|bmp|svg)$/.test(name)) {
    return (
      <a href={found.href} target="_blank" rel="noreferrer">
        <img src={found.href} alt={label} loading="lazy" />
      </a>
    );
  }
  return <Download uri={url} label={label} />;
}

/** One line of images; the slider goes through its iterations. */
function Series({ title, events }: { title: string; events: ImageEvent[] }) {
  // Until the slider is moved, it follows the newest one.
  const [chosen, choose] = useState<number | null>(null);
  const at = Math.min(chosen ?? events.length - 1, events.length - 1);
  const event = events[at]!;
  return (
    <figure class="card image" data-image={title}>
      <figcaption>
        {title} <span class="muted">iteration {event.iter}</span>
      </figcaption>
      <Sample url={event.url} label={`${title}, iteration ${event.iter}`} />
      {events.length > 1 && (
        <input
          type="range"
          min="0"
          max={events.length - 1}
          value={at}
          aria-label={`Iteration of ${title}`}
          aria-valuetext={`iteration ${event.iter}`}
          onInput={({ currentTarget: { valueAsNumber } }) => choose(valueAsNumber === events.length - 1 ? null : valueAsNumber)}
        />
      )}
    </figure>
  );
}

export function Images({ task, live }: { task: string; live: boolean }) {
  const { answer, problem } = useAsked(() => call<{ events: ImageEvent[] }>("events.debug_images", { task, ...ofRun(), iters: ITERATIONS }), `${task} ${param("run")}`, live);
  if (!answer) return <p class="muted">{problem || "…"}</p>;
  if (answer.events.length === 0) return <p class="muted">The task has reported no debug samples.</p>;
  const wanted = param("q").toLowerCase();
  const series = Map.groupBy(answer.events, (event) => `${event.metric} / ${event.variant}`);
  const shown = [...series].filter(([title]) => title.toLowerCase().includes(wanted));
  return (
    <>
      <div class="filters start">
        <Filter label="Image" />
      </div>
      <div class="images">
        {shown.map(([title, events]) => (
          <Series key={title} title={title} events={events.toSorted((a, b) => a.iter - b.iter)} />
        ))}
      </div>
    </>
  );
}
