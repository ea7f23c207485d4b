import { cantle } from "../cli";
import { age, bytes, gpus, model, plural } from "../format";
import { connection, nodes, now } from "../live";
import { Filter, usePageCli } from "../parts/Controls";
import { link, param } from "../route";
import type { NodeView } from "../types";

/** `3 × A100-SXM4-40GB, 1 × H100…` */
function models(node: NodeView): string {
  const counts = new Map<string, number>();
  for (const gpu of node.gpus) counts.set(gpu.model, (counts.get(gpu.model) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} × ${model(name)}`).join(", ");
}

function Node({ node }: { node: NodeView }) {
  const given = node.gpus.reduce((sum, gpu) => sum + gpu.allocated_milli, 0);
  const memory = node.gpus.reduce((sum, gpu) => sum + gpu.memory_bytes, 0);
  const slices = node.gpus.flatMap((gpu) => gpu.slices);
  const used = slices.reduce((sum, slice) => sum + slice.memory_used_bytes, 0);
  const share = node.gpus.length > 0 ? given / (1000 * node.gpus.length) : 0;
  return (
    <section class="card" aria-label={`Node ${node.node}`}>
      <h2>
        <a href={link("gpus", { q: node.node })}>{node.node}</a>
        <span class={node.alive ? "badge in_progress" : "badge failed"}>{node.alive ? "alive" : "gone"}</span>
      </h2>
      <p class="muted">
        {node.alive ? "agent" : "last report"} {node.alive ? node.worker : `${age(node.last_seen, now.value)} ago`}
      </p>
      <meter aria-label={`${gpus(given)} of ${plural(node.gpus.length, "GPU")} allocated`} value={share} />
      <dl class="facts">
        <div>
          <dt>GPUs</dt>
          <dd>{models(node) || "none"}</dd>
        </div>
        <div>
          <dt>Allocated</dt>
          <dd>
            {gpus(given)} of {plural(node.gpus.length, "GPU")}, {plural(slices.length, "slice")}
          </dd>
        </div>
        <div>
          <dt>Memory used</dt>
          <dd>
            {bytes(used)} of {bytes(memory)}
          </dd>
        </div>
        <div>
          <dt>Queues</dt>
          <dd>
            {node.queues.map((queue) => (
              <a key={queue.name} class="badge" href={link("queues", { q: queue.name })}>
                {queue.name}={queue.spec}
              </a>
            ))}
          </dd>
        </div>
      </dl>
    </section>
  );
}

export function Nodes() {
  usePageCli(cantle("nodes"));
  const text = param("q").toLowerCase();
  const shown = nodes.value.filter((node) => [node.node, node.worker, models(node)].some((name) => name.toLowerCase().includes(text)));
  return (
    <>
      <div class="title">
        <h1>Nodes</h1>
        <div class="filters">
          <Filter label="Node, agent, model" />
        </div>
      </div>
      <div class="nodegrid">
        {shown.map((node) => (
          <Node key={node.node} node={node} />
        ))}
      </div>
      {shown.length === 0 && connection.value === "live" && <p class="card muted">No node has reported.</p>}
    </>
  );
}
