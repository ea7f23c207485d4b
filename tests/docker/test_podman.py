"""`cantle up --podman`: Podman's own service, with its own client and the driver as witnesses."""

import os
import pathlib
import subprocess

import pytest
from conftest import HERE, IMAGE, Cantle, Engine, installation

GIB = 1 << 30
FILL = ["python3", "/tools/fill.py"]
wait_until = installation.wait_until


class Podman(Engine):
    """The tests' own Podman, seen with Podman's own client."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "podman.sock"

    def client(self, *words, code=0, timeout=300):
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        env["CONTAINERS_CONF"] = str(self.folder / "containers.conf")
        env["CONTAINERS_STORAGE_CONF"] = str(self.folder / "storage.conf")
        done = subprocess.run(
            ["podman", *map(str, words)], env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
        assert code is None or done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def remove(self, container):
        self.client("rm", "--force", "--time", "0", container, code=None)


@pytest.fixture
def podman():
    folder = os.environ.get("CANTLE_TEST_PODMAN")
    if not folder:
        pytest.skip("no podman; run tests/docker/run.sh where it can be installed")
    return Podman(folder)


@pytest.fixture
def cantle(tmp_path, podman):
    found = Cantle(tmp_path, [0], podman)
    yield found
    found.stop()


def test_tasks_in_podmans_containers(cantle, podman):
    """Two halves fill what they have; one ends by itself, one is stopped; nothing is left."""
    cantle.up("--queue", "half=0.5", "--podman", f"localhost/{IMAGE}", "-v", f"{HERE}:/tools:ro")
    ends = cantle.submit("half", "sh", "-c", f"{' '.join(FILL)}; exit 3")
    stays = cantle.submit("half", *FILL, "600")

    assert cantle.wait_state(ends, "failed", seconds=240)["exit_code"] == 3
    wait_until(lambda: len(cantle.said(stays)) == 1, 240, lambda: cantle.output(stays))
    for task in (ends, stays):
        taken, code, shown = map(int, cantle.said(task)[-1].split())
        assert (code, shown) == (2, 20480) and 19 * 1024 < taken < 20480
    assert cantle.used() == [20 * GIB]
    # A process that enters the container meets the same limit.
    entered = podman.client("exec", podman.container_of(stays), "env", "-i", *FILL, code=None)
    assert entered.returncode != 0 and cantle.used() == [20 * GIB]

    cantle.cli("stop", stays)

    cantle.wait_state(stays, "stopped", seconds=240)
    wait_until(lambda: podman.containers() == [] and cantle.used() == [0], 180, podman.containers)
