"""Notebooks at the server's own address: the way in, what passes and what does not, and who may open one (docs/guide/day.md)."""

import base64
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import time
import urllib.parse

import pytest

from conftest import CANTLE, wait_until

QUEUE = ("--queue", "eighth=0.125")
# Stands for code of a task that is not JupyterLab: what it gets from a browser is its answer, and it asks the browser for what it must not get.
HOSTILE = r'''#!/usr/bin/env python3
import base64, hashlib, json, os, socket, sys, threading

def head(guest):
    text = b""
    while b"\r\n\r\n" not in text:
        piece = guest.recv(1)
        if not piece:
            return None
        text += piece
    lines = text.decode("latin-1").split("\r\n")
    return lines[0], {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:] if line)}

def talk(guest):
    while found := head(guest):
        line, headers = found
        if headers.get("upgrade") == "websocket":
            key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            guest.sendall(f"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\nSet-Cookie: a=b\r\n\r\n".encode())
            while piece := guest.recv(1 << 16):
                guest.sendall(piece.upper())
            return
        body = guest.recv(int(headers["content-length"])) if headers.get("content-length", "0") != "0" else b""
        answer = json.dumps({"line": line, "headers": headers, "body": body.decode(), "environment": sorted(os.environ)}).encode()
        hostile = [f"Set-Cookie: cantle_session={'x' * 8}; Path=/", "Clear-Site-Data: \"cookies\"", "Service-Worker-Allowed: /", "Alt-Svc: h3=\":1\"",
                   "Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: true", "X-Kept: yes", "Location: http://localhost/else"]
        guest.sendall(("HTTP/1.1 200 OK\r\n" + "\r\n".join(hostile) + f"\r\nContent-Length: {len(answer)}\r\n\r\n").encode() + answer)

(path,) = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--ServerApp.sock=")]
door = socket.socket(socket.AF_UNIX)
door.bind(path)
door.listen()
print("listens", flush=True)
while True:
    threading.Thread(target=talk, args=(door.accept()[0],)).start()
'''


class Browser:
    """Keeps cookies as a browser does: those of a host go to all of its ports, by their path."""

    def __init__(self, server, authority=None):
        self.server = server
        self.cookies = {}
        self.tls = ssl.create_default_context(cafile=authority) if authority else None

    def send(self, method, url, body=None, headers=None, cookies=True):
        to = urllib.parse.urlsplit(url)
        if self.tls:
            client = http.client.HTTPSConnection(to.hostname, to.port, timeout=60, context=self.tls)
        else:
            client = http.client.HTTPConnection(to.hostname, to.port, timeout=60)
        sent = {name: value for (name, path), value in self.cookies.items() if (to.path + "/").startswith(path.rstrip("/") + "/")}
        headers = {"Accept": "text/html", **({"Cookie": "; ".join(f"{n}={v}" for n, v in sent.items())} if sent and cookies else {}), **(headers or {})}
        client.request(method, to.path + (f"?{to.query}" if to.query else ""), body=body, headers=headers)
        answer = client.getresponse()
        answer.text = answer.read().decode(errors="replace")
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                pair, *rest = [part.strip() for part in value.split(";")]
                path = next(part[5:] for part in rest if part.lower().startswith("path="))
                self.cookies[(pair.split("=", 1)[0], path)] = pair.split("=", 1)[1]
        return answer

    def get(self, url, **headers):
        return self.send("GET", url, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def log_in(self, access_key, secret_key):
        body = json.dumps({"access_key": access_key, "secret_key": secret_key})
        answer = self.send("POST", f"{self.server}/ui/-/session", body, {"Content-Type": "application/json"})
        assert answer.status == 200, answer.text
        return self

    def open(self, address):
        """Follows the way to the notebook, until it is no redirection; the address at which it ends, and the answer."""
        for _ in range(5):
            answer = self.get(address)
            if answer.status not in (302, 303, 307):
                return address, answer
            address = urllib.parse.urljoin(address, answer.getheader("location"))
        raise AssertionError(f"it goes in circles: {address}")


def server_of(cantle):
    return re.search(r"http://127\.0\.0\.1:\d+", cantle.log("up.log"))[0]


def browser(cantle, name=None, *role):
    """Of the administrator, or of a new user."""
    if name is None:
        keys = json.loads(cantle.cli("-o", "json", "credentials").stdout)["items"][0]
    else:
        keys = json.loads(cantle.cli("-o", "json", "users", "add", name, *role).stdout)["items"][0]
    return Browser(server_of(cantle)).log_in(keys["access_key"], keys["secret_key"]), keys


def as_user(cantle, keys, *words):
    env = cantle.env | {"CLEARML_API_ACCESS_KEY": keys["access_key"], "CLEARML_API_SECRET_KEY": keys["secret_key"], "CANTLE_SERVER": server_of(cantle)}
    done = subprocess.run(cantle.machine.command(CANTLE, *words), env=env, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def hostile(cantle, *words, keys=None):
    """A task whose notebook is the hostile one; its address at the server, and its id."""
    program = cantle.home / "hostile"
    program.write_text(HOSTILE)
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    start = ["notebook", "--detach", "--queue", "eighth", "--jupyter", str(program), *words]
    address = as_user(cantle, keys, *start) if keys else cantle.cli(*start).stdout.strip()
    task = address.rsplit("/", 1)[1]
    assert address == f"{server_of(cantle)}/ui/-/notebook/{task}"
    wait_until(lambda: "listens" in cantle.output(task), 60, lambda: cantle.output(task))
    return address, task


def test_a_browser_with_a_login_reaches_the_notebook_and_nothing_else_goes_with_it(cantle):
    cantle.up(*QUEUE)
    mine, _ = browser(cantle)
    address, task = hostile(cantle)
    at, answer = mine.open(address)
    assert answer.status == 200 and urllib.parse.urlsplit(at).path == f"/{task}/lab"
    assert urllib.parse.urlsplit(at).port != urllib.parse.urlsplit(address).port
    got = json.loads(answer.text)
    # The browser sends the cookie of the page where the path fits, as for /ui; none goes to the task. The token is the task's own.
    got_at_ui = json.loads(mine.send("GET", at, headers={"Cookie": f"cantle_session=secret; {cookie_line(mine)}", "Authorization": "Basic eDp5"}).text)
    for seen in (got, got_at_ui):
        assert "cookie" not in seen["headers"] and "referer" not in seen["headers"], seen
        assert re.fullmatch(r"token [0-9a-f]{48}", seen["headers"]["authorization"]) and seen["headers"]["host"] == "localhost"
    # Nothing that reaches beyond the notebook comes back.
    names = {name.lower() for name, _ in answer.getheaders()}
    assert "x-kept" in names
    assert not names & {"set-cookie", "clear-site-data", "service-worker-allowed", "alt-svc", "access-control-allow-origin"}, names
    assert answer.getheader("location") == f"{at.removesuffix(f'/{task}/lab')}/else"
    assert "frame-ancestors 'self'" in answer.getheader("content-security-policy")
    # A body goes through as it is.
    posted = mine.send("POST", at, "x" * 1000, {"Content-Type": "text/plain"})
    assert json.loads(posted.text)["body"] == "x" * 1000
    # As a websocket, too.
    assert websocket(at, cookie_line(mine), origin=at.split(f"/{task}")[0]) == b"HELLO"
    # The way in is in the audit.
    audit = [record for record in cantle.json("audit") if record["action"] == "cantle.open_notebook"]
    assert [record["subject"] for record in audit] == [task], audit


def cookie_line(of):
    return "; ".join(f"{name}={value}" for (name, path), value in of.cookies.items() if name == "cantle_notebook")


def switched(at, cookie, origin, site="same-origin"):
    """A connection that asks for a websocket, and the first line of the answer."""
    to = urllib.parse.urlsplit(at)
    client = socket.create_connection((to.hostname, to.port), timeout=60)
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {to.path} HTTP/1.1", f"Host: {to.netloc}", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}", f"Origin: {origin}", f"Cookie: {cookie}", f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: websocket",
    ]  # fmt: skip
    client.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = client.recv(1)
        assert piece, answer
        answer += piece
    assert b"set-cookie" not in answer.lower(), answer
    return client, answer.split(b"\r\n")[0]


def websocket(at, cookie, origin, site="same-origin"):
    """What an open websocket answers to `hello`; the status line if it is refused."""
    client, status = switched(at, cookie, origin, site)
    with client:
        if b" 101 " not in status:
            return status
        client.sendall(b"hello")
        return client.recv(100)


class Channel:
    """As much of RFC 6455 as messages of Jupyter need."""

    def __init__(self, at, cookie, origin):
        self.client, status = switched(at, cookie, origin)
        assert b" 101 " in status, status

    def send(self, text):
        payload, mask = text.encode(), os.urandom(4)
        length = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0x80 | 126]) + len(payload).to_bytes(2, "big")
        self.client.sendall(b"\x81" + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)))

    def take(self, length):
        taken = b""
        while len(taken) < length:
            piece = self.client.recv(length - len(taken))
            if not piece:
                raise ConnectionError("closed")
            taken += piece
        return taken

    def receive(self):
        """The next text."""
        while True:
            kind, length = self.take(2)
            length = int.from_bytes(self.take({126: 2, 127: 8}[length]), "big") if length > 125 else length
            payload = self.take(length)
            if kind & 15 == 1:
                return payload.decode()
            if kind & 15 == 8:
                raise ConnectionError("closed")


def test_only_its_browser_gets_in_and_only_once(cantle):
    cantle.up(*QUEUE)
    mine, _ = browser(cantle)
    address, task = hostile(cantle)
    ticket = urllib.parse.urljoin(address, mine.get(address).getheader("location"))
    base = ticket.split("/-/")[0]
    # Negative controls: without a cookie, with another path, and with a ticket that was used.
    stranger = Browser(mine.server)
    assert stranger.get(f"{base}/{task}/lab").status == 401
    assert "Open the notebook with your login" in stranger.get(f"{base}/{task}/lab").text
    assert mine.get(ticket).status == 303
    used = stranger.get(ticket)
    assert used.status == 403 and "used already" in used.text
    for path in ("/", "/-/", "/-/enter", "/ui", "/tasks.get_all", "/../x", "/%2e%2e/x"):
        assert stranger.get(f"{base}{path}").status in (401, 403, 404), path
    # The cookie of the notebook is no login: neither at the page nor at the API, and not for another task.
    (value,) = [value for (name, _), value in mine.cookies.items() if name == "cantle_notebook"]
    for headers in ({"Cookie": f"cantle_session={value}"}, {"Authorization": f"Bearer {value}"}):
        for path in ("/ui/-/session", "/tasks.get_all", "/cantle.get_tasks", "/metrics"):
            assert stranger.send("GET", mine.server + path, headers=headers).status == 401, (headers, path)
    _, other = hostile(cantle, "--name", "other")
    assert stranger.send("GET", f"{base}/{other}/lab", headers={"Cookie": f"cantle_notebook={value}"}).status == 401
    # Nor is the cookie of the page one of the notebook.
    (page,) = [value for (name, _), value in mine.cookies.items() if name == "cantle_session"]
    assert stranger.send("GET", f"{base}/{task}/lab", headers={"Cookie": f"cantle_notebook={page}"}).status == 401
    # Another site, or another port of this host, does not send requests with it.
    for headers in ({"Origin": "http://evil.example"}, {"Origin": mine.server}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}):
        assert mine.send("POST", f"{base}/{task}/api", "x", headers).status == 403, headers
    assert b" 403 " in websocket(f"{base}/{task}/x", cookie_line(mine), origin=mine.server, site="same-site")
    # A notebook opens no other one by itself: the page asks first.
    assert mine.get(address, Sec_Fetch_Site="same-site").getheader("location") == f"/ui/tasks/{task}"
    # The way ends with the login, also for what is open.
    client, status = switched(f"{base}/{task}/x", cookie_line(mine), base)
    assert b" 101 " in status
    csrf = json.loads(mine.get(f"{mine.server}/ui/-/session").text)["csrf"]
    assert mine.get(f"{base}/{task}/lab").status == 200
    assert mine.send("DELETE", f"{mine.server}/ui/-/session", headers={"x-csrf-token": csrf}).status == 204
    with client:
        assert client.recv(1) == b"", "an open websocket is closed"
    ended = mine.send("GET", f"{base}/{task}/lab", headers={"Cookie": f"cantle_notebook={value}"})
    assert ended.status == 401 and "Your login has ended" in ended.text


def test_who_may_not_enter_the_task_may_not_open_its_notebook(cantle):
    cantle.up(*QUEUE)
    cantle.cli("quota", "set", "vision", "--gpu", "1")
    cantle.cli("quota", "set", "audio", "--gpu", "1")
    anna, keys = browser(cantle, "anna", "--role", "member", "--project", "vision")
    address, task = hostile(cantle, "--project", "vision", keys=keys)
    assert anna.open(address)[1].status == 200
    at, _ = anna.open(address)
    mate, _ = browser(cantle, "mate", "--role", "member", "--project", "vision")
    other, _ = browser(cantle, "other", "--role", "member", "--project", "audio")
    admin, _ = browser(cantle)
    for who, status, says in [(mate, 403, "manage"), (other, 404, ""), (admin, 400, f"cantle notebook --attach {task}")]:
        answer = who.get(address)
        assert answer.status == status and says in answer.text, (status, answer.text)
    # The cookie of one who lost the right is worth nothing.
    assert anna.get(at).status == 200
    cantle.cli("users", "remove", "anna")
    wait_until(lambda: anna.get(at).status in (401, 403, 404), 30, lambda: anna.get(at).status)


def test_what_has_ended_or_is_none_has_one_clear_page(cantle):
    cantle.up(*QUEUE)
    mine, _ = browser(cantle)
    address, task = hostile(cantle)
    at, _ = mine.open(address)
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped")
    answer = mine.get(at)
    assert answer.status == 410 and "The task of this notebook has ended. It is stopped" in answer.text
    assert f"/ui/tasks/{task}" in answer.text
    plain = cantle.submit("eighth", "sleep", "3600")
    answer = mine.get(f"{mine.server}/ui/-/notebook/{plain}")
    assert answer.status == 400 and "the task is no notebook" in answer.text
    assert mine.get(f"{mine.server}/ui/-/notebook/{'0' * 32}").status in (400, 404)
    # Without a login, the page asks for it.
    assert Browser(mine.server).get(address).getheader("location") == f"/ui/tasks/{task}"


def test_code_server_gets_its_own_paths_and_is_missed_in_words(cantle):
    cantle.up(*QUEUE)
    mine, _ = browser(cantle)
    # code-server itself is not tried: a program with its options stands for it.
    program = cantle.home / "code-server"
    program.write_text(HOSTILE.replace('word.split("=", 1)[1] for word in sys.argv if word.startswith("--ServerApp.sock=")', 'sys.argv[sys.argv.index("--socket") + 1]'))
    program.chmod(0o755)
    address = cantle.cli("notebook", "--detach", "--vscode", "--code-server", str(program), "--queue", "eighth").stdout.strip()
    task = address.rsplit("/", 1)[1]
    wait_until(lambda: "listens" in cantle.output(task), 60, lambda: cantle.output(task))
    at, answer = mine.open(address)
    got = json.loads(answer.text)
    assert urllib.parse.urlsplit(at).path == f"/{task}/" and got["line"] == "GET / HTTP/1.1"
    assert "authorization" not in got["headers"] and "cookie" not in got["headers"]
    assert answer.getheader("location") == f"{at}else"
    assert json.loads(mine.get(f"{at}a/b?c=d").text)["line"] == "GET /a/b?c=d HTTP/1.1"
    failed = cantle.cli("notebook", "--vscode", "--queue", "eighth", code=1)
    assert "there is no notebook in task" in failed.stderr and "--code-server names the program on the node" in failed.stderr
    (task,) = [task["id"] for task in cantle.json("tasks") if task["state"] != "in_progress"]
    assert "cantle: code-server is not installed on " in cantle.output(task)


def test_the_next_notebook_removes_the_sockets_of_those_that_are_over(cantle):
    cantle.up(*QUEUE)
    socket_of = lambda task: f"/tmp/cantle-notebook-{task}.sock"
    _, over = hostile(cantle)
    _, lasts = hostile(cantle)
    cantle.cli("stop", over)
    cantle.wait_state(over, "stopped")
    # It was ended, and left its socket.
    assert os.path.exists(socket_of(over))
    _, new = hostile(cantle)
    assert [os.path.exists(socket_of(task)) for task in (over, lasts, new)] == [False, True, True]
    for task in (lasts, new):
        cantle.cli("stop", task)
        os.unlink(socket_of(task))


def test_each_notebook_may_have_a_host_of_its_own(cantle):
    cantle.up(*QUEUE, "--notebook-url", "http://*.localhost:9")
    cantle.cli("quota", "set", "vision", "--gpu", "1")
    _, keys = browser(cantle, "anna", "--role", "member", "--project", "vision")
    admin, _ = browser(cantle)
    address, task = hostile(cantle, "--project", "vision", keys=keys)
    # Others with the right open it, too: its code has an origin of its own.
    location = admin.get(address).getheader("location")
    assert location.startswith(f"http://{task}.localhost:9/-/enter?ticket="), location


def test_it_works_on_each_node_of_a_fleet_with_tls(cantle, tmp_path):
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    for line in (
        f"req -x509 {key} -days 2 -keyout ca.key -out ca.crt -subj /CN=authority",
        f"req -new {key} -keyout tls.key -out tls.csr -subj /CN=server",
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile names -out tls.crt",
    ):
        subprocess.run(["openssl", *line.split()], cwd=tmp_path, check=True, capture_output=True)
    authority = str(tmp_path / "ca.crt")
    cantle.env["CANTLE_CA_FILE"] = authority
    listen = ["--listen", "127.0.0.1:0", "--notebook-listen", "127.0.0.1:0"]
    cantle.start("server", *listen, "--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key"), log="up.log")
    wait_until(lambda: "server is up" in cantle.log(), 60, cantle.log)
    server = re.search(r"https://127\.0\.0\.1:\d+", cantle.log())[0]
    nodes = ["n0", "n1", "n2"]
    for gpu, node in enumerate(nodes):
        (keys,) = cantle.json("users", "add", node, "--role", "agent", "--node", node)
        file = tmp_path / f"{node}.json"
        file.write_text(json.dumps({"url": server, "access_key": keys["access_key"], "secret_key": keys["secret_key"]}))
        file.chmod(0o600)
        serves = ["--worker-name", node, "--gpus", str(gpu), "--dynamic-gpus", "--create-queue", "--queue", f"of_{node}=0.25"]
        cantle.start("daemon", "--keys", file, "--state", tmp_path / node, *serves, log=f"{node}.log")
    (keys,) = cantle.json("credentials")
    mine = Browser(server, authority).log_in(keys["access_key"], keys["secret_key"])
    opened = {}
    for node in nodes:
        wait_until(lambda node=node: "serving" in cantle.log(f"{node}.log"), 60, lambda node=node: cantle.log(f"{node}.log"))
        program = cantle.home / "hostile"
        program.write_text(HOSTILE)
        program.chmod(0o755)
        address = cantle.cli("notebook", "--detach", "--queue", f"of_{node}", "--jupyter", str(program)).stdout.strip()
        task = address.rsplit("/", 1)[1]
        wait_until(lambda task=task, node=node: (cantle.task(task)["node"] or "").startswith(node), 60, lambda task=task: cantle.task(task))
        wait_until(lambda task=task: "listens" in cantle.output(task), 60, lambda task=task: cantle.output(task))
        at, answer = mine.open(address)
        assert answer.status == 200 and at.startswith("https://127.0.0.1:"), answer.text
        opened[at.split("/")[3]] = json.loads(answer.text)["headers"]["authorization"]
    assert len(opened) == len(set(opened.values())) == 3, "each has its own token"
    # The command line names it, too.
    assert f"with your login: {address}" in cantle.cli("tasks", task).stderr
    # Plain HTTP is refused in words, as at the server itself.
    port = urllib.parse.urlsplit(at).port
    assert "this address speaks TLS" in Browser(server).get(f"http://127.0.0.1:{port}/").text


def test_bad_options_are_refused(cantle):
    for words, says in [
        (["--notebook-url", "ftp://x"], "--notebook-url ftp://x is not an address"),
        (["--notebook-listen", "nowhere"], "cannot listen on nowhere"),
        (["--notebook-listen", "0.0.0.0:0"], "would send keys and output to other machines in the clear"),
    ]:
        failed = cantle.cli("server", "--listen", "127.0.0.1:0", *words, code=None)
        assert failed.returncode != 0 and says in failed.stderr, failed.stderr


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("jupyter"), reason="no jupyter in the PATH")
def test_jupyterlab_executes_code_through_the_server(cantle):
    cantle.up(*QUEUE)
    mine, _ = browser(cantle)
    address = cantle.cli("notebook", "--detach", "--queue", "eighth", "--jupyter", shutil.which("jupyter"), "--", f"--ServerApp.root_dir={cantle.home}").stdout.strip()
    task = address.rsplit("/", 1)[1]
    cantle.wait_state(task, "in_progress")
    wait_until(lambda: mine.open(address)[1].status == 200, 120, lambda: mine.open(address)[1].text)
    at, page = mine.open(address)
    assert "JupyterLab" in page.text
    base = at.removesuffix("/lab")
    # All that the page loads.
    for path in re.findall(rf'(?:src|href)="(/{task}/static/[^"]+)"', page.text):
        assert mine.get(urllib.parse.urljoin(at, path)).status == 200, path
    made = mine.send("POST", f"{base}/api/kernels", "{}", {"Content-Type": "application/json", "Accept": "*/*"})
    assert made.status == 201, made.text
    kernel = json.loads(made.text)["id"]
    channel = Channel(f"{base}/api/kernels/{kernel}/channels", cookie_line(mine), base.removesuffix(f"/{task}"))
    header = {"msg_id": "m", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
    code = "import os; print('in', os.environ['CLEARML_TASK_ID'], 6 * 7)"
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    channel.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell", "buffers": []}))
    printed, deadline = "", time.monotonic() + 60
    while "42" not in printed and time.monotonic() < deadline:
        message = json.loads(channel.receive())
        if message["header"]["msg_type"] == "stream":
            printed += message["content"]["text"]
    assert printed.strip() == f"in {task} 42"
    # A file up, and down again.
    text = "line\n" * 200_000
    body = json.dumps({"type": "file", "format": "text", "content": text})
    assert mine.send("PUT", f"{base}/api/contents/up.txt", body, {"Content-Type": "application/json"}).status == 201
    assert json.loads(mine.get(f"{base}/api/contents/up.txt?content=1").text)["content"] == text
    # The open connection ends with the task.
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped")
    with pytest.raises(OSError):
        while channel.receive():
            pass
    assert mine.get(at).status == 410
