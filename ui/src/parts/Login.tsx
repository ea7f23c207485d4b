import { useEffect, useState } from "preact/hooks";
import { ApiError, logIn } from "../api";

export function Login() {
  const [problem, setProblem] = useState("");
  const [hasProvider, setHasProvider] = useState(false);
  useEffect(() => {
    const ask = async () => {
      const answer = await fetch("/ui/-/login/modes");
      setHasProvider(answer.ok && (await answer.json()).oidc === true);
    };
    // Without an answer the keys remain.
    ask().catch(() => setHasProvider(false));
  }, []);
  // Not a link of the page: the server sends the browser to the provider.
  const atProvider = () => location.assign(`/ui/-/login?next=${encodeURIComponent(location.pathname)}`);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    try {
      await logIn(String(form.get("access_key")).trim(), String(form.get("secret_key")).trim());
    } catch (error) {
      setProblem(error instanceof ApiError ? error.message : String(error));
    }
  };
  return (
    <main class="login">
      <form class="card" onSubmit={submit}>
        <h1>
          <img src="/ui/icon.svg" alt="" width="28" height="28" /> cantle
        </h1>
        <label>
          Access key
          <input name="access_key" autocomplete="username" required />
        </label>
        <label>
          Secret key
          <input name="secret_key" type="password" autocomplete="current-password" required />
        </label>
        {problem && <p role="alert">{problem}</p>}
        <button type="submit" class="solid">
          Log in
        </button>
        {hasProvider && (
          <button type="button" onClick={atProvider}>
            Log in with your organization
          </button>
        )}
        <p class="muted">
          The server printed its keys when it started; <code>cantle credentials</code> prints them again.
        </p>
      </form>
    </main>
  );
}
