"""An image that is newer than the driver: CUDA 13 on a driver for CUDA 12.4. It brings the libcuda of CUDA's compatibility package, which here is
the simulated driver's with another version in it (copies.py)."""

import os

import pytest
from conftest import DRIVER, HERE, IMAGE, from_options, installation
from copies import library

COMPAT = "/usr/local/cuda-13.0/compat"
FILL = "python3 /tools/fill.py"
TOOLS = ["-v", f"{HERE}:/tools:ro"]
BOTH = ["sh", "-c", f"python3 /tools/cuda_version.py; cat /usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4; {FILL}"]
GIB = 1 << 30
OLD, NEW = "0 12040", "0 13000"
# Version of the image's libcuda, the drivers that its note names, more lines of the Dockerfile.
IMAGES = {
    "newer": ("580.65.06", None, ""),
    "newer-env": ("580.65.06", None, f"ENV LD_LIBRARY_PATH={COMPAT}\n"),
    "noted": ("580.65.06", [535, 550], ""),
    "not-for-this": ("580.65.06", [535, 570], ""),
    "older": ("535.1.1", None, f"ENV LD_LIBRARY_PATH={COMPAT}\n"),
}


@pytest.fixture(scope="module")
def image(engine, tmp_path_factory):
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            version, drivers, more = IMAGES[name]
            library(f"{DRIVER}/libcuda.so.1", folder / "libcuda", version, drivers)
            (folder / "nvvm").write_text("nvvm of the image\n")
            (folder / "Dockerfile").write_text(
                f"FROM {IMAGE}\nCOPY libcuda {COMPAT}/libcuda.so.{version}\nCOPY nvvm {COMPAT}/libnvidia-nvvm.so.{version}\n"
                f"RUN cd {COMPAT} && ln -s libcuda.so.{version} libcuda.so.1 && ln -s libcuda.so.1 libcuda.so "
                f"&& ln -s libnvidia-nvvm.so.{version} libnvidia-nvvm.so.4 && ln -s cuda-13.0 /usr/local/cuda\n"
                f"ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n{more}"
            )
            made[name] = f"cantle-test:forward-{name}"
            engine.client("build", "--tag", made[name], folder)
        return made[name]

    yield make
    for each in made.values():
        engine.client("rmi", "--force", each)


@pytest.fixture
def cantle(make_cantle):
    return make_cantle([0])


def without_cantle(engine, image):
    """As a customer would run it: the toolkit gives the driver, or, where the engine has none, options do."""
    return engine.client("run", "--rm", "--network", "none", *from_options(0), *TOOLS, image, "sh", "-c", f"python3 /tools/cuda_version.py; {FILL}").stdout


def is_half(line):
    taken, code, shown = map(int, line.split())
    return 19 * 1024 < taken < 20480 and (code, shown) == (2, 20480)


WAYS = {
    "run": lambda image: ["run", "--gpu", "0.5", "--image", image, *TOOLS, "--", *BOTH],
    "docker-run": lambda image: [
        "docker-run", "--gpu", "0.5", "--", "docker", "run", "--rm", "--network", "none", "--gpus", "device=0", *TOOLS, image, *BOTH,
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["newer", "newer-env", "noted"])
def test_an_image_newer_than_the_driver_runs_in_a_slice(cantle, engine, image, way, name):
    version, taken = without_cantle(engine, image(name)).splitlines()
    if os.environ.get("CANTLE_TEST_RUNTIME") or name == "newer-env":
        assert version == NEW, "it is so without cantle"
    assert int(taken.split()[0]) > 39 * 1024, "negative control: without cantle it is the whole GPU"
    for _ in range(2):  # the second one finds the package fetched
        run = cantle.cli(*WAYS[way](image(name)))
        version, nvvm, taken = run.stdout.splitlines()
        assert (version, nvvm) == (NEW, "nvvm of the image"), (run.stdout, run.stderr)
        assert is_half(taken), (run.stdout, run.stderr)
        assert "libcuda.so.580.65.06 is newer than the driver's and used" in run.stderr


@pytest.mark.parametrize("name", ["not-for-this", "older"])
def test_a_package_that_is_not_for_this_driver_is_covered_by_the_drivers_own(cantle, image, name):
    run = cantle.cli("run", "--gpu", "0.5", "--image", image(name), *TOOLS, "--", "sh", "-c", f"python3 /tools/cuda_version.py; {FILL}")
    version, taken = run.stdout.splitlines()
    assert version == OLD and is_half(taken), (run.stdout, run.stderr)
    assert "is newer than the driver's" not in run.stderr


def test_what_a_task_of_a_daemon_takes_is_counted_once(cantle, engine, image):
    cantle.up("--queue", "half=0.5", "--docker", image("newer"), *TOOLS)
    tasks = [cantle.submit("half", "sh", "-c", f"python3 /tools/cuda_version.py; exec {FILL} 600") for _ in range(2)]
    for task in tasks:
        installation.wait_until(lambda t=task: len(cantle.said(t)) == 2, 240, lambda t=task: cantle.output(t))
        version, taken = cantle.said(task)
        assert version == NEW and is_half(taken)
    assert cantle.used() == [40 * GIB], "as the driver itself counts it"
    for task in tasks:
        cantle.cli("stop", task)
        cantle.wait_state(task, "stopped", seconds=240)
