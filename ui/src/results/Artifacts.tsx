import { call } from "../api";
import { bytes } from "../format";
import { Download } from "./Download";
import { useAsked } from "./useAsked";
import type { Artifact, Model, ReportedTask } from "./wire";

function One({ artifact }: { artifact: Artifact }) {
  const preview = artifact.type_data?.preview;
  return (
    <li class="card" data-artifact={artifact.key}>
      <h3>{artifact.key}</h3>
      <p>
        <span class="badge">{artifact.type ?? "file"}</span> {artifact.mode === "input" && <span class="badge">input</span>}{" "}
        {artifact.content_size != null && <span class="muted">{bytes(artifact.content_size)} </span>}
        <Download uri={artifact.uri} label={artifact.key} />
      </p>
      {artifact.hash && (
        <p class="muted">
          SHA-256 <code>{artifact.hash}</code>
        </p>
      )}
      {preview && (
        <details>
          <summary>Preview</summary>
          <pre tabIndex={0}>{preview}</pre>
        </details>
      )}
    </li>
  );
}

function Models({ title, uses, models }: { title: string; uses: { name: string; model: string }[]; models: Map<string, Model> }) {
  if (uses.length === 0) return null;
  return (
    <section>
      <h2>{title}</h2>
      <ul class="plain">
        {uses.map((use) => {
          const model = models.get(use.model);
          return (
            <li class="card" key={`${use.name} ${use.model}`} data-model={model?.name ?? use.name}>
              <h3>{model?.name ?? use.name}</h3>
              <p>
                {model?.framework && <span class="badge">{model.framework}</span>} {model?.ready && <span class="badge">published</span>}{" "}
                {model ? <Download uri={model.uri} label={model.name} /> : <span class="muted">deleted</span>}
              </p>
              <p class="muted">
                Id <code>{use.model}</code>
              </p>
            </li>
          );
        })}
      </ul>
    </section>
  );
}

export function Artifacts({ task }: { task: ReportedTask }) {
  const artifacts = task.execution?.artifacts ?? [];
  const { input = [], output = [] } = task.models ?? {};
  const ids = [...new Set([...input, ...output].map((use) => use.model))].filter(Boolean);
  const ask = async () => (ids.length > 0 ? (await call<{ models: Model[] }>("models.get_all", { id: ids })).models : []);
  const models = new Map(useAsked(ask, ids.join()).answer?.map((model) => [model.id, model]));
  if (artifacts.length + ids.length === 0) return <p class="muted">The task has no artifacts and no models.</p>;
  return (
    <>
      <Models title="Output models" uses={output} models={models} />
      <Models title="Input models" uses={input} models={models} />
      {artifacts.length > 0 && (
        <section>
          <h2>Artifacts</h2>
          <ul class="plain">
            {artifacts.map((artifact) => (
              <One key={`${artifact.key} ${artifact.mode}`} artifact={artifact} />
            ))}
          </ul>
        </section>
      )}
    </>
  );
}
