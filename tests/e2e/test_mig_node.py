"""MIG on a node over its life: reboots, other drivers' habits, cards that no table knows, eight GPUs at once. The simulated driver is
the witness."""

import json
import os
import re
import signal
import sys
import time

import pytest

from conftest import FILL, wait_until
from machine import STATE
from test_mig import MIB, SEEN, faults, instances, places

SET_MODE = """
import ctypes, pynvml as n
n.nvmlInit()
gpu, activation = n.nvmlDeviceGetHandleByIndex(0), ctypes.c_int()
n._nvmlGetFunctionPointer("nvmlDeviceSetMigMode")(gpu, 1, ctypes.byref(activation))
print(activation.value, *n.nvmlDeviceGetMigMode(gpu))
"""


def driver_model(cantle, *rows):
    cantle.machine.path(STATE / "sim/model").write_text("".join(f"{row}\n" for row in rows))


def journalled(cantle):
    files = cantle.machine.path("/run/cantle/node/mig").glob("*.json")
    return [place for file in files for place in json.loads(file.read_text())["places"]]


@pytest.mark.parametrize("run_survives", [False, True], ids=["reboot", "driver-reload"])
def test_after_a_reboot_the_instances_are_gone(make_cantle, run_survives):
    """cantle's record of them is in /run, which a reboot empties; a reload of the driver leaves it."""
    mig = make_cantle("1xA100-40GB:mig")
    agent = mig.up("--queue", "default=task")
    task = mig.submit("default", "true", flags=["--mig-profile", "3g.20gb"])
    mig.wait_state(task, "completed")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    assert places(mig) and len(journalled(mig)) == 1
    # A process of the agent's may still be about to end.
    wait_until(mig.machine.reload, 60, "nobody uses the driver")
    assert places(mig) == []
    if not run_survives:
        mig.program("sh", "-c", "rm -rf /run/cantle/node", check=True)
    mig.up("--queue", "default=task")
    wait_until(lambda: journalled(mig) == [], 60, "the journal of instances that are gone")
    task = mig.submit("default", *FILL, flags=["--mig-profile", "4g.20gb"])
    mig.wait_state(task, "completed")
    assert places(mig) == [("4g.20gb", 0)]


def test_a_mode_that_cantle_could_not_get_does_not_come_with_the_next_boot(make_cantle):
    hopper = make_cantle("1xH100-80GB")
    faults(hopper, "nvmlDeviceSetMigMode activation=19 once")
    hopper.cli("up", "--listen", "127.0.0.1:0", "--queue", "default=task", "--mig", "0=dynamic", code=7)
    assert hopper.machine.reload()
    hopper.cli("run", "--isolation", "shared", "--gpu", "0.5", "--", "true")
    faults(hopper, "nvmlDeviceSetMigMode activation=19 once")
    assert hopper.program(sys.executable, "-c", SET_MODE, check=True).stdout.split() == ["19", "0", "1"]
    assert hopper.machine.reload()
    refused = hopper.cli("run", "--isolation", "shared", "--gpu", "0.5", "--", "true", code=2).stderr
    assert "in MIG mode" in refused, "the negative control: who leaves it pending gets it"


@pytest.mark.full
def test_an_agent_lets_go_of_the_driver_on_request(make_cantle):
    """Before Hopper, MIG mode can't change while any process has NVML open."""
    ampere = make_cantle("1xA100-40GB")
    ampere.up("--queue", "default=task")
    change = lambda: ampere.program(sys.executable, "-c", SET_MODE, check=True).stdout.split()  # noqa: E731
    assert change() == ["19", "0", "1"], "the agent's session is in the way"
    task = ampere.submit("default", "sleep", "600", flags=["--gpu", "0.5"])
    ampere.wait_state(task, "in_progress")
    kept = ampere.cli("daemon", "--release-gpus", code=8)
    assert "keeps the driver open" in kept.stderr and "hint: it has tasks" in kept.stderr
    ampere.cli("stop", task)
    ampere.wait_state(task, "stopped")
    released = ampere.cli("daemon", "--release-gpus").stdout
    assert "has closed the driver" in released
    assert change() == ["0", "1", "1"]
    assert "no agent with GPUs runs here" in ampere.cli("daemon", "--release-gpus", code=3).stderr
    os.kill(int(re.search(r"kill -USR1 (\d+)", released)[1]), signal.SIGUSR1)
    task = ampere.submit("default", "true", flags=["--mig-profile", "1g.5gb"])
    ampere.wait_state(task, "completed")
    assert [profile for profile, _ in places(ampere)] == ["1g.5gb"]


def test_media_engines_that_run_out_are_waited_for_and_the_reason_is_told(make_cantle):
    rtx = make_cantle("1xRTX-PRO-6000-96GB:mig")
    holder = rtx.start("run", "--mig-profile", "1g.24gb", "--", "sleep", "600", log="holder.log")
    wait_until(lambda: len(places(rtx)) == 1, 60, lambda: rtx.log("holder.log"))
    refused = rtx.cli("run", "--mig-profile", "1g.24gb+me.all", "--", "true", code=6).stderr
    assert "media engines" in refused, refused
    rtx.cli("run", "--mig-profile", "1g.24gb-me", "--", "true")
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=60)
    rtx.cli("run", "--timeout", "90", "--mig-profile", "1g.24gb+me.all", "--", "true")


def test_gpus_that_number_their_instances_differently(make_cantle):
    both = make_cantle("2xA100-40GB:mig")
    both.up("--queue", "default=task")
    tasks = [both.submit("default", *SEEN, flags=["--mig-profile", "3g.20gb"]) for _ in range(4)]
    for task in tasks:
        both.wait_state(task, "completed")
        seen = json.loads(both.output(task).strip().splitlines()[-1])
        assert seen["nvml"] == [seen["cuda"]], "its own instance and no other"
    ids = [{found["start"]: found["gi"] for found in instances(both, gpu)} for gpu in (0, 1)]
    if all(len(of) == 2 for of in ids):
        assert ids[0] != ids[1], "the same placements, other ids"


def test_clients_of_mps_are_seen(make_cantle):
    """They are in a list of their own, and hold memory all the same."""
    shared = make_cantle("1xA100-40GB")
    shared.cli("run", "--gpu", "0.5", "--", "true")
    driver_model(shared, "mps=1")
    holder = shared.start("run", "--gpu", "0.5", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: shared.used()[0] > 19 << 30, 60, lambda: shared.log("holder.log"))
    holder.kill()
    assert "free" in shared.cli("run", "--gpu", "0.75", "--", "true", code=6).stderr
    (process,) = shared.truth()[0]["processes"]
    os.kill(process["pid"], signal.SIGKILL)


def test_a_card_in_no_table_works_from_what_its_driver_says(make_cantle):
    """No such GPU exists: its grid has ten units, and ids and profile numbers belong to no model (crates/sim/simgpu/data/mig_profiles.json)."""
    card = make_cantle("1xINVENTED-60GB:mig")
    assert {row["profile"] for row in card.json("mig", "profiles")} == {"1g.12gb", "2g.30gb", "5g.60gb"}
    for flags, profile, mib in [
        (["--gpu", "0.2"], "1g.12gb", 12032),
        (["--gpu", "0.375"], "2g.30gb", 30208),
        (["--gpu-memory", "13Gi"], "2g.30gb", 30208),
        (["--gpus", "1"], "5g.60gb", 60416),
        (["--mig-profile", "1g.12gb"], "1g.12gb", 12032),
    ]:
        done = card.cli("run", *flags, "--", *FILL)
        assert f"got MIG instance {profile}," in done.stderr and json.loads(done.stdout)["total_bytes"] == mib * MIB
    holders = [card.start("run", "--mig-profile", "1g.12gb", "--", "sleep", "600", log=f"{n}.log") for n in range(5)]
    wait_until(lambda: len(places(card)) == 5, 60, lambda: f"five instances: {places(card)}, {[card.log(f'{n}.log') for n in range(5)]}")
    card.cli("run", "--mig-profile", "1g.12gb", "--", "true", code=6)
    assert sorted(start for _, start in places(card)) == [0, 2, 4, 6, 8] and len(holders) == 5


def test_an_rtx_pro_5000_as_the_guide_has_it(make_cantle):
    card = make_cantle("1xRTX-PRO-5000-48GB:mig")
    card.cli("run", "--gpus", "1", "--", "true")
    holder = card.start("run", "--mig-profile", "1g.12gb", "--", "sleep", "600", log="holder.log")
    wait_until(lambda: [profile for profile, _ in places(card)] == ["1g.12gb"], 60, lambda: card.log("holder.log"))
    card.cli("run", "--mig-profile", "1g.12gb", "--", "true", code=6)
    card.cli("run", "--mig-profile", "2g.24gb-me", "--", "true")
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=60)


SLOW = ["nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]


def reshape(cantle, delays_ms):
    """Seconds until seven instances of each GPU are one, where a call takes as many milliseconds."""
    gpus = range(len(delays_ms))
    held = cantle.home / "held"
    held.touch()
    wait = ["sh", "-c", f"while [ -e {held} ]; do sleep 1; done"]
    small = [cantle.submit("default", *wait, flags=["--mig-profile", "1g.5gb"]) for _ in gpus for _ in range(7)]
    for task in small:
        cantle.wait_state(task, "in_progress", seconds=120)
    assert [len(places(cantle, gpu)) for gpu in gpus] == [7 for _ in gpus]
    held.unlink()
    for task in small:
        cantle.wait_state(task, "completed", seconds=120)
    faults(cantle, *(f"{call} gpu={gpu} delay_ms={ms}" for call in SLOW for gpu, ms in enumerate(delays_ms)))
    began = time.monotonic()
    for _ in gpus:
        cantle.submit("default", "sleep", "3600", flags=["--mig-profile", "7g.40gb"])
    submitted_s = time.monotonic() - began
    done = lambda: all(places(cantle, gpu) == [("7g.40gb", 0)] for gpu in gpus)  # noqa: E731
    wait_until(done, 120, lambda: [places(cantle, gpu) for gpu in gpus])
    return time.monotonic() - began, submitted_s


@pytest.mark.clock
def test_eight_gpus_are_reshaped_side_by_side(make_cantle):
    """Sixteen calls on each GPU, of 100 ms to 600 ms: it lasts as long as the slowest GPU does alone."""
    delays_ms = [100, 150, 200, 250, 300, 400, 500, 600]
    seconds = {}
    for number, delays in ((1, delays_ms[-1:]), (8, delays_ms)):
        cantle = make_cantle(f"{number}xA100-40GB:mig")
        cantle.up("--queue", "default=task")
        took_s, submitted_s = reshape(cantle, delays)
        seconds[number] = took_s - submitted_s
        print(f"{number} GPUs: {took_s:.1f} s, of which {submitted_s:.1f} s to submit the tasks")
    assert seconds[8] < seconds[1] + 1 + SLACK_S


# For the promised second on a machine whose cores others use as well; `make bench` asks for none. One GPU after the other would need 30 s more.
SLACK_S = float(os.environ.get("CANTLE_TEST_SLACK_S", "12"))
