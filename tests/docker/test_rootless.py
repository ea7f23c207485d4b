"""Slices in containers of rootless engines: an ordinary user has the engines and types the commands; the driver is the witness."""

import os
import subprocess

import pytest
from conftest import HERE, IMAGE, ROOT, Here, driver, installation

GIB = 1 << 30
FILL = ["python3", "/tools/fill.py"]
TOOLS = ["-v", f"{HERE}:/tools:ro"]
CANTLE = ROOT / "dist/bin/cantle"


@pytest.fixture
def start():
    """Starts a program as the user of the engines."""
    folder = os.environ.get("CANTLE_TEST_ROOTLESS")
    if not folder:
        pytest.skip("no rootless engines; run tests/docker/matrix.sh rootless")
    started = []

    def start(engine, *words):
        command = [HERE / "rootless.sh", "as", folder, "env", f"DOCKER_HOST=unix://{folder}/{engine}.sock", *map(str, words)]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_two_halves_of_a_gpu(start, engine):
    def run(*words):
        child = start(engine, *words)
        said, complaints = child.communicate(timeout=300)
        assert child.returncode == 0, (said, complaints)
        return said

    image = IMAGE if engine == "docker" else f"localhost/{IMAGE}"
    here = Here()
    used = lambda: [gpu["used_bytes"] for gpu in here.truth()]
    half = lambda: start(engine, CANTLE, "run", "--gpu", "0.5", "--image", image, *TOOLS, "--", *FILL, "60")
    halves = [half(), half()]
    try:
        installation.wait_until(lambda: used() == [40 * GIB, 0], 180, lambda: (used(), [each.poll() for each in halves]))
        for each in halves:
            said, complaints = each.communicate(timeout=300)
            assert each.returncode == 0, (said, complaints)
            taken, code, shown = map(int, said.split())
            assert (code, shown) == (2, 20480) and 19 * 1024 < taken < 20480
        assert used() == [0, 0]
        whole = run(engine, "run", "--rm", "--network", "none", *driver(0), *TOOLS, image, *FILL)
        taken, code, shown = map(int, whole.split())
        assert taken > 39 * 1024 and (code, shown) == (2, 40960), "negative control: without cantle it is the whole GPU"
    finally:
        here.stop()
