"""The driver's own limit (NVML 615, simulated) of tasks in containers: it is on a group of cantle's above the engine's before the container's first
process starts, outlives the agent, and is gone with the task. The cells `driver-615` and `driver-615-v2` of matrix.sh; no real driver 615 was tried."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from conftest import DRIVER, HERE, IMAGE, ROOT, installation

MIB, GIB = 1 << 20, 1 << 30
CANTLE = installation.CANTLE
wait_until = installation.wait_until
# What a task may always hold beyond its slice.
TOLERATED = 512 * MIB
SLICE = 4 * GIB
OUT_OF_MEMORY = 2
UNAVAILABLE = 7
GROUPS = "cantle-containers"
TOOLS = ["-v", f"{HERE}:/tools:ro", "-v", f"{ROOT / 'tests/bypass'}:/bypass:ro"]
# A process sees the groups above its own only in the cgroup namespace of the machine. The simulated driver has no other way to know them.
NAMESPACE = ["--cgroupns", "host"]
FILL = ["python3", "/tools/fill.py"]

pytestmark = pytest.mark.skipif("CANTLE_TEST_DRIVER" not in os.environ, reason="another driver; run tests/docker/matrix.sh driver-615")


@pytest.fixture
def cantle(make_cantle):
    found = make_cantle([0, 1])
    yield found
    found.machine.faults(None)
    assert groups() == [], "nothing is left of the groups"


def limits(cantle):
    return [limit for gpu in cantle.truth() for limit in gpu["limits"]]


def groups():
    """The groups of containers, in every hierarchy."""
    mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines() if line.split()[2] in ("cgroup", "cgroup2")]
    return [str(path) for mount in mounts for path in pathlib.Path(mount, GROUPS).glob("*/")]


def run(cantle, *words, code=0):
    """`cantle run` in a container, to its end."""
    done = cantle.program(CANTLE, "run", *words, timeout=300)
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def in_slice(*flags):
    return ["--gpu-memory", f"{SLICE // MIB}Mi", *flags, "--image", IMAGE, *NAMESPACE, *TOOLS]


@pytest.fixture
def own(tmp_path):
    """A directory of the task's own, with a copy of the driver's library that is no filter."""
    shutil.copy(f"{DRIVER}/libcuda.so.1", tmp_path / "own.so")
    return ["-v", f"{tmp_path}:/own"]


def test_a_task_is_limited_until_its_end_whatever_ends_the_agent(cantle, engine):
    port = installation.own_port()
    words = ["--enforce", "driver", "--keep-tasks", "--queue", "half=0.5", "--docker", IMAGE, *NAMESPACE, *TOOLS]
    up = cantle.up(*words, port=port)
    task = cantle.submit("half", *FILL, "600")
    wait_until(lambda: len(cantle.said(task)) == 1, 240, lambda: cantle.output(task))
    slices = lambda: [one for gpu in cantle.json("gpus") for one in gpu["slices"]]  # noqa: E731
    wait_until(lambda: [one.get("enforced_by") for one in slices()] == [["nvml", "filter"]], 60, slices)
    (limit,) = limits(cantle)
    assert (limit["soft_bytes"], limit["hard_bytes"]) == (0, 20 * GIB + TOLERATED)
    assert "enforced by driver + container mounts" in cantle.cli("events").stdout
    # The engine's own group is below, and the kernel counts the task's processes to it.
    container = engine.inspect(engine.container_of(task))
    assert container["HostConfig"]["CgroupParent"] == f"/{GROUPS}/{pathlib.Path(limit['group']).name}"
    member = pathlib.Path(f"/proc/{container['State']['Pid']}/cgroup").read_text()
    assert f"0::{container['HostConfig']['CgroupParent']}/{container['Id']}" in member.splitlines(), member

    up.send_signal(signal.SIGKILL)
    up.wait()
    assert limits(cantle) == [limit], "it is the group's"
    done = cantle.program(sys.executable, "-c", installation.SET_LIMIT, limit["group"], str(12 * GIB))
    assert done.returncode == 0, done.stderr
    cantle.up(*words, port=port)
    wait_until(lambda: limits(cantle) == [limit], 60, lambda: limits(cantle))
    assert "had been changed, and is set again" in cantle.output(task)
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped", "failed", seconds=240)
    assert limits(cantle) == [] and groups() == []


def evade(cantle, engine, *words):
    """What a program of tests/bypass/evade.py says that takes twice its slice with a copy of the driver's library, and what `cantle run` says. It
    stays, so its container is removed then."""
    command = cantle.machine.command(CANTLE, *words, 2 * SLICE)
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=cantle.env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    line = child.stdout.readline()
    for container in engine.containers():
        engine.remove(container)
    _, said = child.communicate(timeout=120)
    return json.loads(line or "{}"), said


@pytest.mark.parametrize("way", ["copies", "memfd", "deep", "orphan", "bursts", "kill_parent"])
def test_an_evader_is_refused(cantle, engine, own, way):
    """Ways that end with the task's death on an older driver."""
    record, said = evade(cantle, engine, "run", *in_slice(), *own, "--", "python3", "/bypass/evade.py", way, "/own/own.so")
    assert record == {"prevented": f"CUDA error {OUT_OF_MEMORY}"} and "the task is killed" not in said, said
    assert "enforced by driver + container mounts" in said and limits(cantle) == []


@pytest.mark.parametrize("way", ["a_copy", "the_real_file", "no_environment"])
def test_a_private_library_is_refused(cantle, own, way):
    library = {"a_copy": "/own/own.so", "the_real_file": "/run/cantle/real/libcuda.so.1", "no_environment": "/own/own.so"}[way]
    clean = ["env", "-i", "/usr/bin/python3"] if way == "no_environment" else ["python3"]
    fill = (HERE / "fill.py").read_text().replace("libcuda.so.1", library)
    done = run(cantle, *in_slice(), *own, "--", *clean, "-c", fill)
    taken, code, _ = map(int, done.stdout.split())
    assert code == OUT_OF_MEMORY and SLICE <= taken * MIB <= SLICE + TOLERATED, done.stdout
    assert "enforced by driver + container mounts" in done.stderr and "the task is killed" not in done.stderr
    assert limits(cantle) == [] and groups() == []


def test_with_the_filter_alone_it_is_ended(cantle, own):
    """The control: the same driver, without its limit."""
    words = [*in_slice("--enforce", "filter"), *own]
    done = run(cantle, *words, "--", "python3", "/bypass/evade.py", "memfd", "/own/own.so", 2 * SLICE, code=137)
    assert json.loads(done.stdout) == {"granted": 2 * SLICE} and "the task is killed" in done.stderr


def test_all_gpus_get_one_or_none(cantle):
    """It fails on the second of two: no container starts, and nothing stays set."""
    cantle.machine.faults("nvmlDeviceSetMemoryLimits_v1 gpu=1 error=999")
    words = ["--gpus", "2", "--image", IMAGE, *NAMESPACE, "--", "echo", "started"]
    done = run(cantle, *words, code=UNAVAILABLE)
    assert done.stdout == "" and "nvmlDeviceSetMemoryLimits_v1 failed on GPU-" in done.stderr
    assert limits(cantle) == [] and groups() == []
    cantle.machine.faults(None)
    assert run(cantle, *words).stdout == "started\n"
    assert limits(cantle) == []


def test_a_container_that_does_not_start_leaves_no_limit(cantle):
    done = run(cantle, "--gpu", "0.5", "--image", IMAGE, "--", "no-such-program", code=None)
    assert done.returncode != 0 and "no-such-program" in done.stderr
    assert limits(cantle) == [] and groups() == []


def test_a_command_line_of_dockers_is_limited_too(cantle, engine, own):
    words = ["docker", "run", "--rm", "--network", "none", "--gpus", "device=0", *NAMESPACE, *TOOLS, *own, IMAGE]
    words = ["docker-run", "--gpu-memory", f"{SLICE // MIB}Mi", "--", *words, "python3", "/bypass/evade.py", "memfd", "/own/own.so"]
    record, said = evade(cantle, engine, *words)
    assert record == {"prevented": f"CUDA error {OUT_OF_MEMORY}"}, said
    assert "enforced by driver + container mounts" in said and limits(cantle) == []


@contextlib.contextmanager
def systemds_groups(engine, socket_path):
    """The same engine on another socket, where it says that systemd makes its groups. Both texts have one length."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(socket_path))
    server.listen()

    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data.replace(b'"CgroupDriver":"cgroupfs",', b'"CgroupDriver":"systemd" ,'))
            target.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                behind = socket.socket(socket.AF_UNIX)
                behind.connect(str(engine.socket))
                for pair in ((client, behind), (behind, client)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_an_engine_that_takes_no_group_has_the_filter(cantle, engine, own, tmp_path):
    with systemds_groups(engine, tmp_path / "proxy"):
        cantle.env["DOCKER_HOST"] = f"unix://{tmp_path}/proxy"
        why = "the control groups of the container engine are made by systemd (cgroupfs would let cantle make one)"
        words = ["--image", IMAGE, "--", "echo", "started"]
        refused = run(cantle, "--gpu", "0.5", "--enforce", "driver", *words, code=UNAVAILABLE)
        assert refused.stdout == "" and why in refused.stderr and engine.containers() == [], refused.stderr
        port = installation.own_port()
        up = cantle.cli("up", "--listen", f"127.0.0.1:{port}", "--gpus", "0", "--enforce", "driver", "--queue", "q=0.5", "--docker", IMAGE, code=None)
        assert up.returncode == UNAVAILABLE and why in up.stderr, (up.returncode, up.stderr)
        done = run(cantle, "--gpu", "0.5", *words)
        assert done.stdout == "started\n" and "enforced by container mounts" in done.stderr
        said = cantle.cli("doctor", code=None).stdout
        assert f"a driver's own limit does not hold in containers: {why}" in said, said
    assert limits(cantle) == []


def test_doctor_names_it(cantle):
    said = cantle.cli("doctor", code=None).stdout
    assert "in force for tasks" in said and "so a driver's own limit holds in containers" in said, said
