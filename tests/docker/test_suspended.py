"""Suspend and resume tasks in real containers: by hand, to make room for another task, and with deaths in between. The driver's record is the
witness. The cells `driver-615` and `driver-615-v2` of matrix.sh."""

import json
import os
import select
import signal

import pytest

from conftest import HERE, IMAGE, installation

MIB, GIB = 1 << 20, 1 << 30
wait_until = installation.wait_until

pytestmark = pytest.mark.skipif("CANTLE_TEST_DRIVER" not in os.environ, reason="another driver; run tests/docker/matrix.sh driver-615")

# Answers each line on its input. A line is an expression.
PROGRAM = """
import ctypes, json, os, re, sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
cu = ctypes.CDLL("libcuda.so.1")
assert cu.cuInit(0) == 0
context = c_void_p()
assert cu.cuDevicePrimaryCtxRetain(byref(context), 0) == 0 and cu.cuCtxSetCurrent(context) == 0
def alloc(size):
    return cu.cuMemAlloc_v2(byref(c_uint64()), c_size_t(size))
def managed(size):
    return cu.cuMemAllocManaged(byref(c_uint64()), c_size_t(size), 1)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class Talk:
    """The program in a container, through two pipes in a directory that both sides have."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
        for name in ("in", "out"):
            os.mkfifo(folder / name)
        self.words = ["-v", f"{folder}:/talk"]
        self.command = ["sh", "-c", "exec python3 /talk/program.py </talk/in >/talk/out"]
        # Both ends, so that opening one does not wait for the container.
        self.to, self.back = (os.fdopen(os.open(folder / name, os.O_RDWR), "r+b", buffering=0) for name in ("in", "out"))

    def tell(self, expression):
        self.to.write(expression.encode() + b"\n")

    def answer(self):
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([self.back], [], [], 240)[0], f"no answer: {line}"
            line += self.back.read(1)
        return json.loads(line)

    def ask(self, expression):
        self.tell(expression)
        return self.answer()

    def end(self):
        """The program finds the end of its input: nobody writes any more."""
        self.to.close()


@pytest.fixture
def talk(tmp_path):
    return Talk(tmp_path / "talk")


@pytest.fixture
def cantle(make_cantle):
    found = make_cantle([0])
    yield found
    found.machine.model()
    assert found.machine.checkpoints() == []


def up(cantle, talk, *words, **options):
    return cantle.up("--keep-tasks", "--queue", "q=task", *words, "--docker", IMAGE, "-v", f"{HERE}:/tools:ro", *talk.words, **options)


def begin(cantle, talk, *flags):
    """A task that holds 1 GiB, and what the driver counts for it then."""
    task = cantle.submit("q", *talk.command, flags=flags or ("--gpu", "0.5"))
    assert talk.ask(f"alloc({GIB})") == 0
    (held,) = cantle.used()
    # The lease names its first process.
    wait_until(lambda: row(cantle, task)["state"] == "running", 60, lambda: cantle.json("ps"))
    return task, held


def row(cantle, task):
    (found,) = [one for one in cantle.json("ps") if one["task"] == task] or [{"state": None}]
    return found


def is_out(cantle, task):
    return (cantle.task(task)["reason"] or "").startswith("suspended since")


def test_memory_is_free_for_others_and_comes_back(cantle, engine, talk):
    up(cantle, talk)
    task, held = begin(cantle, talk, "--gpus", "1")
    # A second process, which the engine puts into the container.
    child = "import sys, time; exec(open('/talk/program.py').read().split('for line')[0]); assert alloc(2 << 30) == 0; time.sleep(3600)"
    engine.client("exec", "--detach", engine.container_of(task), "python3", "-c", child)
    wait_until(lambda: cantle.used()[0] > held + 2 * GIB, 60, cantle.used)
    both = cantle.used()
    assert "GPU 0 is free" in cantle.cli("suspend", task).stderr
    assert cantle.used() == [0] and len(cantle.machine.checkpoints()) == 2
    wait_until(lambda: is_out(cantle, task), 60, lambda: cantle.task(task))
    other = cantle.submit("q", "python3", "/tools/fill.py", flags=("--gpus", "1"))
    assert cantle.wait_state(other, "completed", "failed", seconds=240)["state"] == "completed"
    talk.tell(f"alloc({GIB})")
    assert "runs again: GPU 0" in cantle.cli("resume", task).stderr
    assert talk.answer() == 0, "it waited, and was not refused"
    assert cantle.used() == [both[0] + GIB]
    talk.end()
    wait_until(lambda: cantle.task(task)["state"] == "completed", 240, lambda: cantle.task(task))


NODES = "sorted(name for name in os.listdir('/dev') if re.fullmatch('nvidia[0-9]+', name))"


@pytest.fixture
def pair(make_cantle):
    """With both GPUs of the machine."""
    found = make_cantle([0, 1])
    yield found
    found.machine.model()
    assert found.machine.checkpoints() == []


def begin_on_one(cantle, talk):
    """A task, the GPU where it is, and the other one."""
    task = cantle.submit("q", *talk.command, flags=("--gpu", "0.5"))
    assert talk.ask(f"alloc({GIB})") == 0
    wait_until(lambda: row(cantle, task)["state"] == "running", 60, lambda: cantle.json("ps"))
    here = row(cantle, task)["gpu"]
    return task, here, 1 - here


def is_on(cantle, engine, talk, task, gpu):
    """All see the task on this GPU, and its container has no node of another one."""
    assert talk.ask(NODES) == [f"nvidia{gpu}"]
    assert cantle.used()[1 - gpu] == 0 < cantle.used()[gpu]
    assert row(cantle, task)["gpu"] == gpu
    truth = cantle.truth()
    assert [limit["hard_bytes"] > 20 * GIB for limit in truth[gpu]["limits"]] == [True], truth
    # A program that starts in the container now.
    asked = engine.client("exec", engine.container_of(task), "python3", "-c", UUID).stdout.strip()
    assert asked == truth[gpu]["uuid"].removeprefix("GPU-").replace("-", "")


UUID = """
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
count, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
assert cu.cuInit(0) == 0 and cu.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 1
assert cu.cuDeviceGetUuid(uuid, 0) == 0
print(bytes(uuid).hex())
"""


def test_it_moves_to_another_gpu_and_back(pair, engine, talk):
    up(pair, talk)
    task, here, other = begin_on_one(pair, talk)
    is_on(pair, engine, talk, task, here)
    assert f"GPU {other}" in pair.cli("move", task, "--gpu", other).stderr
    is_on(pair, engine, talk, task, other)
    assert talk.ask(f"alloc({GIB})") == 0
    pair.cli("suspend", task)
    assert pair.used() == [0, 0]
    pair.cli("resume", task, "--gpu", here)
    is_on(pair, engine, talk, task, here)
    assert talk.ask(f"alloc({20 * GIB})") == 2, "it has half a GPU there too"
    talk.end()
    pair.wait_state(task, "completed", seconds=240)


def test_it_goes_on_elsewhere_if_its_gpu_is_full(pair, engine, talk):
    up(pair, talk)
    task, here, other = begin_on_one(pair, talk)
    pair.cli("suspend", task)
    filler = pair.submit("q", "sleep", "600", flags=("--gpus", "1"))
    wait_until(lambda: row(pair, filler)["state"] == "running", 240, lambda: pair.json("ps"))
    assert row(pair, filler)["gpu"] == here, "both GPUs are free, and it takes the first one"
    assert f"GPU {other}" in pair.cli("resume", task).stderr
    is_on(pair, engine, talk, task, other)
    pair.cli("stop", filler)
    talk.end()
    pair.wait_state(task, "completed", seconds=240)


@pytest.mark.parametrize("ended", ["helper", "command"])
def test_a_death_in_a_move_leaves_it_on_one_gpu(pair, engine, talk, ended):
    up(pair, talk)
    task, here, other = begin_on_one(pair, talk)
    for target in (other, here):
        pair.machine.model("checkpoint_mib_per_s=512")
        child = pair.start("move", task, "--gpu", target, log="step.log")
        wait_until(lambda: helpers(child.pid), 30, "a helper")
        wait_until(pair.machine.checkpoints, 30, "a checkpoint")
        for victim in helpers(child.pid) if ended == "helper" else [child.pid]:
            os.kill(victim, signal.SIGKILL)
        child.wait(timeout=60)
        wait_until(lambda: not pair.machine.checkpoints() and row(pair, task)["state"] == "running", 60, lambda: row(pair, task))
        pair.machine.model()
        now = row(pair, task)["gpu"]
        is_on(pair, engine, talk, task, now)
        pair.cli("move", task, "--gpu", 1 - now)
        is_on(pair, engine, talk, task, 1 - now)
        if 1 - now != target:
            pair.cli("move", task, "--gpu", target)
    talk.end()
    pair.wait_state(task, "completed", seconds=240)


def test_what_the_driver_cannot_suspend_is_undisturbed(cantle, talk):
    up(cantle, talk)
    task, _ = begin(cantle, talk)
    assert talk.ask(f"managed({MIB})") == 0
    held = cantle.used()
    assert "has managed memory (cuMemAllocManaged)" in cantle.cli("suspend", task, code=8).stderr
    assert cantle.used() == held and talk.ask(f"alloc({GIB})") == 0
    talk.end()
    cantle.wait_state(task, "completed", seconds=240)


@pytest.mark.parametrize("ended", ["helper", "command"])
@pytest.mark.parametrize("step", ["suspend", "resume"])
def test_a_death_in_the_middle_ends_running(cantle, talk, ended, step):
    """An unfinished suspension is undone, and an unfinished return goes on."""
    up(cantle, talk)
    task, held = begin(cantle, talk)
    if step == "resume":
        cantle.cli("suspend", task)
    cantle.machine.model("checkpoint_mib_per_s=512")
    before = cantle.machine.checkpoints()
    child = cantle.start(step, task, log="step.log")
    wait_until(lambda: helpers(child.pid), 30, "a helper")
    wait_until(lambda: cantle.machine.checkpoints() != before or child.poll() is not None, 30, cantle.machine.checkpoints)
    for victim in helpers(child.pid) if ended == "helper" else [child.pid]:
        os.kill(victim, signal.SIGKILL)
    child.wait(timeout=60)
    wait_until(lambda: cantle.used() == [held] and not cantle.machine.checkpoints(), 60, lambda: (cantle.used(), cantle.machine.checkpoints()))
    wait_until(lambda: row(cantle, task)["state"] == "running", 60, lambda: row(cantle, task))
    assert talk.ask(f"alloc({GIB})") == 0
    cantle.machine.model()
    cantle.cli("suspend", task)
    cantle.cli("resume", task)
    talk.end()
    cantle.wait_state(task, "completed", seconds=240)


def helpers(pid):
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(open(f"/proc/{each}/stat").read().rsplit(")", 1)[1].split()[1])
            words = open(f"/proc/{each}/cmdline").read().split("\0")
        except OSError:
            continue
        if parent == pid and "__checkpoint" in words:
            found.append(int(each))
    return found


def test_it_outlives_agent_and_engine(cantle, engine, talk):
    port = installation.own_port()
    agent = up(cantle, talk, port=port)
    task, held = begin(cantle, talk)
    cantle.cli("suspend", task)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    engine.restart()
    assert cantle.used() == [0]
    up(cantle, talk, port=port)
    wait_until(lambda: is_out(cantle, task), 60, lambda: cantle.task(task))
    cantle.cli("resume", task)
    assert cantle.used() == [held] and talk.ask(f"alloc({GIB})") == 0
    talk.end()
    cantle.wait_state(task, "completed", seconds=240)


@pytest.mark.parametrize("who", ["owner", "engine"])
def test_the_end_of_a_suspended_one_leaves_nothing(cantle, engine, talk, who):
    up(cantle, talk)
    task, _ = begin(cantle, talk)
    cantle.cli("suspend", task)
    if who == "owner":
        cantle.cli("stop", task)
    else:
        engine.remove(engine.container_of(task))
    cantle.wait_state(task, "stopped", "failed", seconds=240)
    wait_until(lambda: cantle.json("ps") == [] and engine.containers() == [], 60, lambda: cantle.json("ps"))
    assert cantle.used() == [0] and cantle.machine.checkpoints() == []


def up_with_suspension(cantle, talk):
    """A queue that suspends before it requeues; the flags of a task that needs its only GPU."""
    up(cantle, talk)
    cantle.cli("queues", "set", "q", "--preempt", "suspend,requeue")
    cantle.cli("quota", "set", "a", "--gpu", "1")
    return "--gpus", "1", "--project", "a"


def test_it_makes_room_for_another_one(cantle, talk):
    flags = up_with_suspension(cantle, talk)
    low, held = begin(cantle, talk, *flags)
    high = cantle.submit("q", "python3", "/tools/fill.py", "5", flags=(*flags, "--priority", "5"))
    wait_until(lambda: is_out(cantle, low), 240, lambda: (cantle.task(low), cantle.task(high)))
    assert cantle.task(low)["state"] == "in_progress"
    assert cantle.wait_state(high, "completed", "failed", seconds=240)["state"] == "completed"
    wait_until(lambda: cantle.used() == [held], 240, cantle.used)
    assert talk.ask(f"alloc({GIB})") == 0
    talk.end()
    cantle.wait_state(low, "completed", seconds=240)
    kinds = [event["kind"] for event in cantle.json("events", "--task", low)]
    assert kinds.count("place") == 1, "it ran once"


def test_it_comes_back_on_another_gpu_when_there_is_room(pair, engine, talk):
    """The agent does this, without a command."""
    up(pair, talk)
    pair.cli("queues", "set", "q", "--preempt", "suspend,requeue")
    pair.cli("quota", "set", "a", "--gpu", "2")
    flags = "--gpus", "1", "--project", "a"
    first = pair.submit("q", "sleep", "600", flags=flags)
    wait_until(lambda: row(pair, first)["state"] == "running", 240, lambda: pair.json("ps"))
    low = pair.submit("q", *talk.command, flags=flags)
    assert talk.ask(f"alloc({GIB})") == 0
    here = row(pair, low)["gpu"]
    high = pair.submit("q", "sleep", "600", flags=(*flags, "--priority", "5"))
    wait_until(lambda: is_out(pair, low) and row(pair, high)["state"] == "running", 240, lambda: pair.json("ps"))
    assert row(pair, high)["gpu"] == here
    pair.cli("stop", first)
    wait_until(lambda: row(pair, low)["state"] == "running", 240, lambda: (pair.task(low), pair.json("ps")))
    assert row(pair, low)["gpu"] == 1 - here and talk.ask(NODES) == [f"nvidia{1 - here}"]
    assert talk.ask(f"alloc({GIB})") == 0
    pair.cli("stop", high)
    talk.end()
    pair.wait_state(low, "completed", seconds=240)


def test_one_that_cannot_be_suspended_is_queued_again(cantle, talk):
    flags = up_with_suspension(cantle, talk)
    low, _ = begin(cantle, talk, *flags)
    assert talk.ask(f"managed({MIB})") == 0
    high = cantle.submit("q", "true", flags=(*flags, "--priority", "5"))
    cantle.wait_state(high, "completed", seconds=240)
    wait_until(lambda: [event["kind"] for event in cantle.json("events", "--task", low)].count("place") == 2, 240, lambda: cantle.task(low))
    assert "managed memory" in cantle.cli("logs", low, "--run", "1").stdout
    cantle.cli("stop", low)
    cantle.wait_state(low, "stopped", "failed", seconds=240)
