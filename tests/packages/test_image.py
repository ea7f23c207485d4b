"""The container image, in a real engine of the tests' own. Its program makes an enforced slice of a simulated GPU there."""

import shutil
import subprocess

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


def test_a_slice_is_enforced_inside(docker):
    slice_ = ["run", "--sim-gpus=1xA100-40GB", "--gpu=0.5", "--", "cantle", "limits"]
    shown = docker("run", "--rm", "--network=none", "--privileged", "--user=0", image(), *slice_)
    assert "20" in shown and "GiB" in shown, shown


def test_a_node_gets_the_libraries_from_it(docker, tmp_path):
    words = ["controller", "libraries", "--to=/opt/cantle/lib"]
    docker("run", "--rm", "--network=none", "--user=0", f"--volume={tmp_path}:/opt/cantle/lib", image(), *words)
    expected = ROOT / "dist/lib/cantle/shim/libcuda.so.1"
    assert (tmp_path / "shim/libcuda.so.1").read_bytes() == expected.read_bytes()


def test_podman_reads_the_same_archive(tmp_path):
    if not shutil.which("podman"):
        pytest.skip("no podman; tests/setup.sh docker installs it")
    podman = ["podman", "--root", tmp_path / "root", "--runroot", tmp_path / "run", "--storage-driver=vfs"]
    done = subprocess.run([*podman, "load", "--input", only("cantle-*-image.tar")], capture_output=True, text=True)
    assert done.returncode == 0 and image() in done.stdout, done.stdout + done.stderr
    subprocess.run([*podman, "rmi", "--all", "--force"], capture_output=True)
