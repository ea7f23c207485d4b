"""Answers of the server that get lost on the way: what was asked is done once, however often it is asked."""

import http.client
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import own_port, wait_until

LINES = 400
TASKS = 6
# One of this many answers to each call is lost.
EVERY = {"events.add_batch": 3, "tasks.started": 4, "tasks.completed": 2, "tasks.failed": 2, "cantle.add_events": 4}


class Deaf:
    """Forwards to the server, and closes the connection after some of its answers to reports: the client hears nothing."""

    def __init__(self, target):
        self.loses, self.heard, self.lost = False, Counter(), Counter()
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                server = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
                server.request("POST", self.path, body, dict(self.headers))
                answer = server.getresponse()
                text = answer.read()
                server.close()
                name = self.path.split("/")[-1]
                with lock:
                    drop = outer.loses and name in EVERY and outer.heard[name] % EVERY[name] == 1
                    outer.heard[name] += outer.loses
                    outer.lost[name] += drop
                if drop:
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                for word in ("Content-Type", "Content-Encoding"):
                    if answer.getheader(word):
                        self.send_header(word, answer.getheader(word))
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def deaf(cantle):
    port = own_port()
    cantle.start("server", "--listen", f"127.0.0.1:{port}", log="server.log")
    wait_until(lambda: f"127.0.0.1:{port}" in cantle.log("server.log"), 60, lambda: cantle.log("server.log"))
    found = Deaf(port)
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.mark.full
def test_an_agent_that_does_not_hear_some_answers_reports_everything_once(cantle, deaf):
    (keys,) = cantle.json("credentials")
    quiet = dict(cantle.env)
    cantle.env |= {"CLEARML_API_HOST": deaf.url, "CLEARML_API_ACCESS_KEY": keys["access_key"], "CLEARML_API_SECRET_KEY": keys["secret_key"]}
    cantle.start("daemon", "--dynamic-gpus", "--gpus", "0-2", "--queue", "half=0.5", "--create-queue", log="daemon.log")
    wait_until(lambda: "serving" in cantle.log("daemon.log"), 60, lambda: cantle.log("daemon.log"))
    cantle.env, deaf.loses = quiet, True
    runs = cantle.home / "runs"
    script = f"echo $CANTLE_SLICE >>{runs}; for n in $(seq {LINES}); do echo line $n; [ $((n % 40)) != 0 ] || sleep 0.3; done; exit $1"
    tasks = {cantle.submit("half", "sh", "-c", script, "sh", str(code)): code for code in [0, 3] * (TASKS // 2)}
    for task, code in tasks.items():
        # What a lost answer leaves open is asked again, after up to a minute.
        found = cantle.wait_state(task, "completed", "failed", seconds=300)
        assert (found["state"], found["exit_code"]) == (("completed", 0) if code == 0 else ("failed", 3)), found
    printed = [f"line {n}" for n in range(1, LINES + 1)]
    for task in tasks:
        own = lambda task=task: [line for line in cantle.output(task).splitlines() if line.startswith("line ")]
        wait_until(lambda: len(own()) >= LINES, 60, lambda: f"{len(own())} lines")
        assert own() == printed
        assert len(cantle.json("tasks", "runs", task)) == 1
    assert len(runs.read_text().split()) == TASKS
    assert deaf.lost["events.add_batch"] >= 3 and deaf.lost["tasks.completed"] + deaf.lost["tasks.failed"] >= 1, deaf.lost
