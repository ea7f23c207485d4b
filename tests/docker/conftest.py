"""A whole cantle whose tasks run in containers of the engine that `run.sh` started."""

import contextlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
# By its path: both folders have a module of this name.
spec = importlib.util.spec_from_file_location("installation", ROOT / "tests/e2e/conftest.py")
installation = importlib.util.module_from_spec(spec)
spec.loader.exec_module(installation)

IMAGE = "cantle-test:base"
LIBRARIES = ROOT / "dist/lib/cantle"
LEASE = "cantle.dev/lease"


class Engine:
    """The private engine, seen with Docker's own client: the outside witness."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "docker.sock"

    def client(self, *words, code=0, timeout=300):
        """Runs docker's client to its end; its exit code must be `code` (None: any)."""
        command = ["docker", "--host", f"unix://{self.socket}", *map(str, words)]
        # The classic builder: the other one is a program of its own, which not every machine has.
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        assert code is None or done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def containers(self):
        """Ids of cantle's containers, running or not."""
        return self.client("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LEASE}").stdout.split()

    def container_of(self, task):
        """Id of the one container that a task runs in."""
        (found,) = self.client("ps", "--quiet", "--no-trunc", "--filter", f"label=cantle.dev/task={task}").stdout.split()
        return found

    def inspect(self, container):
        return json.loads(self.client("inspect", container).stdout)[0]

    def restart(self):
        """Kills the engine and starts it again."""
        subprocess.run([HERE / "engine.sh", "restart", self.folder], check=True, timeout=120)

    @contextlib.contextmanager
    def hanging(self):
        """It takes connections and answers nobody."""
        pid = int((self.folder / "docker.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class Cantle(installation.Cantle):
    """An installation that knows the engine."""

    def __init__(self, home, sim_gpus, engine):
        super().__init__(home, sim_gpus)
        self.env["DOCKER_HOST"] = f"unix://{engine.socket}"

    def said(self, task):
        """The task's own lines: the agent writes into the same log."""
        return [line for line in self.output(task).splitlines() if not line.startswith("cantle: ")]


@pytest.fixture(scope="session")
def engine():
    folder = os.environ.get("CANTLE_TEST_ENGINE")
    if not folder:
        pytest.skip("no engine; run tests/docker/run.sh")
    return Engine(folder)


@pytest.fixture
def make_cantle(tmp_path, engine):
    """An installation with the given simulated GPUs."""
    made = []

    def make(sim_gpus):
        made.append(Cantle(tmp_path, sim_gpus, engine))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    # Tasks outlive their agent; these are not to outlive their test.
    for container in engine.containers():
        engine.client("rm", "--force", container, code=None)
