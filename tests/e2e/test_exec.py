"""`cantle exec`: a command in a running task is the task's own, from this machine and by way of the server."""

import base64
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import pathlib
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from conftest import CANTLE, NOBODY, wait_until

# What a process is, as itself and its kernel know it.
LOOK = """
import json, os
def call(f, *args):
    try:
        f(*args)
        return "done"
    except OSError as error:
        return error.errno
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ("CapEff", "CapBnd", "Seccomp", "NoNewPrivs", "Uid", "Gid")
variables = dict(os.environ)
print(json.dumps({
    "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid", "ipc", "uts", "cgroup")},
    "status": {name: status[name].split() for name in names},
    "slice": variables.get("CANTLE_SLICE"), "visible": variables.get("CUDA_VISIBLE_DEVICES"), "names": sorted(variables),
    "group": open("/proc/self/cgroup").read(), "cwd": os.getcwd(), "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "limits": os.path.exists("/run/cantle/slice/limits"), "first": call(os.kill, 1, 9), "maps": "cuda" in open("/proc/mounts").read(),
}))
"""  # fmt: skip
INSIDE = [sys.executable, "-c", LOOK]


class Terminal:
    """A command at a terminal."""

    def __init__(self, command, env, rows=33, columns=101):
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.child = subprocess.Popen(
            command, env=env | {"TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.ours, text.encode())

    def until(self, text, seconds=60):
        """Until it has shown this; what it showed before is gone."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.ours], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.ours, 4096).decode(errors="replace")
                except OSError:
                    assert text in self.shown, self.shown
        before, self.shown = self.shown.split(text, 1)
        return before


def here(cantle):
    return [CANTLE], {}


def through_server(cantle):
    """Another user of the machine, who has no way into the tasks of root but the server."""
    keys = json.loads(cantle.cli("-o", "json", "credentials").stdout)["items"][0]
    env = {"CANTLE_SERVER": keys["url"] if "url" in keys else keys["api_server"], "CLEARML_API_ACCESS_KEY": keys["access_key"],
           "CLEARML_API_SECRET_KEY": keys["secret_key"], "HOME": "/nonexistent"}  # fmt: skip
    return [CANTLE], env | {"user": NOBODY}


@pytest.fixture(params=[here, through_server])
def enter(cantle, request):
    """Runs `cantle exec` with these words; the command line and its environment for the other tests."""
    cantle.up("--queue", "half=0.5")
    words, env = request.param(cantle)
    user = env.pop("user", None)

    class Enter:
        environment = cantle.env | env

        def command(self, *more):
            return cantle.machine.command(*words, *more, user=user)

        def __call__(self, task, *command, **options):
            options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 120} | options
            return subprocess.run(self.command("exec", task, "--", *command), env=self.environment, **options)

    return Enter()


def running(cantle, *command):
    task = cantle.submit("half", *command)
    cantle.wait_state(task, "in_progress")
    wait_until(lambda: "{" in cantle.output(task) or "ready" in cantle.output(task), 60, lambda: cantle.output(task))
    return task


def test_a_command_is_the_tasks_own(cantle, enter):
    task = running(cantle, "sh", "-c", f"{sys.executable} -c \"$1\"; exec sleep 300", "sh", LOOK)
    of_task = json.loads(next(line for line in cantle.output(task).splitlines() if line.startswith("{")))
    done = enter(task, *INSIDE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for part in ("namespaces", "status", "slice", "visible", "group", "cwd", "limits", "maps"):
        assert found[part] == of_task[part], part
    assert set(of_task["names"]) - set(found["names"]) <= {"_", "PWD", "OLDPWD", "SHLVL"}, "its environment"
    assert set(found["names"]) <= set(of_task["names"]), "and nothing of ours"
    assert found["descriptors"] == [0, 1, 2], found["descriptors"]
    assert found["limits"] and found["maps"] and found["status"]["Seccomp"] == ["2"]
    # Negative control: the machine differs in all of it.
    outside = json.loads(cantle.program(*INSIDE).stdout)
    assert all(outside["namespaces"][kind] != name for kind, name in found["namespaces"].items())
    # It gets the limits of the task: of memory, and of its life.
    limits = enter(task, CANTLE, "limits")
    assert limits.stdout.split()[-1] == b"yes" and b"20 GiB" in limits.stdout, limits
    left = subprocess.Popen(enter.command("exec", task, "--", "sleep", "300"), env=enter.environment, stdin=subprocess.DEVNULL)
    wait_until(lambda: b"sleep 300" in enter(task, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout, 60, "both sleep")
    cantle.cli("stop", task)
    assert left.wait(60) != 0


def test_codes_streams_and_much_input(cantle, enter):
    task = running(cantle, "sh", "-c", "echo ready; exec sleep 300")
    assert enter(task, "sh", "-c", "echo out; echo err >&2; exit 7").returncode == 7
    done = enter(task, "sh", "-c", "echo out; echo err >&2; kill -9 $$")
    assert (done.returncode, done.stdout, done.stderr) == (137, b"out\n", b"err\n")
    missing = enter(task, "no-such-program")
    assert missing.returncode == 127 and b"no-such-program: command not found" in missing.stderr, missing
    much = os.urandom(1 << 20) * 50
    done = enter(task, "cat", input=much, stdin=None)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(much).digest() and done.returncode == 0, done.stderr[:500]


def in_foreground(*command):
    """A process with this command line has its terminal. Before that, the keys are the shell's, which ignores Ctrl-C then."""
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cmdline").read_text().split("\0")[:-1] == list(command):
                _state, _parent, group, _session, _terminal, foreground = (place / "stat").read_text().rsplit(") ", 1)[1].split()[:6]
                if group == foreground:
                    return True
    return False


@contextlib.contextmanager
def ignored(*signals):
    """What is started meanwhile ignores these, as with nohup or in the background of a script."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ignores(status):
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return {number for number in range(1, 32) if int(mask, 16) >> (number - 1) & 1}


def test_a_task_ignores_no_signal_because_its_agent_does(cantle):
    signals = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1}
    with ignored(*signals):
        agent = cantle.up("--queue", "half=0.5")
    # Those that the agent handles itself are not among them.
    assert {signal.SIGQUIT, signal.SIGHUP} <= ignores(pathlib.Path(f"/proc/{agent.pid}/status").read_text())
    task = cantle.submit("half", "cat", "/proc/self/status")
    cantle.wait_state(task, "completed")
    assert not ignores(cantle.output(task)) & signals


def test_a_terminal_with_job_control(cantle, enter):
    task = running(cantle, "sh", "-c", "echo ready; exec sleep 300")
    with ignored(signal.SIGINT, signal.SIGQUIT):
        terminal = Terminal(enter.command("exec", task, "--", "bash", "--norc", "-i"), enter.environment)
    terminal.type("PS1='% '; tty; stty size; echo $TERM\n")
    terminal.until("/dev/pts/")
    terminal.until("33 101")
    terminal.until("xterm")
    terminal.resize(44, 77)
    terminal.type("sleep 0.5; stty size\n")
    terminal.until("44 77")
    terminal.type("sleep 400\n")
    wait_until(lambda: in_foreground("sleep", "400"), 60, "the command in the foreground")
    terminal.type("\x03")
    terminal.type("echo code $?\n")
    terminal.until("code 130")
    terminal.type("sleep 400\n")
    wait_until(lambda: in_foreground("sleep", "400"), 60, "the command in the foreground")
    terminal.type("\x1a")
    terminal.until("Stopped")
    terminal.type("jobs; kill %1; exit 5\n")
    terminal.until("sleep 400")
    terminal.type("exit 5\n")
    assert terminal.child.wait(60) == 5


def test_a_command_ends_with_its_user(cantle, enter):
    task = running(cantle, "sh", "-c", "echo ready; exec sleep 300")
    child = subprocess.Popen(enter.command("exec", task, "--", "sleep", "4321"), env=enter.environment, stdin=subprocess.PIPE)

    def sleeps():
        return b"sleep 4321" in enter(task, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | sed 's/cat .*//'").stdout

    wait_until(sleeps, 60, "the command")
    child.kill()
    wait_until(lambda: not sleeps(), 60, "its end")
    assert cantle.task(task)["state"] == "in_progress", "the task goes on"


# The kernel holds the lock of a pipe while it is spliced into a socket that takes nothing, and a writer to the pipe waits for the lock.
SPLICE = "import os, socket; a, b = socket.socketpair(); print('ready', flush=True)\nwhile os.splice(0, a.fileno(), 1 << 20): pass"


@pytest.mark.parametrize("enter", [through_server], indirect=True)
def test_a_command_that_locks_its_pipe_holds_up_nobody(cantle, enter):
    task = running(cantle, "sh", "-c", "echo ready; exec sleep 300")
    many = os.cpu_count() + 2
    words = enter.command("exec", task, "--", sys.executable, "-c", SPLICE)
    children = [subprocess.Popen(words, env=enter.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(many)]
    for child in children:
        assert child.stdout.readline() == b"ready\n"
        os.set_blocking(child.stdin.fileno(), False)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            try:
                os.write(child.stdin.fileno(), bytes(1 << 16))
            except BlockingIOError:
                time.sleep(0.05)
    done = enter(task, "echo", "others go on", timeout=30)
    assert done.stdout == b"others go on\n", done
    other = cantle.submit("half", "true")
    assert cantle.wait_state(other, "completed", seconds=30)
    for child in children:
        child.kill()
        child.wait()
    cantle.cli("stop", task)
    assert cantle.wait_state(task, "stopped", seconds=30)


def test_who_may(cantle):
    cantle.up("--queue", "half=0.5")
    task = running(cantle, "sh", "-c", "echo ready; exec sleep 300")
    # A stranger's Unix user without keys.
    done = cantle.program(CANTLE, "exec", task, "--", "id", user=NOBODY)
    assert done.returncode == 3 and "of this user on this machine" in done.stderr, done
    # A member has the right for tasks of its own only.
    _, env = through_server(cantle)
    made = cantle.json("users", "add", "anna", "--role", "member")[0]
    env = cantle.env | {name: value for name, value in env.items() if name != "user"}
    env |= {"CLEARML_API_ACCESS_KEY": made["access_key"], "CLEARML_API_SECRET_KEY": made["secret_key"]}
    done = cantle.program(CANTLE, "exec", task, "--", "id", user=NOBODY, env=env)
    assert done.returncode == 4 and 'needs the right "manage"' in done.stderr, done
    own = cantle.program(CANTLE, "submit", "--queue", "half", "--", "sh", "-c", "cd /; exec sleep 300", user=NOBODY, env=env, cwd="/")
    assert own.returncode == 0, own.stderr
    own = own.stdout.strip()
    cantle.wait_state(own, "in_progress")
    done = cantle.program(CANTLE, "exec", own, "--", "echo", "mine", user=NOBODY, env=env)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    # Without its key, a user has no command either.
    words = cantle.machine.command(CANTLE, "exec", own, "--", "sleep", "200", user=NOBODY)
    child = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: "sleep 200" in cantle.cli("exec", own, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout, 60, "it")
    cantle.cli("users", "remove", "anna")
    assert child.wait(30) == 4, child.stderr.read()
    rows = cantle.json("audit")
    assert {(row["user"], row["outcome"]) for row in rows if row["action"] == "cantle.open_exec"} >= {("anna", "done")}, rows


def test_a_connection_that_does_not_leave_http_takes_no_end(cantle):
    """It would keep its command open without end, and each user may have 64."""
    cantle.up("--queue", "half=0.5")
    task = running(cantle, "sh", "-c", "echo ready; sleep 300")
    (keys,) = cantle.json("credentials")
    host = keys["url"].removeprefix("http://")
    basic = base64.b64encode(f"{keys['access_key']}:{keys['secret_key']}".encode()).decode()

    def ask(method, path, body=None, **headers):
        server = http.client.HTTPConnection(host, timeout=60)
        server.request(method, path, body, {"Authorization": f"Basic {basic}", "Content-Type": "application/json"} | headers)
        answer = server.getresponse()
        return answer.status, answer.read() if answer.status != 101 else b""

    status, text = ask("POST", "/cantle.open_exec", json.dumps({"task": task, "start": {"argv": ["true"]}}))
    path = f"/cantle/exec/{json.loads(text)['data']['exec']}"
    status, text = ask("GET", path)
    assert status == 400 and b"write Upgrade: cantle-exec" in text, text
    status, _ = ask("GET", path, Connection="upgrade", Upgrade="cantle-exec")
    assert status == 101, "the end is free as before"
    assert ask("GET", path, Connection="upgrade", Upgrade="cantle-exec")[0] == 404, "the negative control: it is taken now, or over"


def test_a_task_of_cantle_run(cantle):
    words = ["run", "--gpu", "0.25", "--", "sh", "-c", "echo ready; exec sleep 300"]
    cantle.start(*words, log="run.log")
    wait_until(lambda: "ready" in cantle.log("run.log"), 60, "the task")
    (slice_,) = cantle.json("ps")
    done = cantle.cli("exec", slice_["task"], "--", "sh", "-c", "ls /run/cantle/slice; echo $CANTLE_SLICE")
    assert "limits" in done.stdout
    assert "there is no task" in cantle.cli("exec", "no-such-task", "--", "true", code=3).stderr


def test_a_shell_from_a_queue(cantle):
    """It waits with the reason, has the slice, and ends with its terminal, however that ends."""
    cantle.up("--queue", "whole=3")
    words, env = through_server(cantle)
    user = env.pop("user")
    env = cantle.env | env
    blocker = cantle.submit("whole", "sleep", "300")
    cantle.wait_state(blocker, "in_progress")
    command = cantle.machine.command(*words, "shell", "--queue", "whole", "--", "bash", "--norc", "-i", user=user)
    terminal = Terminal(command, env)
    task = terminal.until(": waits: ")[-32:]
    cantle.cli("stop", blocker)
    terminal.until("runs on")
    terminal.type("PS1='% '; echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l; stty size; exit 6\n")
    terminal.until("33 101")
    assert terminal.child.wait(60) == 6
    cantle.wait_state(task, "stopped")
    # One whose user is gone, while it runs and while it waits.
    for flags in ([], ["--keep"]):
        terminal = Terminal(cantle.machine.command(*words, "shell", "--queue", "whole", *flags, "--", "cat", user=user), env)
        task = terminal.until("runs on").split(":")[0][-32:]
        if flags:
            continue
        waiting = Terminal(cantle.machine.command(*words, "shell", "--queue", "whole", "--", "cat", user=user), env)
        second = waiting.until(": waits: ")[-32:]
        waiting.child.kill()
        wait_until(lambda: cantle.task(second)["state"] in ("stopped", "created"), 60, lambda: cantle.task(second))  # noqa: B023
        terminal.child.kill()
        cantle.wait_state(task, "stopped")
    # What is kept goes on, and has another terminal.
    terminal.type("typed\n")
    terminal.until("typed")
    terminal.child.kill()
    time.sleep(2)
    assert cantle.task(task)["state"] == "in_progress"
    terminal = Terminal(cantle.machine.command(*words, "attach", task, user=user), env)
    terminal.type("echo back $((40 + 2)); exit 3\n")
    terminal.until("back 42")
    assert terminal.child.wait(60) == 3
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped")


def test_a_shell_without_a_server(cantle):
    done = cantle.cli("shell", "--gpu", "0.25", "--", "sh", "-c", "ls /run/cantle/slice; exit 4", code=4)
    assert "limits" in done.stdout, done
    assert "no server" in cantle.cli("shell", "--keep", "--", "true", code=2).stderr
