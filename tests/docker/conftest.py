"""A whole cantle whose tasks run in containers of the engine that `run.sh` started."""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
# By its path: both directories have a module of this name.
spec = importlib.util.spec_from_file_location("installation", ROOT / "tests/e2e/conftest.py")
installation = importlib.util.module_from_spec(spec)
spec.loader.exec_module(installation)
from machine import LIBRARIES, STATE, Here  # noqa: E402

IMAGE = "cantle-test:base"
NODE = pathlib.Path("/run/cantle/node")
LAYOUT = os.environ.get("CANTLE_TEST_LAYOUT", "debian")
DRIVER = LIBRARIES[LAYOUT]
# The library directories of images.
IN_IMAGE = LIBRARIES["debian"]
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

    def remove(self, container):
        self.client("rm", "--force", container, code=None)

    def inspect(self, container):
        return json.loads(self.client("inspect", container).stdout)[0]

    def restart(self):
        """Kills the engine and starts it again."""
        subprocess.run([HERE / "engine.sh", "restart", self.folder], check=True, timeout=120)

    @contextlib.contextmanager
    def hanging(self):
        """It accepts connections and never answers."""
        pid = int((self.folder / "docker.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class Cantle(installation.Cantle):
    """An installation that knows the engine, on the machine that the engine runs on; other tests follow on the same machine.

    It has the GPUs that are named: what the others hold must stay nothing."""

    def __init__(self, home, gpus, engine):
        self.home, self.gpus, self.engine = home, gpus, engine
        self.machine = Here(LAYOUT)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "DOCKER_HOST": f"unix://{engine.socket}"}
        self.background = []

    def up(self, *words, **options):
        named = () if "--gpus" in words else ("--gpus", ",".join(map(str, self.gpus)))
        return super().up(*named, *words, **options)

    def used(self):
        held = super().used()
        assert not any(each for gpu, each in enumerate(held) if gpu not in self.gpus), held
        return [held[gpu] for gpu in self.gpus]

    def cli(self, *words, code=0, timeout=300):
        """As everywhere; engines fetch and unpack images meanwhile."""
        return super().cli(*words, code=code, timeout=timeout)

    def said(self, task):
        """The task's own lines: the agent writes into the same log."""
        return [line for line in self.output(task).splitlines() if not line.startswith("cantle: ")]

    def leases(self):
        return [path.name for path in (NODE / "leases").glob("*.json")]

    def stop(self):
        """Takes the containers away; the agent gives back what they had. The machine is as fresh as it was."""

        def nothing_left():
            left = self.engine.containers()
            for container in left:
                self.engine.remove(container)
            return not left and not self.leases()

        try:
            installation.wait_until(nothing_left, 180, lambda: f"leases {self.leases()}, containers {self.engine.containers()}")
        finally:
            self.end()
            self.machine.stop()
            for path in [NODE, *(each for each in STATE.iterdir() if each.name != "sim")]:
                shutil.rmtree(path, ignore_errors=True)


def driver(*gpus, folder=IN_IMAGE, caps=()):
    """Options of `docker run` that do what NVIDIA's runtime does: the driver's libraries and the nodes of these GPUs."""
    nodes = [*(f"/dev/nvidia{gpu}" for gpu in gpus), "/dev/nvidiactl", "/dev/nvidia-uvm", *caps]
    if LAYOUT == "wsl":
        nodes = ["/dev/dxg"]
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    libraries = [word for name in names for word in ("-v", f"{DRIVER}/{name}:{folder}/{name}:ro")]
    return [*libraries, *(word for node in nodes for word in ("--device", str(node)))]


def from_options(gpu):
    """The options that plain `docker run` needs for this GPU: nothing where NVIDIA's runtime finds it. That which writes CDI specs itself finds the
    libraries, but takes no nodes that are not character devices, and those of simulated GPUs are none."""
    runtime = os.environ.get("CANTLE_TEST_RUNTIME")
    if not runtime:
        return driver(gpu)
    options = driver(gpu)
    return options[options.index("--device") :] if os.environ.get("CANTLE_TEST_NODES") else []


@pytest.fixture(scope="session")
def engine():
    folder = os.environ.get("CANTLE_TEST_ENGINE")
    if not folder:
        pytest.skip("no engine; run tests/docker/run.sh")
    return Engine(folder)


@pytest.fixture
def make_cantle(tmp_path, engine):
    """An installation with the given GPUs of the machine."""
    made = []

    def make(gpus):
        made.append(Cantle(tmp_path, gpus, engine))
        return made[-1]

    yield make
    for each in made:
        each.stop()
