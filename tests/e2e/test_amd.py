"""GPUs of AMD, on a machine of plain files: found by the kernel's description, limited by `dmem.max`, and of other GPUs no node. No file
enforces anything here: the tests look at what cantle tells the kernel, and at what a task finds."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import CANTLE, Cantle, own_port, wait_until

MIB = 1 << 20
TOTAL = 196592 * MIB
REGION = "drm/0000:05:00.0/vram"
SHOW = 'ls /dev/dri; echo "$ROCR_VISIBLE_DEVICES $HIP_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES"; cat /dev/kfd; test -e /dev/dri/renderD129 || echo alone'
LONG = ["sleep", "300"]
# The host's directory, over which the machine's files are mounted.
HIERARCHY = Path("/sys/fs/cgroup/dmem")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    # That is a version of NVIDIA's.
    monkeypatch.delenv("CANTLE_TEST_DRIVER", raising=False)
    made, was_there = [], HIERARCHY.exists()

    def make(gpus):
        made.append(Cantle(tmp_path, gpus))
        return made[-1]

    yield make
    for one in made:
        one.stop()
    if HIERARCHY.exists() and not was_there:
        HIERARCHY.rmdir()


def groups(cantle):
    """The limit of each group that has one."""
    found = cantle.machine.path("/sys/fs/cgroup/dmem/cantle")
    return {group.name: group.joinpath("dmem.max").read_text() for group in found.glob("*")}


def unique_ids(cantle):
    files = sorted(cantle.machine.path("/sys/class/drm").glob("renderD*/device/unique_id"))
    return [file.read_text().strip() for file in files]


def test_gpus_and_doctor(machine):
    cantle = machine("2xMI300X,1xMI210")
    cantle.machine.path("/sys/class/drm/renderD129/device/mem_info_vram_used").write_text(f"{5 << 30}\n")
    gpus = cantle.json("gpus")
    assert [gpu["model"] for gpu in gpus] == ["AMD Instinct MI300X OAM"] * 2 + ["AMD Instinct MI210"]
    ends = [gpu["uuid"].replace("-", "")[-16:] for gpu in gpus]
    assert ends == unique_ids(cantle) and len(set(ends)) == 3
    assert [gpu["memory_bytes"] for gpu in gpus] == [TOTAL, TOTAL, 65520 * MIB]
    assert [gpu["memory_used_bytes"] for gpu in gpus] == [284 * MIB, 5 << 30, 284 * MIB]
    doctor = cantle.cli("doctor").stdout
    assert "amdgpu of Linux" in doctor and "by the kernel (dmem)" in doctor, doctor


def test_a_task_has_its_limit_and_the_node_of_its_gpu(machine):
    cantle = machine("2xMI300X")
    done = cantle.cli("run", "--gpu", "0.5", "--", "sh", "-c", SHOW)
    first = unique_ids(cantle)[0]
    assert done.stdout.splitlines() == ["renderD128", f"GPU-{first} 0 0", "alone"], done.stdout
    assert "enforced by kernel (dmem) + mount namespace" in done.stderr, done.stderr
    # To the byte: no filter holds a slice below it.
    assert list(groups(cantle).values()) == [f"{REGION} {TOTAL // 2}\n"]
    both = cantle.cli("run", "--gpus", "2", "--", "sh", "-c", "ls /dev/dri; echo $HIP_VISIBLE_DEVICES").stdout
    assert both.splitlines() == ["renderD128", "renderD129", "0,1"]
    # Outside of a task, all nodes are there.
    assert sorted(os.listdir(cantle.machine.path("/dev/dri"))) == ["card0", "card1", "renderD128", "renderD129"]


def test_the_tasks_processes_enter_the_group_of_the_limit(machine):
    cantle = machine("1xMI300X")
    child = cantle.start("run", "--gpu", "0.25", "--", *LONG)
    entered = lambda: [door.read_text() for door in cantle.machine.path("/sys/fs/cgroup/dmem/cantle").glob("*/cgroup.procs")]  # noqa: E731
    # "0" is the process that writes it.
    wait_until(lambda: entered() == ["0"], 60, entered)
    (slices,) = [gpu["slices"] for gpu in cantle.json("gpus")]
    assert [one["enforced_by"] for one in slices] == [["dmem"]], "there is no filter"
    child.send_signal(signal.SIGTERM)
    child.wait(60)


@pytest.mark.parametrize("gpus", ["1xMI300X:no-dmem", "1xMI300X,1xMI300X:no-dmem"])
def test_without_the_controller_nothing_starts(machine, gpus):
    cantle = machine(gpus)
    # Of all its GPUs: one without a limit is enough.
    done = cantle.cli("run", "--gpus", str(gpus.count("x")), "--", "echo", "started", code=7)
    assert done.stdout == "" and "nothing would enforce the memory limit" in done.stderr, done.stderr
    assert "(dmem" in done.stderr and "docs/amd.md" in done.stderr
    assert cantle.json("gpus")[0]["slices"] == []
    refused = cantle.cli("up", "--listen", "127.0.0.1:0", "--queue", "half=0.5", code=7)
    assert "nothing would enforce the memory limit" in refused.stderr, refused.stderr
    found = cantle.cli("doctor", code=7).stdout
    assert "so no task starts" in found, found
    assert groups(cantle) == {}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--compute", "fair"], "--compute fair"),
        (["--enforce", "filter"], "--enforce filter"),
        (["--gpu-memory-limit", "150G"], "a memory limit above the request"),
        (["--module-reserve", "1G"], "a reserve for modules"),
    ],
)
def test_what_needs_a_filter_is_refused(machine, options, named):
    cantle = machine("1xMI300X")
    done = cantle.cli("run", "--gpu", "0.5", *options, "--", "echo", "started", code=7)
    assert done.stdout == "" and f"{named} needs cantle's filter" in done.stderr, done.stderr


def test_strict_shares_have_no_compute_unit_in_common(machine):
    cantle = machine("1xMI300X")
    mask = ["--compute", "strict", "--", "sh", "-c", 'echo "mask $HSA_CU_MASK"; sleep 300']
    for log, first, last in (("a", 0, 151), ("b", 152, 227)):
        cantle.start("run", "--gpu", "0.5" if log == "a" else "0.25", *mask, log=log)
        wait_until(lambda: f"mask 0:{first}-{last}\n" in cantle.log(log), 60, lambda: cantle.log(log))  # noqa: B023
        assert "compute strict by a mask that a program can change" in cantle.log(log)
    none = cantle.cli("run", "--gpu", "0.25", "--", "sh", "-c", "echo mask $HSA_CU_MASK")
    assert none.stdout == "mask\n", "it computes on all"


def test_a_slice_can_only_grow(machine):
    cantle = machine("1xMI300X")
    cantle.up("--queue", "quarter=0.25")
    task = cantle.submit("quarter", *LONG)
    cantle.wait_state(task, "in_progress")
    cantle.cli("resize", task, "--gpu", "0.5")
    assert list(groups(cantle).values()) == [f"{REGION} {TOTAL // 2}\n"]
    refused = cantle.cli("resize", task, "--gpu", "0.25", code=None)
    assert refused.returncode != 0 and "it can only grow" in refused.stderr, refused.stderr
    assert list(groups(cantle).values()) == [f"{REGION} {TOTAL // 2}\n"]
    cantle.cli("stop", task)


def test_another_user_than_root_gets_nothing_unlimited(machine):
    cantle = machine("1xMI300X")
    done = subprocess.run(
        cantle.machine.command(CANTLE, "run", "--gpu", "0.5", "--", "echo", "started", user=12345),
        env=cantle.env | {"HOME": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7 and done.stdout == "", done
    assert "only root may set the driver's limits" in done.stderr


def test_an_agent_keeps_the_limit_over_its_death(machine):
    cantle = machine("2xMI300X")
    port = own_port()
    words = ["--keep-tasks", "--queue", "half=0.5"]
    up = cantle.up(*words, port=port)
    shown = cantle.submit("half", "sh", "-c", SHOW)
    cantle.wait_state(shown, "completed")
    assert "renderD128\n" in cantle.output(shown) and "alone" in cantle.output(shown), cantle.output(shown)
    before = set(groups(cantle))
    task = cantle.submit("half", *LONG)
    cantle.wait_state(task, "in_progress")
    (group,) = set(groups(cantle)) - before
    limit = cantle.machine.path(f"/sys/fs/cgroup/dmem/cantle/{group}/dmem.max")
    right = f"{REGION} {TOTAL // 2}\n"
    assert limit.read_text() == right
    # A limit that another program has changed is set again.
    limit.write_text(f"{REGION} max\n")
    wait_until(lambda: limit.read_text() == right, 60, limit.read_text)
    up.send_signal(signal.SIGKILL)
    up.wait()
    limit.write_text(f"{REGION} max\n")
    cantle.up(*words, port=port)
    wait_until(lambda: limit.read_text() == right, 60, limit.read_text)
    assert cantle.task(task)["state"] == "in_progress"
    inside = cantle.cli("exec", task, "--", "sh", "-c", "ls /dev/dri").stdout
    assert inside.splitlines() == ["renderD128"]
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped", "failed")


def test_a_machine_has_gpus_of_one_vendor(tmp_path):
    def refused(*words):
        command = [CANTLE, "--sim-dir", str(tmp_path / "sim"), "sim", "machine", *words, "--", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr

    assert "`T4-16GB` is no GPU of AMD" in refused("--gpus", "1xMI300X,1xT4-16GB")
    assert "neither a version nor a layout" in refused("--gpus", "1xMI300X", "--driver", "580.95.05")
