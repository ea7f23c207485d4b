"""An engine whose default runtime is NVIDIA's, and images that ask it for all GPUs, as NVIDIA's images do. What is a stand-in is said in
nvidia_runtime.sh."""

import os

import pytest
from conftest import HERE, IMAGE, from_options

FILL = ["python3", "/tools/fill.py"]
TOOLS = ["-v", f"{HERE}:/tools:ro"]


@pytest.fixture(scope="module")
def image(engine, tmp_path_factory):
    if not os.environ.get("CANTLE_TEST_RUNTIME"):
        pytest.skip("no NVIDIA runtime; tests/docker/matrix.sh nvidia-legacy nvidia-cdi")
    folder = tmp_path_factory.mktemp("all")
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n")
    engine.client("build", "--tag", "cantle-test:all", folder)
    yield "cantle-test:all"
    engine.client("rmi", "--force", "cantle-test:all")


@pytest.fixture
def cantle(make_cantle):
    return make_cantle([0])


def test_it_is_nvidias_runtime_that_gives_the_whole_gpu(engine, image):
    """The negative control: the driver comes from nowhere but the runtime."""
    taken, code, shown = map(int, engine.client("run", "--rm", "--network", "none", *from_options(0), *TOOLS, image, *FILL).stdout.split())
    assert taken > 39 * 1024 and (code, shown) == (2, 40960)


@pytest.mark.parametrize("way", ["run", "docker-run"])
def test_a_slice_is_not_given_all_gpus_besides(cantle, image, way):
    words = {
        "run": ["run", "--gpu", "0.5", "--image", image, *TOOLS, "--", *FILL],
        "docker-run": ["docker-run", "--gpu", "0.5", "--", "docker", "run", "--rm", "--network", "none", "--gpus", "device=0", *TOOLS, image, *FILL],
    }
    run = cantle.cli(*words[way])
    taken, code, shown = map(int, run.stdout.split())
    assert 19 * 1024 < taken < 20480 and (code, shown) == (2, 20480), (run.stdout, run.stderr)


def test_a_slice_has_the_nodes_of_its_own_gpu_only(cantle, image):
    listed = cantle.cli("run", "--gpu", "0.5", "--image", image, "--", "sh", "-c", "cd /dev && echo nvidia*").stdout.split()
    assert sorted(listed) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], "no other GPU's"
