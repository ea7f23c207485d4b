import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { type Action, perform } from "../actions";
import { call, session } from "../api";
import { cantle } from "../cli";
import { clock, duration, gpuAmount, gpus, plural } from "../format";
import { projects } from "../live";
import { ActionButton, Filter, unsaved, usePageCli } from "../parts/Controls";
import { Table } from "../parts/Table";
import { link, param } from "../route";
import type { NewKey, RoleView, UserLimits, UserView } from "../types";

const EVERY_MS = 5000;
/** Roles of people, the widest first. Agents are added on the command line, with their nodes. */
const ROLES = ["admin", "manager", "member", "viewer"];

const users = signal<UserView[] | null>(null);
const shared = signal<RoleView[]>([]);
const problem = signal("");
/** The key of a user who was just added. The server cannot show its secret again. */
const fresh = signal<NewKey | null>(null);

async function load(): Promise<void> {
  try {
    const found = await call<{ users: UserView[]; shared: RoleView[] }>("cantle.get_users");
    [users.value, shared.value, problem.value] = [found.users, found.shared, ""];
  } catch (error) {
    problem.value = error instanceof Error ? error.message : String(error);
  }
}

const inProject = (project?: string) => (project ? ["--project", project] : []);
const roleText = ({ role, project }: RoleView) => (project ? `${role} of ${project}` : role);

function setRole(given: RoleView, remove: boolean): Action {
  const { who, role, project } = given;
  return {
    label: remove ? `take ${roleText(given)} from ${who}` : `make ${who} ${roleText(given)}`,
    cli: cantle("users", "role", who, "--role", role, ...inProject(project), ...(remove ? ["--remove"] : [])),
    run: () => call("cantle.set_role", { ...given, remove }).then(load),
  };
}

function addUser(name: string, role: string, project: string): Action {
  return {
    label: `add ${name}`,
    cli: cantle("users", "add", name, "--role", role, ...inProject(project)),
    run: async () => {
      fresh.value = await call<NewKey>("cantle.add_user", { name, role, project: project || undefined });
      await load();
    },
  };
}

function removeUser({ name }: UserView): Action {
  return {
    label: `remove ${name}`,
    cli: cantle("users", "remove", name),
    confirm: `Remove “${name}”? All keys, logins and roles are revoked at once. Tasks stay, and keep the name.`,
    run: () => call("cantle.remove_user", { user: name }).then(load),
  };
}

/** A limit as the form has it: an empty field means none. */
interface Limit {
  label: string;
  flag: string;
  of: keyof UserLimits;
  /** Units of the server per unit of the form. */
  unit: number;
  step: number;
  word: (value: number) => string;
}

const LIMITS: Limit[] = [
  { label: "GPUs at once", flag: "--gpus", of: "gpu_milli", unit: 1000, step: 0.001, word: gpus },
  { label: "Tasks in queues", flag: "--queued", of: "queued", unit: 1, step: 1, word: String },
  { label: "Highest priority", flag: "--priority", of: "priority", unit: 1, step: 1, word: String },
  { label: "Longest time of a task, hours", flag: "--max-time", of: "time_s", unit: 3600, step: 0.001, word: (s) => `${s}s` },
];

function setLimits(user: UserView, limits: UserLimits): Action {
  const old = user.limits ?? {};
  const changed = LIMITS.filter(({ of }) => limits[of] !== old[of]);
  const flags = changed.flatMap(({ flag, of, word }) => [flag, limits[of] === undefined ? "none" : word(limits[of]!)]);
  return {
    label: `limit ${user.name}`,
    cli: cantle("users", "set", user.name, ...flags),
    run: () => call("cantle.set_user", { user: user.name, limits }).then(load),
  };
}

function LimitsForm({ user }: { user: UserView }) {
  // Only the edited fields: changes of others meanwhile show in the other fields.
  const [edits, setEdits] = useState<Partial<Record<keyof UserLimits, string>>>({});
  const old = user.limits ?? {};
  const shown = ({ of, unit }: Limit) => edits[of] ?? (old[of] === undefined ? "" : String(old[of]! / unit));
  const limits: UserLimits = {};
  for (const limit of LIMITS) {
    const text = shown(limit).trim();
    const same = edits[limit.of] === undefined ? old[limit.of] : undefined;
    if (text !== "") limits[limit.of] = same ?? Math.round(Number(text) * limit.unit);
  }
  const action = setLimits(user, limits);
  const save = { ...action, run: () => action.run().then(() => setEdits((now) => unsaved(now, edits))) };
  return (
    <form
      class="quota"
      aria-label={`Limits of ${user.name}`}
      onSubmit={(event) => {
        event.preventDefault();
        perform(save);
      }}
    >
      {LIMITS.map((limit) => (
        <label key={limit.of}>
          {limit.label}
          <input type="number" min={0} step={limit.step} placeholder="none" value={shown(limit)} onInput={({ currentTarget: { value } }) => setEdits((now) => ({ ...now, [limit.of]: value }))} />
        </label>
      ))}
      <div class="row">
        <button type="submit" class="solid" title={`$ ${action.cli}`}>
          Save
        </button>
      </div>
    </form>
  );
}

/** A role, and the project in which it holds. */
function RoleFields({ role, setRole, project, setProject }: { role: string; setRole: (role: string) => void; project: string; setProject: (project: string) => void }) {
  return (
    <>
      <label>
        Role
        <select value={role} onChange={(event) => setRole(event.currentTarget.value)}>
          {ROLES.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <label>
        In project
        <input type="text" list="projects" placeholder="all projects" value={project} onInput={(event) => setProject(event.currentTarget.value)} />
      </label>
    </>
  );
}

function RoleForm({ who }: { who: string }) {
  const [role, chooseRole] = useState("member");
  const [project, setProject] = useState("");
  const action = setRole({ who, role, ...(project.trim() && { project: project.trim() }) }, false);
  return (
    <form
      class="quota"
      aria-label={`Role of ${who}`}
      onSubmit={(event) => {
        event.preventDefault();
        perform(action);
      }}
    >
      <RoleFields role={role} setRole={chooseRole} project={project} setProject={setProject} />
      <div class="row">
        <button type="submit" class="solid" title={`$ ${action.cli}`}>
          Give
        </button>
      </div>
    </form>
  );
}

function Roles({ roles }: { roles: RoleView[] }) {
  if (roles.length === 0) return <p class="muted">No role.</p>;
  return (
    <ul class="row">
      {roles.map((role) => (
        <li key={roleText(role)} class="row">
          <span class="badge">{roleText(role)}</span>
          <ActionButton action={setRole(role, true)} label={`Take ${roleText(role)} from ${role.who}`}>
            ✕
          </ActionButton>
        </li>
      ))}
    </ul>
  );
}

/** How the user comes to the server. */
function kind(user: UserView): string {
  if (user.node) return `agent of node ${user.node}`;
  return user.external ? "identity provider" : "keys";
}

function limitsText({ gpu_milli, queued, priority, time_s }: UserLimits): string {
  const parts = [gpu_milli !== undefined && gpuAmount(gpu_milli), queued !== undefined && `${queued} queued`, priority !== undefined && `priority ${priority}`, time_s !== undefined && `${duration(1000 * time_s)} each`];
  return parts.filter(Boolean).join(", ");
}

function Row({ user }: { user: UserView }) {
  return (
    <tr>
      <th scope="row">
        <a href={link("tasks", { q: user.name })}>{user.name}</a>
      </th>
      <td>{kind(user)}</td>
      <td>{user.roles.map(roleText).join(", ") || <span class="muted">none</span>}</td>
      <td>{user.groups.join(", ")}</td>
      <td>{limitsText(user.limits ?? {})}</td>
      <td>{user.keys}</td>
      <td>{user.last_used ? <time dateTime={user.last_used}>{clock(user.last_used)}</time> : <span class="muted">never</span>}</td>
    </tr>
  );
}

/** What can be changed about one user. */
function Details({ user }: { user: UserView }) {
  return (
    <details class="card" data-user={user.name}>
      <summary>Change {user.name}</summary>
      <h3>Roles</h3>
      <Roles roles={user.roles} />
      {!user.node && <RoleForm who={user.name} />}
      <h3>Limits</h3>
      <LimitsForm user={user} />
      {user.id !== session.value?.user && (
        <p>
          <ActionButton action={removeUser(user)} danger>
            Remove
          </ActionButton>
        </p>
      )}
    </details>
  );
}

function Add() {
  const [name, setName] = useState("");
  const [role, chooseRole] = useState("member");
  const [project, setProject] = useState("");
  const action = addUser(name.trim(), role, project.trim());
  const add = { ...action, run: () => action.run().then(() => setName("")) };
  return (
    <details class="card">
      <summary>Add a user</summary>
      <form
        class="quota"
        aria-label="Add a user"
        onSubmit={(event) => {
          event.preventDefault();
          perform(add);
        }}
      >
        <label>
          Name
          <input type="text" required pattern="[A-Za-z0-9._@\-]{1,64}" title="Letters, digits and . - _ @" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <RoleFields role={role} setRole={chooseRole} project={project} setProject={setProject} />
        <div class="row">
          <button type="submit" class="solid" title={`$ ${action.cli}`}>
            Add
          </button>
        </div>
      </form>
    </details>
  );
}

/** Shown until it is dismissed: no page and no command can show the secret again. */
function Fresh() {
  if (!fresh.value) return null;
  const { user, access_key, secret_key } = fresh.value;
  return (
    <section class="card" role="status" aria-label="New key" data-testid="fresh">
      <p>
        The first key of <strong>{user}</strong>. Copy it now: the secret key is not shown again.
      </p>
      <pre tabIndex={0}>{`access_key: ${access_key}\nsecret_key: ${secret_key}`}</pre>
      <button type="button" onClick={() => (fresh.value = null)}>
        Done
      </button>
    </section>
  );
}

/** Users with their roles and limits, for administrators. */
export function Users() {
  usePageCli(cantle("users", "list"));
  useEffect(() => {
    void load();
    const timer = setInterval(() => void load(), EVERY_MS);
    return () => {
      clearInterval(timer);
      fresh.value = null;
    };
  }, []);
  const text = param("q").toLowerCase();
  const all = users.value ?? [];
  const words = (user: UserView) => [user.name, ...user.groups, ...user.roles.map(roleText)].join(" ").toLowerCase();
  const shown = all.filter((user) => words(user).includes(text));
  return (
    <>
      <div class="title">
        <h1>Users</h1>
        <div class="filters">
          <Filter label="User, role or project" />
        </div>
      </div>
      <p class="muted" role="status" data-testid="count">
        {problem.value || (shown.length === all.length ? plural(all.length, "user") : `${shown.length} of ${plural(all.length, "user")}`)}
      </p>
      <Fresh />
      <Table label="Users" heads={["User", "Comes with", "Roles", "Groups", "Limits", "Keys", "Last used"]}>
        {shown.map((user) => (
          <Row key={user.id} user={user} />
        ))}
      </Table>
      {shared.value.length > 0 && (
        <section class="card" aria-labelledby="shared">
          <h2 id="shared">Roles of groups and of everybody</h2>
          <ul>
            {shared.value.map((role) => (
              <li key={`${role.who} ${roleText(role)}`}>
                {role.who}: {roleText(role)} <ActionButton action={setRole(role, true)}>Take away</ActionButton>
              </li>
            ))}
          </ul>
        </section>
      )}
      <datalist id="projects">
        {(projects.value ?? []).map(({ name }) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      {shown.map((user) => (
        <Details key={user.id} user={user} />
      ))}
      <Add />
    </>
  );
}
