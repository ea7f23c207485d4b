"""The container image, in a real engine of the tests' own. It has a server and the libraries of a node; no task runs in it."""

import shutil
import subprocess
import tempfile
import time

import pytest
from conftest import ROOT, only

ENGINE = ROOT / "tests/docker/engine.sh"


@pytest.fixture(scope="module")
def docker(tmp_path_factory):
    """Runs docker with these words; what it printed."""
    if not shutil.which("dockerd"):
        pytest.skip("no dockerd; tests/setup.sh docker installs it")
    folder = tmp_path_factory.mktemp("engine")
    subprocess.run([ENGINE, "start", folder], check=True, capture_output=True)

    def run(*words, status=0):
        done = subprocess.run(["docker", "--host", f"unix://{folder}/docker.sock", *words], capture_output=True, text=True)
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    assert "cantle/cantle:" in run("load", "--input", only("cantle-*-image.tar"))
    yield run
    subprocess.run([ENGINE, "stop", folder], check=True, capture_output=True)


def image():
    version = only("cantle-*-image.tar").name.split("-")[1]
    return f"cantle/cantle:{version}"


def test_the_image_runs_as_nobody_and_has_no_shell(docker):
    assert docker("run", "--rm", "--network=none", image(), "--version").startswith("cantle ")
    assert docker("inspect", "--format={{.Config.User}}", image()).strip() == "65532:65532"
    docker("run", "--rm", "--network=none", "--entrypoint=sh", image(), status=127)


def test_a_server_answers_in_it(docker):
    state = ["--state", "/state"]
    words = ["--network=none", "--read-only", "--tmpfs=/state:uid=65532,gid=65532,mode=700", image(), *state, "server"]
    server = docker("run", "--detach", *words).strip()
    try:
        end = time.monotonic() + 120
        while "cantle server is up" not in docker("logs", server):
            assert time.monotonic() < end, docker("logs", server)
            time.sleep(0.1)
        assert "NODE" in docker("exec", server, "cantle", *state, "nodes")
    finally:
        docker("rm", "--force", server)


def test_a_node_gets_the_libraries_from_it(docker, tmp_path):
    words = ["controller", "libraries", "--to=/opt/cantle/lib"]
    docker("run", "--rm", "--network=none", "--user=0", f"--volume={tmp_path}:/opt/cantle/lib", image(), *words)
    expected = ROOT / "dist/lib/cantle/shim/libcuda.so.1"
    assert (tmp_path / "shim/libcuda.so.1").read_bytes() == expected.read_bytes()


def test_podman_reads_the_same_archive(tmp_path):
    if not shutil.which("podman"):
        pytest.skip("no podman; tests/setup.sh docker installs it")
    # Podman refuses a longer path than 50 characters.
    run = tempfile.mkdtemp(prefix="podman-")
    podman = ["podman", "--root", tmp_path / "root", "--runroot", run, "--storage-driver=vfs"]
    done = subprocess.run([*podman, "load", "--input", only("cantle-*-image.tar")], capture_output=True, text=True)
    assert done.returncode == 0 and image() in done.stdout, done.stdout + done.stderr
    subprocess.run([*podman, "rmi", "--all", "--force"], capture_output=True)
    shutil.rmtree(run, ignore_errors=True)
