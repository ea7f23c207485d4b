"""Images with a copy of libcuda, as NVIDIA's images have one in CUDA's compatibility package. The copies are the simulated driver's."""

import shutil

import pytest
from conftest import DRIVER, HERE, IMAGE, driver, installation

FILL = ["python3", "/tools/fill.py"]
TOOLS = ["-v", f"{HERE}:/tools:ro"]
COMPAT = "/usr/local/cuda-12.8/compat"
FILES = f"COPY libcuda.so.1 {COMPAT}/libcuda.so.570.1\nRUN ln -s libcuda.so.570.1 {COMPAT}/libcuda.so.1 && ln -s cuda-12.8 /usr/local/cuda\n"
IMAGES = {
    "plain": FILES,
    # The copy in the loader's own configuration, and in its cache.
    "conf": FILES + f"RUN echo {COMPAT} >/etc/ld.so.conf.d/00-cuda-compat.conf && ldconfig\n",
    # As `apt-get install cuda-compat-12-8` leaves it: no link, no variable, no configuration.
    "unlinked": f"COPY libcuda.so.1 {COMPAT}/libcuda.so.570.1\nRUN ln -s libcuda.so.570.1 {COMPAT}/libcuda.so.1\n",
    "env": FILES + f"ENV LD_LIBRARY_PATH={COMPAT}\n",
    "odd": "COPY libcuda.so.1 /opt/odd/libcuda.so.1\nRUN echo /opt/odd >/etc/ld.so.conf.d/00-odd.conf && ldconfig\n",
}
EXPORT_VERSION = ["sh", "-c", f"export LD_LIBRARY_PATH={COMPAT}; python3 /tools/fill.py"]
EXPORT = ["sh", "-c", "export LD_LIBRARY_PATH=/usr/local/cuda/compat; python3 /tools/fill.py"]
HELD = [("plain", FILL), ("conf", FILL), ("env", FILL), ("plain", EXPORT), ("unlinked", EXPORT_VERSION)]


@pytest.fixture(scope="module")
def image(engine, tmp_path_factory):
    """Builds an image of the table."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            shutil.copy(f"{DRIVER}/libcuda.so.1", folder)
            (folder / "Dockerfile").write_text(f"FROM {IMAGE}\n{IMAGES[name]}")
            made[name] = f"cantle-test:copy-{name}"
            engine.client("build", "--tag", made[name], folder)
        return made[name]

    yield make
    for each in made.values():
        engine.client("rmi", "--force", each)


@pytest.fixture
def cantle(make_cantle):
    return make_cantle([0])


def alone(engine, image, *command):
    """MiB that the program takes in plain `docker run`."""
    return int(engine.client("run", "--rm", "--network", "none", *driver(0), *TOOLS, image, *command).stdout.split()[0])


@pytest.mark.parametrize(("name", "command"), HELD)
def test_a_copy_of_libcuda_is_held(cantle, engine, image, name, command):
    assert alone(engine, image(name), *command) > 39 * 1024, "negative control: without cantle it is the whole GPU"
    run = cantle.cli("run", "--gpu", "0.5", "--image", image(name), *TOOLS, "--", *command)
    taken, code, shown = map(int, run.stdout.split())
    assert 19 * 1024 < taken < 20480 and (code, shown) == (2, 20480), (run.stdout, run.stderr)
    assert f"{COMPAT}/libcuda.so.570.1" in run.stderr, "it is said what is covered"


def test_a_copy_where_nobody_looks_for_it_does_not_start(cantle, engine, image):
    assert alone(engine, image("odd"), *FILL) > 39 * 1024, "negative control"
    run = cantle.cli("run", "--gpu", "0.5", "--image", image("odd"), *TOOLS, "--", "sh", "-c", "sleep 60; exec python3 /tools/fill.py", code=125)
    assert "/opt/odd/libcuda.so.1" in run.stderr and "where no limit holds" in run.stderr, run.stderr
    assert run.stdout == "" and cantle.used() == [0]


def docker_run(cantle, image, *command, code=0):
    """As stock ClearML agents start their containers."""
    line = ["docker", "run", "--rm", "--network", "none", "--gpus", "device=0", *TOOLS, image, *command]
    return cantle.cli("docker-run", "--gpu", "0.5", "--", *line, code=code)


@pytest.mark.parametrize(("name", "command"), HELD)
def test_a_command_line_of_dockers_covers_copies_too(cantle, engine, image, name, command):
    assert alone(engine, image(name), *command) > 39 * 1024, "negative control"
    for _ in range(2):  # the second one remembers what the image has
        run = docker_run(cantle, image(name), *command)
        taken, code, shown = map(int, run.stdout.split())
        assert 19 * 1024 < taken < 20480 and (code, shown) == (2, 20480), (run.stdout, run.stderr)
        assert f"{COMPAT}/libcuda.so.570.1" in run.stderr
    # What was made to look at the image is gone.
    installation.wait_until(lambda: engine.containers() == [], 60, engine.containers)


def test_a_command_line_with_a_copy_where_nobody_looks_for_it_is_ended(cantle, engine, image):
    run = docker_run(cantle, image("odd"), "sh", "-c", "sleep 60; exec python3 /tools/fill.py", code=None)
    assert run.returncode != 0 and "/opt/odd/libcuda.so.1" in run.stderr and "where no limit holds" in run.stderr, run.stderr
    assert run.stdout == "" and cantle.used() == [0]
    # Docker's client removes it as well: it may be about to be gone.
    installation.wait_until(lambda: engine.containers() == [], 60, engine.containers)
