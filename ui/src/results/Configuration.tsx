import type { ReportedTask } from "./wire";

function Text({ title, text }: { title: string; text: string | undefined }) {
  if (!text) return null;
  return (
    <details class="card" data-text={title}>
      <summary>{title}</summary>
      <pre tabIndex={0}>{text}</pre>
    </details>
  );
}

/** Where a task's code comes from, as far as it says so. */
function Source({ task: { script, container } }: { task: ReportedTask }) {
  const rows: [string, string | undefined][] = [
    ["Repository", script?.repository],
    ["Branch", script?.branch],
    ["Commit", script?.version_num],
    ["Entry point", script?.entry_point],
    ["Directory", script?.working_dir],
    ["Image", container?.image],
    ["Arguments", container?.arguments],
  ];
  const given = rows.filter((row): row is [string, string] => Boolean(row[1]));
  if (given.length === 0) return null;
  return (
    <section class="card" aria-labelledby="source">
      <h2 id="source">Code</h2>
      <dl class="facts">
        {given.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

export function Configuration({ task }: { task: ReportedTask }) {
  const sections = Object.entries(task.hyperparams ?? {}).filter(([, params]) => Object.keys(params).length > 0);
  const objects = Object.values(task.configuration ?? {});
  return (
    <>
      {sections.length === 0 && <p class="muted">The task has no hyperparameters.</p>}
      <div class="graphs">
        {sections.map(([name, params]) => (
          <section class="card" key={name} aria-label={name} data-section={name}>
            <h2>{name}</h2>
            <dl class="facts">
              {Object.values(params).map((param) => (
                <div key={param.name} title={param.description}>
                  <dt>{param.name}</dt>
                  <dd>{param.value}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <Source task={task} />
      {objects.map((object) => (
        <Text key={object.name} title={`Configuration: ${object.name}`} text={object.value} />
      ))}
      <Text title="Uncommitted changes, or the whole script" text={task.script?.diff} />
      <Text title="Python packages" text={task.script?.requirements?.pip} />
      <Text title="Setup script of the container" text={task.container?.setup_shell_script} />
    </>
  );
}
