"""Images as users build them, by a container engine of the tests' own: cantle's for the chart, and one with a limit of its own."""

import os
import shutil
import subprocess

import pytest

from chart import ROOT

CANTLE = "cantle/cantle:0.1.0"
# Under the name that the documented manifest has; the base has a stand-in for PyTorch.
LIMITED = "clearml/fractional-gpu:u22-cu12.3-8gb"
ENGINE = ROOT / "tests/docker/engine.sh"


def build(folder, archive):
    """Builds them and writes them to `archive`."""
    if not shutil.which("dockerd"):
        pytest.skip("images can't be built here: no dockerd")
    engine = folder / "engine"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DOCKER_BUILDKIT": "0", "DOCKER_HOST": f"unix://{engine}/docker.sock"}

    def run(*command):
        done = subprocess.run([*map(str, command)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr

    # Nobody reads its output: a daemon that inherits the pipe would keep it open.
    subprocess.run([ENGINE, "start", engine], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    try:
        base = ["--build-arg", "BASE=cantle-test:base"]
        run("docker", "build", "-f", "images/cantle/Dockerfile", *base, "-t", CANTLE, ".")
        run("docker", "build", *base, "-t", "cantle-test:standin", "tests/docker/standin")
        run("images/build.sh", "--base", "cantle-test:standin", "--limit", "8GiB", "--tag", LIMITED)
        run("docker", "save", "--output", archive, CANTLE, LIMITED)
    finally:
        subprocess.run([ENGINE, "stop", engine], env=env, check=True, timeout=60)
        shutil.rmtree(engine, ignore_errors=True)
