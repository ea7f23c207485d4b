"""Our server on a machine with GPUs, and ClearML's own programs set up to use it as their users would."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Another build can be tested by naming it.
CANTLE = os.environ.get("CANTLE_BIN", str(ROOT / "dist/bin/cantle"))
BIN = pathlib.Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "tests"))

from machine import STATE, Here, Machine  # noqa: E402
from proxy import Proxy  # noqa: E402

# A larger machine can be tested by naming its GPUs.
GPUS = os.environ.get("CANTLE_TEST_GPUS", "3xA100-40GB")
LEASES = "/run/cantle/node/leases"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Most of these tests take long: `make test` runs those that are marked `gate`."""
    for item in items:
        if not item.get_closest_marker("gate"):
            item.add_marker(pytest.mark.full)


def is_one_error(said):
    """One line says what is wrong; below it are hints at most."""
    line, *hints = said.splitlines()
    return line.startswith("cantle: ") and all(hint.startswith("hint: ") for hint in hints)


def wait_until(condition, seconds, what):
    """Asks until the answer is yes. The time is a generous one where no promise sets it: other suites use the cores too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


def heed_ctrl_c():
    """A shell's background jobs, and all that they start, ignore Ctrl-C; ours must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Server:
    """`cantle server` on a machine, and the environment in which ClearML's programs find it."""

    def __init__(self, home, *flags, under=()):
        self.home = home
        self.background = []
        self.machines = []
        # Where an engine runs, it must be on the same machine; so the program that started it made the machine.
        self.machine = Here() if os.environ.get("CANTLE_TEST_MACHINE") == "here" else self.another(under=under)
        # Here the machine stays, and with it what was there before.
        self.data = self.machine.path(STATE / "server")
        self.is_new = not self.data.exists()
        self.env = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(home),
            "CLEARML_CONFIG_FILE": str(home / "no.conf"),
            "CLEARML_CACHE_DIR": str(home / "cache"),
            # Otherwise the SDK asks git from a thread while it forks its reporter; now and then the fork is stuck forever, with any
            # server.
            "CLEARML__SDK__DEVELOPMENT__VCS_REPO_DETECT_ASYNC": "false",
        }
        self.start([CANTLE, "server", "--listen", "127.0.0.1:0", *flags], "server.log")
        file = self.data / "credentials.json"
        wait_until(lambda: file.exists() and self.answers(file), 60, "server")
        keys = json.loads(file.read_text())
        self.url = keys["url"]
        self.env |= {
            "CLEARML_API_HOST": self.url,
            "CLEARML_WEB_HOST": self.url,
            "CLEARML_FILES_HOST": f"{self.url}/files",
            "CLEARML_API_ACCESS_KEY": keys["access_key"],
            "CLEARML_API_SECRET_KEY": keys["secret_key"],
        }

    def answers(self, file):
        import requests

        try:
            return requests.get(json.loads(file.read_text())["url"] + "/healthz", timeout=10).ok
        except (requests.RequestException, ValueError):
            return False

    def api(self, endpoint, **body):
        """One call of the API; its `data`."""
        import requests

        keys = (self.env["CLEARML_API_ACCESS_KEY"], self.env["CLEARML_API_SECRET_KEY"])
        answer = requests.post(f"{self.url}/{endpoint}", json=body, auth=keys, timeout=60).json()
        assert answer["meta"]["result_code"] == 200, answer["meta"]
        return answer["data"]

    def queue(self, name):
        return self.api("queues.create", name=name)["id"]

    def status(self, task):
        return self.api("tasks.get_by_id", task=task)["task"]["status"]

    def log_of(self, task, **run):
        """The output of the newest run, or of `run`."""
        events = self.api("events.get_task_log", task=task, batch_size=10000, after=0, **run)["events"]
        return "".join(event["msg"] for event in events)

    def another(self, gpus=GPUS, under=()):
        """One more machine, on which nothing of cantle's has run yet."""
        self.machines.append(Machine(gpus, under=under))
        return self.machines[-1]

    def command(self, argv, machine=None):
        """The command line that runs a program in our directory, on the server's machine or on another one."""
        return (machine or self.machine).command("env", "-C", self.home, *argv)

    def leases(self):
        return list(self.machine.path(LEASES).glob("*.json"))

    def start(self, argv, log, machine=None, **env):
        """Starts a program that stays, with a process group of its own; it is stopped at the end."""
        out = open(self.home / log, "ab")
        child = subprocess.Popen(
            self.command(argv, machine),
            env=self.env | env,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
        )
        self.background.append(child)
        return child

    def run(self, argv, timeout=300, **env):
        """Runs a program to its end, which must be a good one; its stdout."""
        done = subprocess.run(
            self.command(argv),
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def sdk(self, code, **env):
        """Runs a piece of Python with ClearML's SDK; what it puts into `answer` comes back."""
        script = self.home / "user.py"
        answer = self.home / "answer.json"
        answer.unlink(missing_ok=True)
        script.write_text(f"import json\nanswer = None\n{code}\njson.dump(answer, open({str(answer)!r}, 'w'))\n")
        self.run([sys.executable, script], **env)
        return json.loads(answer.read_text())

    def text(self, log):
        return (self.home / log).read_text(errors="replace")

    def stop(self, child):
        """Ends a program as a user would, with Ctrl-C; its whole group, if that does not help."""
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            # ClearML's own agent may take a minute, of which nothing is learned.
            is_theirs = "clearml-agent" in map(str, child.args)
            try:
                child.wait(5 if is_theirs else 60)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()

    def close(self):
        for child in reversed(self.background):
            self.stop(child)
        if self.is_new:
            shutil.rmtree(self.data, ignore_errors=True)
        for machine in {self.machine, *self.machines}:
            machine.stop()


@pytest.fixture
def server(tmp_path, request):
    server = Server(tmp_path, *getattr(request, "param", ()))
    yield server
    server.close()


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.url)
    server.env |= {
        "CLEARML_API_HOST": proxy.url,
        "CLEARML_WEB_HOST": proxy.url,
        "CLEARML_FILES_HOST": f"{proxy.url}/files",
    }
    yield proxy
    proxy.close()


# Needs an engine, so the suite `docker` runs it.
collect_ignore = [] if "CANTLE_TEST_ENGINE" in os.environ else ["test_real_docker.py"]
