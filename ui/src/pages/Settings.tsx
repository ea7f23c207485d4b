import { session } from "../api";
import { cantle } from "../cli";
import { usePageCli } from "../parts/Controls";
import { Sessions } from "../parts/Sessions";
import { THEMES, chooseTheme, theme } from "../theme";

/** A configuration for ClearML's clients; the secret is known to its owner only, never to this page. */
function clearmlConf(url: string, accessKey: string): string {
  return `api {
  web_server: ${url}/ui
  api_server: ${url}
  files_server: ${url}/files
  credentials {
    access_key: "${accessKey}"
    secret_key: "…"  # cantle credentials -o conf prints it
  }
}`;
}

export function Settings() {
  usePageCli(cantle("credentials", "-o", "conf"));
  const { access_key = "", url = "", open = false } = session.value ?? {};
  return (
    <>
      <div class="title">
        <h1>Settings</h1>
      </div>
      <section class="card" aria-labelledby="look">
        <h2 id="look">Look</h2>
        <fieldset class="row">
          <legend>Colors</legend>
          {THEMES.map((name) => (
            <label key={name}>
              <input type="radio" name="theme" checked={theme.value === name} onChange={() => chooseTheme(name)} /> {name}
            </label>
          ))}
        </fieldset>
      </section>
      <section class="card" aria-labelledby="access">
        <h2 id="access">Access</h2>
        <dl class="facts">
          <div>
            <dt>Server</dt>
            <dd>{url}</dd>
          </div>
          <div>
            <dt>Access key</dt>
            <dd>
              <code>{access_key}</code>
            </dd>
          </div>
        </dl>
        <h3>clearml.conf</h3>
        <p class="muted">For ClearML's SDK and agents. On the machine of the server, this command prints it with the secret key:</p>
        <pre tabIndex={0} aria-label="clearml.conf">
          {clearmlConf(url, access_key ?? "ACCESS KEY")}
        </pre>
      </section>
      {!open && <Sessions />}
    </>
  );
}
