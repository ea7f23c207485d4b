"""Three servers of the program on one PostgreSQL hand out tasks, while servers, leader, sessions, PostgreSQL and the network between
them die. No task is lost, none is started twice, no acknowledged line of output is missing.

`CANTLE_TEST_KILLS` is the number of kills, each kind in turn; a fault that lasts takes `CANTLE_TEST_PAUSE_S`. The callers are threads
of this program, not agents: they name the run in each call as an agent does.
"""

import base64
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from history import FOREVER, Op, explained
from test_server import CANTLE, PG, PATIENCE_S, cantle, control, psql, until

KILLS = int(os.environ.get("CANTLE_TEST_KILLS", "8"))
PAUSE_S = float(os.environ.get("CANTLE_TEST_PAUSE_S", "2"))
CALLERS = 4
# A long run submits more slowly: each task is looked at in the end.
PACE_S = KILLS / 5000
SETTLE_S = 300

pytestmark = pytest.mark.skipif(not PG, reason="tests/postgres/with-server.sh starts the PostgreSQL")


class Proxy:
    """The connection between one server and the database: while it is cut, nothing passes and nothing ends."""

    def __init__(self, to):
        self.to, self.cut, self.over = to, threading.Event(), False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.to)
            except OSError:
                if self.over:
                    return
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.pass_on, args=pair, daemon=True).start()

    def pass_on(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while self.cut.is_set():
                    time.sleep(0.05)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.over = True
        self.listener.close()


class Replica:
    def __init__(self, home, url, keys=None):
        self.home, self.url = home, url
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.state = Path(home) / f"state{self.port}"
        (self.state / "server").mkdir(parents=True)
        for key in ("credentials.json", "viewer.json", "token.key") if keys else ():
            shutil.copy(keys / "server" / key, self.state / "server" / key)
        self.start()

    def start(self):
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "CANTLE_STATE_DIR": str(self.state)}
        words = [CANTLE, "server", "--listen", f"127.0.0.1:{self.port}", "--database", self.url]
        with (Path(self.home) / f"{self.port}.log").open("a") as log:
            self.process = subprocess.Popen(words, env=env, stdout=log, stderr=log)

    def state_of(self):
        """For people, when it is not as it should be."""
        ended = self.process.poll()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as answer:
                said = answer.read().decode()
        except urllib.error.HTTPError as error:
            said = error.read().decode()
        except OSError as error:
            said = str(error)
        log = (Path(self.home) / f"{self.port}.log").read_text().splitlines()
        return {"ended": ended, "readyz": said, "log": log[-8:]}

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


class Fleet:
    def __init__(self, home, url):
        to = ("127.0.0.1", int(PG.rpartition(":")[2]))
        self.proxy = Proxy(to)
        self.direct, self.cuts = url, 0
        first = Replica(home, url)
        until("the first server", first.is_ready)
        cut_off = url.replace(f":{to[1]}/", f":{self.proxy.port}/")
        self.replicas = [first, Replica(home, url, first.state), Replica(home, cut_off, first.state)]
        until("all servers", lambda: all(replica.is_ready() for replica in self.replicas))
        pair = json.loads((first.state / "server/credentials.json").read_text())
        self.auth = "Basic " + base64.b64encode(f"{pair['access_key']}:{pair['secret_key']}".encode()).decode()

    def call(self, endpoint, **body):
        """The answer of any server; None: the call was cut off, and may have been carried out. Raises Refused."""
        port = random.choice(self.replicas).port
        headers = {"Authorization": self.auth, "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{endpoint}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 400:
                raise Refused(error.read().decode()) from None
        except (OSError, ValueError):
            pass
        self.cuts += 1
        time.sleep(0.05)
        return None

    def close(self):
        self.proxy.cut.clear()
        for replica in self.replicas:
            replica.process.send_signal(signal.SIGCONT)
            replica.kill()
        self.proxy.close()


class Refused(Exception):
    pass


class World:
    def __init__(self, fleet):
        self.fleet, self.ops, self.lines, self.over = fleet, collections.defaultdict(list), [], threading.Event()
        self.held, self.problems = set(), []
        self.queue = self.insist("queues.create", name="q")["id"]

    def insist(self, endpoint, **body):
        """Repeats what was cut off."""
        end = time.monotonic() + SETTLE_S
        while (answer := self.fleet.call(endpoint, **body)) is None:
            assert time.monotonic() < end, f"{endpoint} has had no answer"
        return answer

    def note(self, task, begin, what, run, answered):
        end = time.monotonic() if answered else FOREVER
        self.ops[task].append(Op(begin, end, what, run, answered))

    def submit(self, name):
        task = self.insist("tasks.create", name=name, type="training", project=None)["id"]
        begin = time.monotonic()
        was_cut = False
        while True:
            try:
                if self.fleet.call("tasks.enqueue", task=task, queue=self.queue) is not None:
                    break
                was_cut = True
            except Refused:
                assert was_cut
                break
        self.note(task, begin, "submit", 0, True)

    def work(self):
        try:
            while not self.over.is_set():
                begin = time.monotonic()
                taken = self.fleet.call("queues.get_next_task", queue=self.queue)
                entry = (taken or {}).get("entry")
                if not entry:
                    time.sleep(0.02)
                    continue
                self.note(entry["task"], begin, "take", entry["run"], True)
                self.run(entry["task"], entry["run"])
        except Exception as problem:
            self.problems.append(problem)

    def run(self, task, run):
        self.held.add(task)
        line = f"{task} {run}"
        for what, endpoint, body in (
            ("start", "tasks.started", {"task": task, "run": run}),
            ("", "events.add", {"type": "log", "task": task, "worker": "w", "level": "info", "msg": line}),
            ("done", "tasks.completed", {"task": task, "run": run}),
        ):
            while True:
                begin = time.monotonic()
                try:
                    answer = self.fleet.call(endpoint, **body)
                except Refused:
                    self.held.discard(task)
                    return
                if what:
                    self.note(task, begin, what, run, answer is not None)
                if answer is not None:
                    break
            if not what:
                self.lines.append((task, line))
        self.held.discard(task)

    def unfinished(self):
        states = {}
        for task in list(self.ops):
            states[task] = self.insist("tasks.get_by_id", task=task)["task"]["status"]
        return {task: state for task, state in states.items() if state != "completed"}

    def settle(self):
        """All are done. A task whose taker never learned of it is put back as an agent does: it is queued, in no queue, with no agent."""
        end = time.monotonic() + SETTLE_S
        while left := self.unfinished():
            assert time.monotonic() < end, f"lost: {left}"
            waits = {entry["task"] for entry in self.insist("queues.get_by_id", queue=self.queue)["queue"]["entries"]}
            for task, state in left.items():
                if state == "queued" and task not in waits and task not in self.held:
                    with contextlib.suppress(Refused):
                        self.fleet.call("tasks.enqueue", task=task, queue=self.queue)
            time.sleep(1)


def kill_a_server(fleet):
    one = random.choice(fleet.replicas)
    one.kill()
    one.start()


def kill_the_leader(fleet):
    answer = cantle({"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, "db", "status", fleet.direct, "-o", "json")
    leaders = [one["name"] for found in json.loads(answer.stdout or '{"items": []}')["items"] for one in found["servers"] if one["leads"]]
    for replica in fleet.replicas:
        if any(name.endswith(f"/{replica.process.pid}") for name in leaders):
            replica.kill()
            replica.start()


def end_all_sessions(fleet):
    psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'cantle%'")


def restart_postgresql(fleet):
    control("-m", "immediate", "restart")


def pause_a_server(fleet):
    one = random.choice(fleet.replicas)
    one.process.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    one.process.send_signal(signal.SIGCONT)


def cut_one_server_off(fleet):
    fleet.proxy.cut.set()
    time.sleep(PAUSE_S)
    fleet.proxy.cut.clear()


def hold_rows_in_an_idle_transaction(fleet):
    program = sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"))[-1]
    holder = subprocess.Popen([program, fleet.direct, "-XAtq"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    holder.stdin.write(b"BEGIN; SELECT id FROM tasks WHERE status <> 'completed' FOR UPDATE;\n")
    holder.stdin.flush()
    time.sleep(PAUSE_S)
    holder.kill()
    holder.wait()


def take_all_connections(fleet):
    """Sessions that never answer the question for their password, as many as PostgreSQL takes."""
    words = b"user\0cantle\0database\0postgres\0\0"
    start = struct.pack(">ii", len(words) + 8, 3 << 16) + words
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            with contextlib.suppress(OSError):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", int(PG.rpartition(":")[2]))))
                one.sendall(start)
        time.sleep(PAUSE_S)


KINDS = (
    kill_a_server, kill_the_leader, end_all_sessions, restart_postgresql,
    pause_a_server, cut_one_server_off, hold_rows_in_an_idle_transaction, take_all_connections,
)  # fmt: skip


def test_no_task_is_lost_or_started_twice_and_no_line_is_missing(tmp_path):
    name = f"k{os.getpid()}"
    psql(f"CREATE DATABASE {name}")
    with contextlib.closing(Fleet(tmp_path, f"{PG}/{name}")) as fleet:
        world = World(fleet)
        threads = [threading.Thread(target=world.work, daemon=True) for _ in range(CALLERS)]
        killing = threading.Thread(target=lambda: [KINDS[n % len(KINDS)](fleet) for n in range(KILLS)], daemon=True)
        for thread in (*threads, killing):
            thread.start()
        began = time.monotonic()
        while killing.is_alive():
            world.submit(f"t{len(world.ops)}")
            time.sleep(PACE_S)
        world.settle()
        world.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert world.problems == []
        end = time.monotonic() + PATIENCE_S
        while not all(replica.is_ready() for replica in fleet.replicas):
            if time.monotonic() > end:
                pytest.fail(json.dumps([replica.state_of() for replica in fleet.replicas], indent=1))
            time.sleep(0.2)
        for task, ops in world.ops.items():
            assert explained(ops), f"no order explains {task}: {sorted(ops, key=lambda op: op.begin)}"
        kept = collections.defaultdict(set)
        for task in {task for task, _ in world.lines}:
            answer = world.insist("events.get_task_log", task=task, batch_size=100)
            kept[task] = {event["msg"] for event in answer["events"]}
        missing = [line for task, line in world.lines if line not in kept[task]]
        assert missing == [], f"{len(missing)} of {len(world.lines)} acknowledged lines"
        assert cantle({"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, "db", "check", fleet.direct).returncode == 0
        print(f"{len(world.ops)} tasks, {len(world.lines)} lines, {KILLS} kills, {fleet.cuts} calls cut off, {time.monotonic() - began:.0f} s")


def op(begin, what, run=0, **more):
    return Op(begin, begin + 5, what, run, **more)


ONCE = [op(0, "submit"), op(10, "take", 1), op(20, "start", 1), op(30, "done", 1)]


@pytest.mark.parametrize("ops, is_so", [
    (ONCE, True),
    # A planted double claim: two callers got it, and both were let start.
    ([*ONCE, op(12, "take", 2), op(21, "start", 2)], False),
    ([*ONCE, op(40, "take", 2)], False),
    # It went back before its start, and the second run is the one that counts.
    ([op(0, "submit"), op(10, "take", 1), op(20, "take", 2), op(30, "start", 2), op(40, "done", 2)], True),
    ([op(0, "submit"), op(10, "take", 1), op(20, "take", 2), op(30, "start", 1), op(40, "done", 1)], False),
    # Both got the same number.
    ([*ONCE, op(12, "take", 1)], False),
    # Its end was repeated, because the first answer was cut off.
    ([*ONCE[:3], Op(30, FOREVER, "done", 1, answered=False), op(40, "done", 1)], True),
    # It never ended.
    (ONCE[:3], False),
])
def test_the_checker_finds_a_planted_double_claim(ops, is_so):
    assert explained(ops) == is_so
