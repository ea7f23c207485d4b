import { useEffect } from "preact/hooks";
import { may } from "../api";
import { cantle } from "../cli";
import { duration, gpuAmount } from "../format";
import { connection, events, loadProjects, nodes, pools, projects } from "../live";
import { Filter, usePageCli } from "../parts/Controls";
import { QuotaForm } from "../parts/QuotaForm";
import { link, param } from "../route";
import type { PoolQuota, ProjectView } from "../types";

/** What happens together is asked for once. */
const SETTLE_MS = 300;

/** Keeps the shares fresh as long as they are shown. */
function useProjects(): void {
  const live = connection.value === "live";
  const happened = events.value.at(-1)?.id;
  const given = nodes.value.flatMap((node) => node.gpus.map((gpu) => gpu.allocated_milli)).join();
  useEffect(() => {
    if (!live) return;
    // A server that does not answer is shown by the connection; the next change asks again.
    const timer = setTimeout(() => void loadProjects().catch(() => undefined), projects.value ? SETTLE_MS : 0);
    return () => clearTimeout(timer);
  }, [live, happened, given]);
}

const percent = (part: number) => `${(part * 100).toFixed(2)}%`;

/** What a project has, within its quota and beyond, against what it deserves and what is fair now. */
function ShareBar({ project, whole }: { project: ProjectView; whole: number }) {
  const { deserved_milli, fair_share_milli, allocated_milli, over_quota_milli, limit_milli } = project;
  const at = (milli: number) => percent(Math.min(1, milli / whole));
  const within = allocated_milli - over_quota_milli;
  return (
    <div class="sharebar" aria-hidden="true" data-testid="sharebar">
      <span class="within" style={{ width: at(within) }} />
      <span class="over" style={{ width: at(over_quota_milli) }} />
      {project.quota && (
        <>
          <i class="mark deserved" style={{ left: at(deserved_milli) }} />
          <i class="mark fair" style={{ left: at(fair_share_milli) }} />
        </>
      )}
      {limit_milli !== undefined && <i class="mark limit" style={{ left: `calc(${at(limit_milli)} - 2px)` }} />}
    </div>
  );
}

function Fact({ name, value, swatch }: { name: string; value: string; swatch?: string }) {
  return (
    <div>
      <dt>
        {swatch && (
          <span class="swatch sharebar" aria-hidden="true">
            <i class={swatch} />
          </span>
        )}
        {name}
      </dt>
      <dd>{value}</dd>
    </div>
  );
}

/** `1 of 2 GPUs, limit 3 GPUs` */
function ofPool({ allocated_milli, deserved, limit }: PoolQuota & { allocated_milli: number }): string {
  const held = `${allocated_milli / 1000} of ${gpuAmount(deserved)}`;
  return limit === undefined ? held : `${held}, limit ${gpuAmount(limit)}`;
}

function Project({ project, whole }: { project: ProjectView; whole: number }) {
  const { quota, limit_milli } = project;
  return (
    <section class="card" aria-label={`Project ${project.name}`} data-project={project.name}>
      <h2>
        <a href={link("tasks", { q: project.name })}>{project.name}</a>
        <span class="muted">
          {project.running} running, {project.waiting} waiting
        </span>
      </h2>
      <ShareBar project={project} whole={whole} />
      <dl class="facts">
        <Fact name="Allocated" value={gpuAmount(project.allocated_milli)} swatch="within" />
        {quota && <Fact name="Over quota" value={gpuAmount(project.over_quota_milli)} swatch="over" />}
        {quota && <Fact name="Quota" value={gpuAmount(project.deserved_milli)} swatch="mark deserved" />}
        {quota && <Fact name="Fair share" value={gpuAmount(project.fair_share_milli)} swatch="mark fair" />}
        {limit_milli !== undefined && <Fact name="Limit" value={gpuAmount(limit_milli)} swatch="mark limit" />}
        {quota?.max_time_s != null && <Fact name="Longest time" value={duration(1000 * quota.max_time_s)} />}
        {quota?.pools && <Fact name="Only pools" value={quota.pools.join(", ")} />}
        {Object.entries(project.by_pool ?? {}).map(([pool, share]) => (
          <Fact key={pool} name={`Of pool ${pool}`} value={ofPool(share)} />
        ))}
      </dl>
      {may("manage", project.name.slice(0, Math.max(0, project.name.lastIndexOf("/"))) || null) && (
        <details>
          <summary>{quota ? "Edit quota" : "No quota; grant one"}</summary>
          <QuotaForm project={project} />
        </details>
      )}
    </section>
  );
}

/** Named sets of GPUs; who may change them does it on the command line. */
function Pools() {
  return (
    <section class="card" aria-labelledby="pools">
      <h2 id="pools">Pools</h2>
      <dl class="facts">
        {pools.value.map(({ name, nodes = [], models = [], gpus, allocated_milli }) => (
          <Fact key={name} name={name} value={`${allocated_milli / 1000} of ${gpuAmount(1000 * gpus)} allocated: ${[...nodes, ...models].join(", ")}`} />
        ))}
      </dl>
    </section>
  );
}

export function Projects() {
  usePageCli(cantle("projects"));
  useProjects();
  const text = param("q").toLowerCase();
  const all = projects.value ?? [];
  const shown = all.filter((project) => project.name.toLowerCase().includes(text));
  const there = nodes.value.filter((node) => node.alive).reduce((sum, node) => sum + 1000 * node.gpus.length, 0);
  // One scale for all, so that bars can be compared; a guarantee may be larger than the present capacity.
  const whole = Math.max(1, there, ...all.flatMap((p) => [p.allocated_milli, p.deserved_milli, p.limit_milli ?? 0]));
  return (
    <>
      <div class="title">
        <h1>Projects</h1>
        <div class="filters">
          <Filter label="Project" />
        </div>
      </div>
      <p class="muted">Each bar is all {gpuAmount(whole)}. What a project does not use of its quota others use, until it asks for it.</p>
      <div class="nodegrid">
        {shown.map((project) => (
          <Project key={project.name} project={project} whole={whole} />
        ))}
      </div>
      {pools.value.length > 0 && <Pools />}
      {may("manage") && (
        <details class="card">
          <summary>Grant another project</summary>
          <QuotaForm />
        </details>
      )}
    </>
  );
}
