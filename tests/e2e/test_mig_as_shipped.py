"""Undocumented behavior of NVIDIA's library with MIG (crates/sim/simgpu/src/nvml/settings.rs), and cantle's handling of it. The
simulated driver is the witness."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from conftest import FILL, wait_until
from machine import STATE
from test_mig import MIB, faults, faults_to_come, instances, places


@pytest.fixture
def mig(make_cantle):
    """One A100 in MIG mode."""
    return make_cantle("1xA100-40GB:mig")


def cpu_seconds(pid):
    """Of a process and its threads; of children that have ended too."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.clock
def test_waiting_for_a_slow_creation_takes_no_time_of_a_core(make_cantle):
    """The driver's library has one lock for all MIG calls of a process (tests/simgpu/test_mig_as_shipped.py): minutes on one GPU."""
    cantle = make_cantle("8xA100-40GB:mig")
    up = cantle.up("--queue", "default=task")
    faults(cantle, "nvmlGpuInstanceCreateComputeInstance delay_ms=600000 once")
    slow = cantle.submit("default", "true", flags=["--mig-profile", "7g.40gb"])
    wait_until(lambda: "delay_ms" not in faults_to_come(cantle), 60, lambda: cantle.log())
    began, before = time.monotonic(), cpu_seconds(up.pid)
    quick = [cantle.submit("default", "true", flags=["--mig-profile", "7g.40gb"]) for _ in range(3)]
    for task in quick:
        cantle.wait_state(task, "completed", seconds=120)
    print(f"three tasks on other GPUs: {time.monotonic() - began:.1f} s")
    time.sleep(max(0.0, 12 - (time.monotonic() - began)))
    used, waited_s = cpu_seconds(up.pid) - before, time.monotonic() - began
    assert cantle.task(slow)["state"] != "completed"
    print(f"the agent used {used:.2f} s of CPU in the {waited_s:.0f} s while it waited")
    assert used < waited_s / 2, "who waits for a lock in a loop uses all that time, for each that waits"
    assert "does not answer" not in cantle.log()
    up.kill()  # which would wait for that GPU too


def test_an_instance_that_another_process_has_replaced(mig, tmp_path):
    """Another `cantle run` replaces a 4g by a 3g, which has the same id: the agent's own NVML would go on saying 4g."""
    held = mig.start("run", "--mig-profile", "4g.20gb", "--", "sleep", "600", log="held.log")
    wait_until(lambda: places(mig) == [("4g.20gb", 0)], 60, lambda: mig.log("held.log"))
    mig.up("--queue", "default=task")
    first = mig.submit("default", "true", flags=["--mig-profile", "1g.5gb"])
    mig.wait_state(first, "completed")
    held.send_signal(signal.SIGTERM)
    held.wait(timeout=60)
    (four,) = [found["gi"] for found in instances(mig) if found["profile"] == "4g.20gb"]
    # Both at once: one after the other would have the same instance.
    wait = ["sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.2; done"]
    others = [mig.start("run", "--timeout", "90", "--mig-profile", "3g.20gb", "--", *wait, log=f"{n}.log") for n in range(2)]
    threes = lambda: [place for place in places(mig) if place[0] == "3g.20gb"]  # noqa: E731
    wait_until(lambda: len(threes()) == 2, 90, lambda: mig.log("0.log") + mig.log("1.log"))
    (tmp_path / "end").touch()
    assert [other.wait(timeout=60) for other in others] == [0, 0], mig.log("0.log") + mig.log("1.log")
    assert four in [found["gi"] for found in instances(mig) if found["profile"] == "3g.20gb"], "the id is given again"
    both = [mig.submit("default", "sleep", "3", flags=["--mig-profile", "3g.20gb"]) for _ in range(2)]
    for task in both:
        mig.wait_state(task, "completed")
    journal = json.loads(next(mig.machine.path("/run/cantle/node/mig").glob("*.json")).read_text())
    foreign = [place for place in journal["places"] if not place["ours"]]
    assert foreign == [], "none of our places is given up"


@pytest.mark.parametrize(("error", "text"), [(15, "GPU is lost"), (10, "Timeout"), (999, "Unknown Error")])
def test_a_gpu_that_is_lost_at_the_start_is_named_and_the_others_serve(make_cantle, error, text):
    cantle = make_cantle("3xA100-40GB")
    faults(cantle, f"* gpu=1 error={error}")
    cantle.cli("run", "--gpu", "0.5", "--", "true")
    asked = cantle.cli("daemon", "--queue", "q", "--gpus", "1", code=7).stderr
    assert "GPU 1 is lost to the driver" in asked and "hint: see dmesg" in asked
    told = cantle.cli("doctor", code=None).stdout
    assert "1 is lost to the driver" in told and text in told
    cantle.up("--queue", "default=task")
    tasks = [cantle.submit("default", "true", flags=["--gpus", "1"]) for _ in range(3)]
    for task in tasks:
        cantle.wait_state(task, "completed")


def test_without_rights_on_one_gpu_the_others_serve(make_cantle):
    """As in a container: only administrators see what a GPU in MIG mode holds."""
    cantle = make_cantle("1xA100-40GB:mig,1xA100-40GB")
    cantle.machine.path(STATE / "sim/model").write_text("unprivileged=1\n")
    cantle.cli("run", "--isolation", "shared", "--gpu", "0.5", "--", "true")
    assert "does not tell its memory here" in cantle.cli("doctor", code=None).stdout


@pytest.mark.parametrize("driver", ["470.256.02", "535.54.03", "535.98", "580.95.05"])
def test_drivers_that_lack_functions_or_have_others(make_cantle, driver):
    """A missing symbol is a function that returns an error here: a library that is built once has all symbols."""
    cantle = make_cantle("1xA100-40GB:mig,1xA100-40GB", driver)
    done = cantle.cli("run", "--mig-profile", "1g.5gb", "--", *FILL)
    assert json.loads(done.stdout)["total_bytes"] == 4864 * MIB
    assert {"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb"} <= {row["profile"] for row in cantle.json("mig", "profiles")}
    holder = cantle.start("run", "--isolation", "shared", "--gpu", "0.5", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: cantle.used()[1] > 19 << 30, 60, lambda: cantle.log("holder.log"))
    holder.kill()
    stranger = cantle.cli("run", "--isolation", "shared", "--gpu", "0.75", "--", "true", code=6).stderr
    assert "free" in stranger, "the process whose cantle is gone is seen"
    (process,) = cantle.truth()[1]["processes"]
    os.kill(process["pid"], signal.SIGKILL)


def holds(pid, name):
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        # One that is closed meanwhile has no name.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link).endswith(name):
                return True
    return False


@pytest.mark.full
def test_who_keeps_an_instance_in_use_is_named(mig):
    """A monitor holds no memory, only the instance's device node."""
    mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    (kept,) = instances(mig)
    minors = mig.machine.path("/proc/driver/nvidia-caps/mig-minors").read_text()
    minor = re.search(rf"gpu0/gi{kept['gi']}/ci0/access (\d+)", minors)[1]
    monitor = subprocess.Popen(mig.machine.command("sh", "-c", f"exec sleep 60 < /dev/nvidia-caps/nvidia-cap{minor}"), env=mig.env)
    mig.background.append(monitor)
    wait_until(lambda: holds(monitor.pid, f"nvidia-cap{minor}"), 60, "the monitor opens the node")
    failed = mig.cli("run", "--gpus", "1", "--", "true", code=7)
    assert f"process {monitor.pid} (sleep) holds it" in failed.stderr
    monitor.kill(), monitor.wait()
    mig.cli("run", "--gpus", "1", "--timeout", "90", "--", "true")


def test_a_mode_that_can_not_be_had_now_is_not_left_pending(make_cantle):
    """A pending change takes effect when the driver is next loaded: the node would come back in another mode."""
    hopper = make_cantle("1xH100-80GB")
    faults(hopper, "nvmlDeviceSetMigMode activation=19 once")
    hopper.cli("up", "--listen", "127.0.0.1:0", "--queue", "default=task", "--mig", "0=dynamic", code=7)
    ask = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMigMode(n.nvmlDeviceGetHandleByIndex(0)))"
    assert hopper.program(sys.executable, "-c", ask, check=True).stdout.strip() == "[0, 0]"


def mig_calls(cantle):
    path = cantle.machine.path(STATE / "sim/mig-calls")
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.clock
def test_an_idle_agent_asks_no_gpu_about_its_instances(make_cantle):
    """Promised is one call per GPU and minute at most; the short form sees a third of a minute and allows none."""
    mig = make_cantle("8xA100-40GB:mig")
    mig.machine.path(STATE / "sim/model").write_text("mig_trace=1\n")
    mig.up("--queue", "default=task")
    task = mig.submit("default", "true", flags=["--mig-profile", "3g.20gb"])
    mig.wait_state(task, "completed")
    before, since, end = 0, time.monotonic(), time.monotonic() + 60
    while time.monotonic() - since < 4 and time.monotonic() < end:
        if (seen := len(mig_calls(mig))) != before:
            # It is not idle yet.
            before, since = seen, time.monotonic()
        time.sleep(0.2)
    assert before > 10, "the witness sees calls"
    idle_s = float(os.environ.get("CANTLE_TEST_IDLE_S", "20"))
    time.sleep(idle_s)
    asked = len(mig_calls(mig)) - before
    print(f"{asked} MIG calls of an idle agent on eight GPUs in {idle_s:.0f} s")
    assert asked <= 8 * int(idle_s / 60)


@pytest.mark.clock
def test_who_waits_asks_less_and_less(mig):
    """At each look a full GPU took some 40 calls, ten times a second."""
    mig.machine.path(STATE / "sim/model").write_text("mig_trace=1\n")
    holder = mig.start("run", "--gpus", "1", "--", "sleep", "600", log="holder.log")
    wait_until(lambda: places(mig) == [("7g.40gb", 0)], 60, lambda: mig.log("holder.log"))
    waiter = mig.start("run", "--timeout", "300", "--mig-profile", "1g.5gb", "--", "true", log="waiter.log")
    wait_until(lambda: "waiting" in mig.log("waiter.log"), 60, lambda: mig.log("waiter.log"))
    before = len(mig_calls(mig))
    time.sleep(15)
    asked = len(mig_calls(mig)) - before
    print(f"{asked} MIG calls in 15 s of waiting")
    assert asked < 400, "40 calls per look: at 1, 2, 4, 8 s"
    holder.send_signal(signal.SIGTERM)
    assert waiter.wait(timeout=60) == 0, mig.log("waiter.log")
