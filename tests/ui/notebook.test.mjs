// A notebook opens from the page of its task, and what it runs in the browser reaches neither the page nor the API.

import assert from "node:assert/strict";
import { chmodSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, until } from "./cantle.mjs";

// Code of a task that tries what a script of the page could do. The last word is the address of the server.
const HOSTILE = `#!/usr/bin/env python3
import http.server, json, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self): return ""
    def log_message(self, *words): pass
    def do_GET(self):
        if self.path.endswith("sw.js"):
            kind, body = "text/javascript", "self.addEventListener('fetch', () => {})"
        else:
            kind, body = "text/html", PAGE
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Service-Worker-Allowed", "/")
        self.send_header("Set-Cookie", "cantle_session=stolen; Path=/ui")
        self.end_headers()
        self.wfile.write(body.encode())
PAGE = """<!doctype html><h1>hostile</h1><pre id=found></pre><script>
const server = %s, found = {};
const tried = async (name, what) => { try { found[name] = String(await what()); } catch (error) { found[name] = "refused"; } };
(async () => {
  await tried("session", async () => (await fetch(server + "/ui/-/session", { credentials: "include" })).text());
  await tried("call", async () => (await fetch(server + "/ui/-/call/tasks.get_all", { method: "POST", credentials: "include", headers: { "x-csrf-token": "x" }, body: "{}" })).text());
  await tried("api", async () => (await fetch(server + "/cantle.get_tasks", { credentials: "include" })).text());
  await tried("own", async () => (await fetch("/ui/-/session", { credentials: "include" })).status);
  await tried("worker", async () => (await navigator.serviceWorker.register(location.pathname.replace(/lab$/, "sw.js"), { scope: "/" })).scope);
  await tried("opener", () => window.opener);
  await tried("cookie", () => document.cookie);
  await tried("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.src = server + "/ui";
    frame.onload = () => { try { done(frame.contentDocument ? "read" : "hidden"); } catch { done("hidden"); } };
    document.body.append(frame);
  }));
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>""" % json.dumps(sys.argv[-1])
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
(path,) = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--ServerApp.sock=")]
print("listens", flush=True)
Server(path, Handler).serve_forever()
`;

let cantle;
let page;

before(async () => {
  cantle = await Cantle.start("1xA100-40GB", "up", "--queue", "half=0.5");
  page = await open(cantle, "/tasks");
  await live(page);
});

after(async () => {
  await closeBrowser();
  await cantle.close();
});

test("a notebook opens from its page, with an origin of its own", async () => {
  const program = path.join(cantle.home, "hostile");
  writeFileSync(program, HOSTILE);
  chmodSync(program, 0o755);
  const address = cantle.cli("notebook", "--detach", "--queue", "half", "--jupyter", program, "--", cantle.url);
  const id = address.split("/").at(-1);
  await until("the notebook to listen", () => cantle.cli("logs", id).includes("listens"));
  await page.goto(`${cantle.url}/ui/tasks/${id}`);
  const opened = page.context().waitForEvent("page");
  await page.getByTestId("notebook").click();
  const notebook = await opened;
  await notebook.getByRole("heading", { name: "hostile" }).waitFor();
  assert.notEqual(new URL(notebook.url()).origin, new URL(cantle.url).origin);
  const found = JSON.parse(await until("its attempts", () => notebook.locator("#found").textContent()));
  assert.deepEqual(found, {
    session: "refused",
    call: "refused",
    api: "refused",
    own: "401",
    worker: "refused",
    opener: "null",
    cookie: "",
    frame: "hidden",
  });
  // The control: the page itself has all of that, and still has its own login.
  await page.reload();
  await live(page);
  assert.equal(await page.evaluate(async () => (await fetch("/ui/-/session")).status), 200);
  // The address of the command line opens it, too, and a browser without a login is asked for it.
  const other = await open(cantle, `/-/notebook/${id}`);
  await other.getByRole("heading", { name: "hostile" }).waitFor();
  const context = await page.context().browser().newContext();
  const stranger = await context.newPage();
  await stranger.goto(address);
  await stranger.getByLabel("Access key").waitFor();
  assert.ok(stranger.url().endsWith(`/ui/tasks/${id}`));
  // When the task has ended, a reload says so.
  cantle.cli("stop", id);
  await until("the task to end", () => cantle.json("tasks", id)[0].state === "stopped");
  await notebook.reload();
  await notebook.getByText("The task of this notebook has ended. It is stopped").waitFor();
  await notebook.getByRole("link", { name: "Page of the task" }).click();
  await live(notebook);
  assert.equal(new URL(notebook.url()).origin, new URL(cantle.url).origin);
  assert.equal(await notebook.getByTestId("notebook").count(), 0);
});
