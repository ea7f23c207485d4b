"""Images with a limit of their own: plain `docker run`, no agent, the driver mounted as NVIDIA's runtime mounts it."""

import os
import subprocess

import pytest
from conftest import DRIVER, HERE, IMAGE, ROOT, driver, installation

GIB = 1 << 30
MIB = 1 << 20
LIMITED = "cantle-test:8gb"
FILL = ["python3", "/tools/fill.py"]


def build(engine, *words, code=0):
    env = {"PATH": os.environ["PATH"], "HOME": str(engine.folder), "DOCKER_BUILDKIT": "0"}
    env["DOCKER_HOST"] = f"unix://{engine.socket}"
    command = [ROOT / "images/build.sh", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def limited(engine):
    """An image of 8 GiB on a local base: CUDA's is not available without a registry."""
    build(engine, "--base", IMAGE, "--limit", "8GiB", "--tag", LIMITED)
    yield LIMITED
    engine.client("rmi", "--force", LIMITED)


@pytest.fixture
def machine(make_cantle, engine):
    """A GPU of 40 GiB that plain `docker run` can use."""
    return Machine(make_cantle([0]), engine)


class Machine:
    def __init__(self, cantle, engine):
        self.cantle, self.engine = cantle, engine

    def words(self, image, *command, options=(), folder=DRIVER):
        """`docker run` with the driver where NVIDIA's runtime puts it."""
        given = [*driver(0, folder=folder), "-v", f"{HERE}:/tools:ro"]
        return ["run", "--network", "none", *given, *options, image, *command]

    def run(self, image, *command, **more):
        words = self.words(image, *command, **more)
        return self.engine.client(words[0], "--rm", *words[1:]).stdout

    def fill(self, image, **more):
        """MiB taken, the driver's answer to the next step, MiB that CUDA shows."""
        return [int(word) for word in self.run(image, *FILL, **more).split()]


def test_the_real_nvidia_smi_shows_the_limit(machine, limited):
    if not os.path.exists("/usr/bin/nvidia-smi"):
        pytest.skip("the real nvidia-smi is not on this machine; tests/setup-nvidia-smi.sh fetches it")
    program = ["-v", "/usr/bin/nvidia-smi:/usr/bin/nvidia-smi:ro"]
    assert "0MiB /   8192MiB" in machine.run(limited, "nvidia-smi", options=program)
    assert "0MiB /  40960MiB" in machine.run(IMAGE, "nvidia-smi", options=program), "negative control"


def test_a_container_gets_its_limit_and_no_more(machine, limited):
    # A context is charged with 512 MiB.
    assert machine.fill(limited) == [8192 - 512, 2, 8192]
    assert machine.fill(limited, options=["--user", "1000"]) == [8192 - 512, 2, 8192]
    assert machine.fill(limited, options=["--pid=host", "--ipc=host"]) == [8192 - 512, 2, 8192]
    assert machine.fill(limited, folder="/usr/lib64", options=["-e", "LD_LIBRARY_PATH=/usr/lib64"])[0] == 8192 - 512
    assert machine.fill(limited, options=["--read-only"])[:2] == [0, 2], "no place to count: nothing is given"
    taken, code, shown = machine.fill(IMAGE)
    assert taken > 39 * 1024 and code == 2 and shown == 40960, "negative control"


def test_processes_share_it_and_containers_do_not(machine, limited, engine):
    """The witness is the driver: no more than the limit, independent of the processes' own view."""
    running = []
    for _ in range(2):
        words = machine.words(limited, *FILL, "600")
        running.append(engine.client(words[0], "--detach", *words[1:]).stdout.strip())
    try:
        told = lambda: [engine.client("logs", each).stdout.splitlines() for each in running]
        installation.wait_until(lambda: told() == [["7680 2 8192"]] * 2, 180, told)
        (used,) = machine.cantle.used()
        # The simulated contexts take less than they are charged with.
        assert 2 * 7680 * MIB < used <= 2 * 8 * GIB
        # A process that enters the container meets the same limit, and there is no memory for another context.
        second = engine.client("exec", running[0], *FILL, code=None)
        assert second.returncode != 0 and second.stdout == ""
        assert machine.cantle.used() == [used]
        # It starts again, and its count is zero again.
        engine.client("restart", "--time", "0", running[0])
        installation.wait_until(lambda: told()[0] == ["7680 2 8192"] * 2, 180, told)
        assert machine.cantle.used() == [used]
    finally:
        engine.client("rm", "--force", *running)


def test_who_builds_on_it_inherits_it(machine, limited, engine, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        f"FROM {limited}\nENV GPU_MEMORY_LIMIT=99999999999 LD_PRELOAD= NVIDIA_VISIBLE_DEVICES=all\n"
        "RUN useradd --create-home someone\nUSER someone\nWORKDIR /home/someone\n"
    )
    engine.client("build", "--tag", "cantle-test:custom", tmp_path)
    assert machine.fill("cantle-test:custom") == [8192 - 512, 2, 8192]
    engine.client("rmi", "cantle-test:custom")


@pytest.fixture
def standin(engine, limited):
    """The downloads of the examples' Dockerfiles are not available without a network: this has stand-ins for them."""
    engine.client("build", "--build-arg", f"BASE={limited}", "--tag", "cantle-test:standin", HERE / "standin")
    yield "cantle-test:standin"
    engine.client("rmi", "--force", "cantle-test:standin")


def example(engine, name, base):
    image = f"cantle-test:{name}"
    engine.client("build", "--build-arg", f"BASE={base}", "--tag", image, ROOT / "images/examples" / name)
    return image


def test_the_notebook_example(machine, engine, standin):
    notebook = example(engine, "notebook", standin)
    assert machine.run(notebook).strip() == "jupyter lab --ip=0.0.0.0 --no-browser as notebook in /home/notebook"
    assert machine.fill(notebook) == [8192 - 512, 2, 8192]
    engine.client("rmi", notebook)


POST = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen("http://127.0.0.1:8000/", b"." * int(sys.argv[1]))
except urllib.error.HTTPError as error:
    answer = error
except urllib.error.URLError:
    sys.exit(1)
print(answer.status, answer.read().decode())
"""


def test_the_inference_example(machine, engine, standin):
    """Its own server, with a model that takes 1 MiB for each character: what is over the limit is answered, not crashed."""
    inference = example(engine, "inference", standin)
    words = machine.words(inference)
    container = engine.client(words[0], "--detach", *words[1:]).stdout.strip()
    try:
        post = lambda size: engine.client("exec", container, "python3", "-c", POST, size, code=None)
        installation.wait_until(lambda: post(1).returncode == 0, 180, lambda: engine.client("logs", container).stderr)
        assert post(7000).stdout == '200 {"label": "POSITIVE", "score": 1.0}\n'
        assert post(8192).stdout == '503 {"error": "no 8192 MiB left"}\n'
        assert post(7000).stdout.startswith("200 "), "it goes on"
        assert engine.client("exec", container, "id", "-un").stdout.strip() == "server"
    finally:
        engine.client("rm", "--force", container)
        engine.client("rmi", inference)


# The attacks of a program that is not root; root could remove the files (docs/images.md).
ATTEMPTS = [
    "env -i python3 /tools/fill.py",
    "GPU_MEMORY_LIMIT=99999999999 CANTLE_SLICE_DIR=/tmp python3 /tools/fill.py",
    f"LD_PRELOAD={DRIVER}/libcuda.so.1 python3 /tools/fill.py",
    f"LD_LIBRARY_PATH={DRIVER} python3 /tools/fill.py",
    f"mkdir /tmp/own; cp {DRIVER}/libcuda.so.1 /tmp/own; LD_LIBRARY_PATH=/tmp/own python3 /tools/fill.py",
    f"cp {DRIVER}/libcuda.so.1 /tmp/mine.so; sed s:libcuda.so.1:/tmp/mine.so: /tools/fill.py >/tmp/a.py; python3 /tmp/a.py",
    f"sed s:libcuda.so.1:{DRIVER}/libcuda.so.1: /tools/fill.py >/tmp/b.py; python3 /tmp/b.py",
    "/lib64/ld-linux-x86-64.so.2 /usr/bin/python3 /tools/fill.py",
    "echo >/etc/ld.so.preload; rm -f /etc/ld.so.preload; python3 /tools/fill.py",
    "rm -rf /opt/cantle; mv /opt /opt2; python3 /tools/fill.py",
    "cp /etc/passwd /opt/cantle/slice/limits; truncate -s 0 /opt/cantle/slice/limits; python3 /tools/fill.py",
    "unshare -Urm sh -c 'mount -t tmpfs none /opt; python3 /tools/fill.py' || python3 /tools/fill.py",
    "setsid --wait sh -c 'setsid --wait python3 /tools/fill.py'",
    # The last one: from here on no program gets memory any more.
    "dd if=/dev/zero of=/opt/cantle/slice/usage bs=4096 count=1 conv=notrunc; python3 /tools/fill.py",
]


def test_a_program_cannot_lift_it(machine, limited):
    script = "; ".join(f"( {attempt} ) 2>/dev/null" for attempt in ATTEMPTS)
    lines = machine.run(limited, "sh", "-c", script, options=["--user", "1000"]).splitlines()
    assert len(lines) == len(ATTEMPTS), lines
    for attempt, line in zip(ATTEMPTS, lines, strict=True):
        taken, code, _ = map(int, line.split())
        assert taken < 8192 and code == 2, (attempt, line)


def test_a_task_in_such_an_image_has_the_smaller_limit(make_cantle, limited):
    cantle = make_cantle([0])
    tools = ["-v", f"{HERE}:/tools:ro"]
    cantle.up("--queue", "half=0.5", "eighth=0.125", "--docker", IMAGE)
    half, eighth = (cantle.submit(queue, *FILL, flags=["--image", limited, *tools]) for queue in ("half", "eighth"))
    for task, shown in ((half, 8192), (eighth, 5120)):
        cantle.wait_state(task, "completed", seconds=180)
        taken, code, total = map(int, cantle.said(task)[-1].split())
        assert (code, total) == (2, shown) and shown - 1024 < taken < shown


def test_what_the_build_script_takes(engine):
    matrix = [line.split() for line in build(engine, "--list").stdout.splitlines()]
    assert len(matrix) == 28 and ["cantle/fractional-gpu:u22-cuda12-8gb", "8GiB"] in [[tag, limit] for tag, _, limit in matrix]
    assert all(base.startswith("nvidia/cuda:1") and base.endswith(".04") for _, base, _ in matrix)
    for words, said in (
        (["--base", IMAGE], "go together"),
        (["--size", "8GiB"], "--size is not known"),
        (["--base", IMAGE, "--limit", "100MiB", "--tag", "cantle-test:small"], "it must be more than --context 512 MiB"),
        (["--base", IMAGE, "--limit", "8", "--tag", "cantle-test:small"], "8"),
    ):
        assert said in build(engine, *words, code=2).stderr
    build(engine, "--base", IMAGE, "--limit", "3G", "--context", "300MiB", "--tag", "cantle-test:3g")
    image = engine.inspect("cantle-test:3g")["Config"]
    # Whole pieces of 2 MiB.
    assert image["Labels"]["dev.cantle.gpu-memory-limit-bytes"] == str(1430 * 2 * MIB)
    engine.client("rmi", "cantle-test:3g")
