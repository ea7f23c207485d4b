"""GPUs in MIG mode: instances made to measure, the neighbors untouched, nothing leaked. The simulated driver is the witness."""

import json
import os
import re
import signal
import sys
import textwrap
import time
import urllib.request

import pytest

from conftest import CANTLE, FILL, FOUR_QUEUES, ROOT, own_port, wait_until
from machine import STATE

MIB = 1 << 20
CONTEXT = 416 * MIB
SEEN = [
    sys.executable,
    "-c",
    textwrap.dedent("""
        import json, os, pynvml as n
        n.nvmlInit()
        gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
        def devices(gpu):
            for i in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                try: yield n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i))
                except n.NVMLError_NotFound: pass
        print(json.dumps({"cuda": os.environ["CUDA_VISIBLE_DEVICES"], "nvidia": os.environ["NVIDIA_VISIBLE_DEVICES"],
                          "nvml": [uuid for gpu in gpus for uuid in devices(gpu)]}))
    """),
]


@pytest.fixture
def mig(make_cantle):
    """One A100 in MIG mode."""
    return make_cantle("1xA100-40GB:mig")


def places(cantle, gpu=0):
    """The instances of the simulated driver: (profile, start), in order of their starts."""
    return [(found["profile"], found["start"]) for found in instances(cantle, gpu)]


def instances(cantle, gpu=0):
    return sorted(cantle.truth()[gpu]["mig"], key=lambda found: found["start"])


def names_of_slices(cantle, gpu=0):
    """Of the MIG devices that the server shows as allocated."""
    return {piece["mig"]["uuid"] for piece in cantle.json("gpus")[gpu]["slices"]}


def faults(cantle, *lines):
    cantle.machine.faults("".join(f"{line}\n" for line in lines))


def faults_to_come(cantle):
    return cantle.machine.path(STATE / "sim/faults").read_text()


def foreign(cantle, profile, start, size):
    """Another program creates an instance, with NVIDIA's own binding."""
    script = f"""
        import ctypes, pynvml as n
        n.nvmlInit()
        gpu = n.nvmlDeviceGetHandleByIndex(0)
        place = n.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = {start}, {size}
        gi = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, {profile}, ctypes.byref(place))
        n.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    """
    cantle.program(sys.executable, "-c", textwrap.dedent(script), check=True)


def test_a_task_sees_its_instance_and_nothing_else(mig):
    foreign(mig, profile=19, start=0, size=1)
    (other,) = instances(mig)
    seen = json.loads(mig.cli("run", "--mig-profile", "1g.5gb", "--", *SEEN).stdout)
    assert seen["cuda"].startswith("MIG-") and seen["cuda"] == seen["nvidia"]
    assert seen["nvml"] == [seen["cuda"]] != [other["uuid"]]
    assert seen["cuda"] in [found["uuid"] for found in instances(mig)], "it is kept for the next task"
    outside = mig.program(*SEEN, env={**mig.env, "CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": ""}, check=True)
    assert len(json.loads(outside.stdout)["nvml"]) == 2, "without cantle both are seen"


@pytest.mark.parametrize(
    ("flags", "profile", "mib", "cost"),
    [
        (["--mig-profile", "1g.5gb"], "1g.5gb", 4864, "0.125"),
        (["--gpu", "0.375"], "3g.20gb", 19968, "0.5"),
        (["--gpu-memory", "10G"], "1g.10gb", 9856, "0.25"),
        (["--gpu-memory", "4G"], "1g.5gb", 4864, "0.125"),
        (["--gpus", "1"], "7g.40gb", 40192, "1"),
    ],
)
def test_a_request_gets_the_smallest_profile_that_holds_it(mig, flags, profile, mib, cost):
    done = mig.cli("run", *flags, "--", *FILL)
    assert f"got MIG instance {profile}," in done.stderr and f"counted as {cost} of GPU 0" in done.stderr
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert record["total_bytes"] == mib * MIB and record["allocated_bytes"] == mib * MIB - CONTEXT
    assert record["refused_code"] == 2
    assert mig.used() == [0]


def test_what_is_impossible_says_why(mig, make_cantle):
    refused = mig.cli("run", "--mig-profile", "9g.1gb", "--", "true", code=2)
    assert "it has 1g.5gb, 1g.10gb, 2g.10gb" in refused.stderr
    assert "in MIG mode" in mig.cli("run", "--isolation", "shared", "--gpu", "0.5", "--", "true", code=2).stderr
    shared = make_cantle("1xT4-16GB")
    assert "no GPU here is in MIG mode" in shared.cli("run", "--mig-profile", "1g.5gb", "--", "true", code=2).stderr
    assert "no GPU here is in MIG mode" in shared.cli("mig", "status", code=7).stderr


def test_free_instances_are_used_again_or_make_way(mig):
    first = json.loads(mig.cli("run", "--mig-profile", "2g.10gb", "--", *SEEN).stdout)["cuda"]
    again = json.loads(mig.cli("run", "--mig-profile", "2g.10gb", "--", *SEEN).stdout)["cuda"]
    assert first == again and len(instances(mig)) == 1
    mig.cli("run", "--gpus", "1", "--", "true")
    assert places(mig) == [("7g.40gb", 0)]


def test_instances_of_others_are_left_alone(mig):
    foreign(mig, profile=19, start=0, size=1)
    before = instances(mig)
    assert "needs 1 GPU, free 0.875 of GPU 0" in mig.cli("run", "--gpus", "1", "--", "true", code=6).stderr
    mig.cli("run", "--mig-profile", "3g.20gb", "--", "true")
    assert places(mig) == [("1g.5gb", 0), ("3g.20gb", 4)] and instances(mig)[0] == before[0]
    (placed,) = [item for item in mig.json("mig", "status") if item["state"] == "foreign"]
    assert (placed["profile"], placed["start"]) == ("1g.5gb", 0)
    (drawn,) = mig.json("gpus")
    assert drawn["foreign"] == [{"profile": "1g.5gb", "start": 0, "size": 1, "milli": 125}], "what cantle keeps for the next task is its own"


def test_a_gpu_full_of_instances_of_others_is_drawn_as_full(mig):
    mig.up("--queue", "default=task")
    assert "[........]  - " in mig.cli("gpus").stdout
    for start, (profile, size) in {0: (9, 4), 4: (14, 2), 6: (19, 1)}.items():
        foreign(mig, profile, start, size)
    task = mig.submit("default", "true", flags=["--mig-profile", "1g.5gb"])
    # The eighth memory slice belongs to no compute slice.
    full = "free 0.125 of GPU 0 but no place for 1g.5gb (0.875 of 1 in use)"
    wait_until(lambda: full in (mig.task(task)["reason"] or ""), 60, lambda: mig.task(task))
    wait_until(lambda: "[#######.]" in mig.cli("gpus").stdout, 60, lambda: mig.cli("gpus").stdout)
    assert "0.875 foreign" in mig.cli("gpus").stdout
    (drawn,) = mig.json("gpus")
    assert [(each["profile"], each["start"]) for each in drawn["foreign"]] == [("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)]
    assert drawn["allocated_milli"] == 0 and "#" in mig.cli("top", "--once").stdout


def test_a_half_made_instance_is_undone(mig):
    faults(mig, "nvmlGpuInstanceCreateComputeInstance error=20 once")
    failed = mig.cli("run", "--mig-profile", "1g.5gb", "--", "true", code=7)
    start = int(re.search(r"MIG instance 1g.5gb at (\d) of GPU 0 cannot be had", failed.stderr)[1])
    assert places(mig) == []
    mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    assert len(places(mig)) == 1 and places(mig) != [("1g.5gb", start)], "the place that failed is left out for a while"


def test_an_instance_that_will_not_go_away_is_named(mig):
    mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    kept = places(mig)
    faults(mig, "nvmlGpuInstanceDestroy error=19")
    failed = mig.cli("run", "--gpus", "1", "--", "true", code=7)
    assert f"the instance at {kept[0][1]} cannot be destroyed" in failed.stderr
    faults(mig)
    assert "needs 1 GPU, free 0.875 of GPU 0" in mig.cli("run", "--gpus", "1", "--", "true", code=6).stderr, "not tried again at once"
    mig.cli("run", "--mig-profile", "3g.20gb", "--", "true")


def test_instances_of_others_are_used_as_they_are(mig):
    foreign(mig, profile=14, start=2, size=2)
    foreign(mig, profile=19, start=0, size=1)
    before = instances(mig)
    small, large = before
    # NVML counts MIG devices by their GPU instances' ids, where larger places come first.
    for name, found in (("0:0", large), ("0:1", small), (small["uuid"], small)):
        done = mig.cli("run", "--gpus", name, "--", *SEEN)
        assert json.loads(done.stdout) == {"cuda": found["uuid"], "nvidia": found["uuid"], "nvml": [found["uuid"]]}
        assert f"got MIG instance {found['profile']}," in done.stderr
    filled = json.loads(mig.cli("run", "--gpus", "0:1", "--", *FILL).stdout)
    assert filled["total_bytes"] == 4864 * MIB and filled["refused_code"] == 2
    holder = mig.start("run", "--gpus", "0:0", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: mig.used() == [9856 * MIB], 60, lambda: mig.log("holder.log"))
    assert "no room" in mig.cli("run", "--gpus", "0:0", "--", "true", code=6).stderr
    mig.cli("run", "--gpus", "0:0,0:1", "--isolation", "mig", "--", "true", code=6)
    mig.cli("run", "--gpus", "0:1", "--", "true")
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=60)
    assert instances(mig) == before, "nothing was made or destroyed"
    made = mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    assert "got MIG instance 1g.5gb" in made.stderr and len(instances(mig)) == 3, "others still get instances of their own"


def test_an_instance_that_is_not_there_is_refused(mig, make_cantle):
    assert "0:0: there is no such MIG instance; none is there" in mig.cli("run", "--gpus", "0:0", "--", "true", code=2).stderr
    foreign(mig, profile=19, start=0, size=1)
    (only,) = instances(mig)
    told = mig.cli("run", "--gpus", "0:3", "--", "true", code=2).stderr
    assert f"--gpus 0:3: there is no such MIG instance; there are 0:0 ({only['uuid']})" in told
    assert "there are 0:0" in mig.cli("run", "--gpus", "MIG-none", "--", "true", code=2).stderr
    assert "there is no GPU 4 on this machine" in mig.cli("run", "--gpus", "4:0", "--", "true", code=2).stderr
    assert "mixes GPUs and MIG instances" in mig.cli("daemon", "--queue", "q", "--gpus", "0:0,1", code=2).stderr
    assert "only run and daemon take" in mig.cli("mig", "plan", "--gpus", "0:0", code=2).stderr
    foreign(mig, profile=19, start=1, size=1)
    several = mig.cli("daemon", "--queue", "q", "--gpus", "0:0,0:1", code=2).stderr
    assert "names 2 MIG instances of GPU 0, and a program can use only one\nhint: add --dynamic-gpus" in several


def test_daemons_that_use_instances_as_they_are(mig):
    """As ClearML's agent is used on MIG GPUs: `--dynamic-gpus --gpus 0:0,0:1`, a queue's "1" means an instance."""
    for start in (0, 1, 2):
        foreign(mig, profile=19, start=start, size=1)
    before = instances(mig)
    mig.up("--queue", "quarter=0.25", "single=1", "eighth=0.125", "--gpus", "0:0,0:1", "--mig-adopt", "destroy")
    queues = ("single", "single", "eighth", "quarter")
    tasks = [mig.submit(queue, *FILL, "--hold", "600") for queue in queues]
    for task in tasks[:2]:
        mig.wait_state(task, "in_progress")
        wait_until(lambda t=task: len(mig.filled(t)) == 1, 60, lambda t=task: mig.output(t))
        assert mig.filled(task)[0]["total_bytes"] == 4864 * MIB
    wait_until(lambda: names_of_slices(mig) == {found["uuid"] for found in before[:2]}, 60, lambda: mig.json("gpus"))
    wait_until(lambda: mig.task(tasks[2])["reason"] and mig.task(tasks[3])["reason"], 60, lambda: mig.task(tasks[3]))
    no_such = "no MIG instance given to this agent has 2 of 8 memory slices; it has 1g.5gb"
    wait_until(lambda: no_such in mig.task(tasks[3])["reason"], 60, lambda: mig.task(tasks[3]))
    taken = mig.cli("daemon", "--queue", "single=1", "--dynamic-gpus", "--gpus", "0:1", code=8).stderr
    assert "GPU 0 is taken by agent" in taken
    mig.cli("run", "--gpus", "0:2", "--", "true")  # which the agent was not given
    mig.cli("stop", tasks[0])
    mig.wait_state(tasks[2], "in_progress")
    assert [found["uuid"] for found in instances(mig)] == [found["uuid"] for found in before], "none was made or destroyed"


KILLED_IN = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",  # noted as ours, not made
    "nvmlGpuInstanceCreateComputeInstance",  # the GPU instance is made
    "nvmlComputeInstanceGetInfo_v2",  # complete, its name not in the lease
    "nvmlGpuInstanceDestroy",  # a free instance half destroyed
]


@pytest.mark.parametrize("call", KILLED_IN)
def test_killed_at_any_step_nothing_leaks(mig, call):
    if call == "nvmlGpuInstanceDestroy":
        mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    faults(mig, f"{call} delay_ms=600000 once")
    child = mig.start("run", "--mig-profile", "3g.20gb" if call != "nvmlGpuInstanceDestroy" else "7g.40gb", "--", "true")
    wait_until(lambda: call not in faults_to_come(mig), 60, lambda: mig.log("cantle.log"))
    child.kill()
    child.wait()
    mig.cli("run", "--timeout", "90", "--gpus", "1", "--", "true")
    assert places(mig) == [("7g.40gb", 0)], "all of the GPU was room again"


def test_killed_after_the_start_the_task_keeps_its_instance(mig):
    holder = mig.start("run", "--mig-profile", "1g.5gb", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: mig.used() == [4864 * MIB], 60, lambda: mig.log("holder.log"))
    (held,) = instances(mig)
    holder.kill()
    holder.wait()
    assert "needs 1 GPU, free 0.875 of GPU 0" in mig.cli("run", "--gpus", "1", "--", "true", code=6).stderr
    mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    assert held in instances(mig), "the same instance with the same process in it"
    os.kill(held["processes"][0]["pid"], signal.SIGKILL)
    mig.cli("run", "--timeout", "90", "--gpus", "1", "--", "true")


def test_plan_and_status_show_what_stays(mig):
    holder = mig.start("run", "--mig-profile", "3g.20gb", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: mig.used() == [19968 * MIB], 60, lambda: mig.log("holder.log"))
    mig.cli("run", "--mig-profile", "2g.10gb", "--", "true")
    held, free = sorted(mig.json("mig", "status"), key=lambda item: item["state"] == "free")
    assert (held["state"], held["uuid"]) == ("held", next(found["uuid"] for found in instances(mig) if found["processes"]))
    assert free["state"] == "free"
    other = 4 - held["start"]
    (plan,) = mig.json("mig", "plan", "--mig-profile", "3g.20gb")
    assert (plan["start"], plan["reused"]) == (other, False) and [item["uuid"] for item in plan["stays"]] == [held["uuid"]]
    assert [item["uuid"] for item in plan["destroyed"]] == [free["uuid"]]
    picture = mig.cli("mig", "plan", "--gpu", "0.375").stdout
    assert "asked 0.375 GPU, got 3g.20gb, 4 of 8 memory slices" in picture and f"leaves 3g.20gb at {held['start']}-" in picture
    assert "no place for it" in mig.cli("mig", "plan", "--gpus", "1", code=6).stderr
    profiles = {item["profile"]: item for item in mig.json("mig", "profiles")}
    assert profiles["3g.20gb"]["starts"] == [0, 4] and profiles["3g.20gb"]["free_starts"] == [other]
    assert len(instances(mig)) == 2, "looking changes nothing"
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=60)


def test_a_daemon_cuts_instances_and_leaves_none(mig):
    foreign(mig, profile=19, start=0, size=1)
    mig.cli("run", "--mig-profile", "1g.5gb", "--", "true")
    assert len(places(mig)) == 2
    port = own_port()
    up = mig.up("--queue", "default=task", "--metrics-listen", "127.0.0.1:0", port=port)
    # cantle's own leftovers are destroyed, the instances of others are not.
    wait_until(lambda: places(mig) == [("1g.5gb", 0)], 60, lambda: places(mig))
    task = mig.submit("default", *FILL, "--hold", "300", flags=["--mig-profile", "2g.10gb"])
    small = mig.submit("default", "sleep", "300", flags=["--gpu-memory", "4G"])
    shared = mig.submit("default", "true", flags=["--gpu", "0.5", "--isolation", "shared"])
    mig.wait_state(task, "in_progress"), mig.wait_state(small, "in_progress")
    wait_until(lambda: names_of_slices(mig) == {found["uuid"] for found in instances(mig)[1:]}, 60, lambda: mig.json("gpus"))
    wait_until(lambda: mig.json("gpus")[0]["allocated_milli"] == 375, 60, lambda: mig.json("gpus"))
    (gpu,) = mig.json("gpus")
    made = {found["uuid"]: found for found in instances(mig)}
    assert gpu["mode"] == "mig"
    for piece in gpu["slices"]:
        found = made[piece["mig"]["uuid"]]
        assert (piece["mig"]["profile"], piece["mig"]["start"]) == (found["profile"], found["start"])
    wait_until(lambda: len(mig.filled(task)) == 1, 60, lambda: mig.output(task))
    assert mig.filled(task)[0]["total_bytes"] == 9856 * MIB
    wait_until(lambda: "in MIG mode" in (mig.task(shared)["reason"] or ""), 60, lambda: mig.task(shared))
    (address,) = re.findall(r"serving metrics address=(\S+)", mig.log())
    metrics = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
    counted = dict(re.findall(r'^cantle_agent_mig_stage_seconds_count\{stage="(\w+)"\} (\d+)$', metrics, re.M))
    assert counted == {"journal": counted["journal"], "gpu_instance": "2", "compute_instance": "2", "ready": "2", "destroy": "1"}
    up.kill()
    up.wait()
    kept = instances(mig)
    mig.up("--queue", "default=task", "--mig-adopt", "destroy", port=port)
    # The agent starts in parallel to the server.
    left = [found for found in kept if found["start"]]
    wait_until(lambda: instances(mig) == left, 60, lambda: f"tasks keep theirs, what others left is gone: {instances(mig)}")
    mig.cli("stop", task)
    mig.wait_state(task, "stopped")


@pytest.mark.parametrize("gpus", ["3xA100-40GB:mig", "2xA100-40GB:mig,1xA100-40GB"])
def test_four_queues_on_mig_gpus(make_cantle, gpus):
    """The documentation's example, with memory enforced by the hardware where the GPU is in MIG mode."""
    cantle = make_cantle(gpus)
    cantle.up("--queue", *FOUR_QUEUES, "--gpus", "0-2")
    dual = cantle.submit("dual_gpus", *FILL, "--hold", "300")
    quarter = cantle.submit("quarter_gpu", *FILL, "--hold", "300")
    half = cantle.submit("half_gpu", *FILL, "--hold", "300")
    for task in (dual, quarter, half):
        cantle.wait_state(task, "in_progress")
    single = cantle.submit("single_gpu", *FILL)
    wait_until(lambda: "needs 1 GPU" in (cantle.task(single)["reason"] or ""), 60, lambda: cantle.task(single))
    assert cantle.task(single)["state"] == "queued"
    for task, count in ((dual, 2), (quarter, 1), (half, 1)):
        wait_until(lambda t=task, n=count: len(cantle.filled(t)) == n, 60, lambda t=task: cantle.output(t))
    for gpu in cantle.json("gpus"):
        for piece in gpu["slices"]:
            assert (piece["mig"] is not None) == (gpu["mode"] == "mig")
        made = {found["uuid"] for found in instances(cantle, gpu["index"])}
        assert made >= {piece["mig"]["uuid"] for piece in gpu["slices"] if piece["mig"]}
    cantle.cli("stop", dual)
    assert cantle.wait_state(single, "completed")["exit_code"] == 0


def test_whole_gpus_wait_for_one_without_mig_by_policy(make_cantle):
    cantle = make_cantle("1xA100-40GB:mig,1xA100-40GB")
    cantle.up("--queue", "default=task", "--mig-whole-gpu", "wait")
    first, second = (cantle.submit("default", "sleep", "600") for _ in range(2))
    part = cantle.submit("default", "sleep", "600", flags=["--gpu", "0.5", "--isolation", "mig"])
    cantle.wait_state(first, "in_progress")
    wait_until(lambda: "needs 1 GPU" in (cantle.task(second)["reason"] or ""), 60, lambda: cantle.task(second))
    assert cantle.task(second)["state"] == "queued"
    allocated = lambda: [gpu["allocated_milli"] for gpu in sorted(cantle.json("gpus"), key=lambda gpu: gpu["index"])]  # noqa: E731
    wait_until(lambda: allocated() == [0, 1000], 60, allocated)
    cantle.cli("stop", second)
    cantle.wait_state(part, "in_progress")
    cantle.cli("stop", first)


@pytest.mark.parametrize("call", ["nvmlGpuInstanceCreateComputeInstance", "nvmlDeviceGetGpuInstances gpu=3"])
def test_a_stalled_gpu_holds_up_nobody(make_cantle, call):
    """One of eight GPUs does not answer, while it makes an instance or when it is asked; the others take tasks all the same."""
    cantle = make_cantle("8xA100-40GB:mig")
    up = cantle.up("--queue", "default=task")
    faults(cantle, f"{call} delay_ms=600000 once")
    slow = cantle.submit("default", "true", flags=["--mig-profile", "7g.40gb"])
    wait_until(lambda: "delay_ms" not in faults_to_come(cantle), 60, lambda: cantle.log())
    answers_again = time.monotonic() + 530
    quick = [cantle.submit("default", "true", flags=["--mig-profile", "7g.40gb"]) for _ in range(7)]
    for task in quick:
        cantle.wait_state(task, "completed")
    if "Create" in call:
        assert cantle.task(slow)["state"] != "completed", "the task on that GPU waits for it"
        assert [found["uuid"] for gpu in cantle.truth() for found in gpu["mig"]].count(None) == 1, "its instance is half made"
    else:
        cantle.wait_state(slow, "completed")
    assert time.monotonic() < answers_again, "the GPU has not answered in all that time"
    up.kill()  # which would wait for that GPU too


@pytest.mark.full
def test_a_slow_gpu_gives_its_task_an_instance_in_the_end(mig):
    faults(mig, "nvmlGpuInstanceCreateComputeInstance delay_ms=5000 once")
    began = time.monotonic()
    mig.cli("run", "--mig-profile", "7g.40gb", "--", "true")
    assert time.monotonic() - began > 5
    mig.up("--queue", "default=task")
    faults(mig, "nvmlGpuInstanceCreateComputeInstance delay_ms=5000 once")
    task = mig.submit("default", "true", flags=["--mig-profile", "3g.20gb"])
    mig.wait_state(task, "completed")
    assert faults_to_come(mig) == "", "an agent's task has waited for it too"


def test_mig_mode_is_turned_on_where_that_disturbs_nobody(make_cantle):
    hopper = make_cantle("2xH100-80GB")
    hopper.up("--queue", "default=task", "--mig", "1=dynamic")
    on_mig = hopper.submit("default", "sleep", "600", flags=["--gpu", "0.25", "--isolation", "mig"])
    shared = hopper.submit("default", "sleep", "600", flags=["--gpu", "0.25", "--isolation", "shared"])
    hopper.wait_state(on_mig, "in_progress"), hopper.wait_state(shared, "in_progress")
    modes = lambda: [gpu["mode"] for gpu in sorted(hopper.json("gpus"), key=lambda gpu: gpu["index"])]  # noqa: E731
    wait_until(lambda: modes() == ["shared", "mig"], 60, modes)
    assert places(hopper, 1) == [("1g.20gb", 6)]
    ampere = make_cantle("1xA100-40GB")
    refused = ampere.cli("up", "--listen", "127.0.0.1:0", "--queue", "default=task", "--mig", "0=dynamic", code=7)
    assert "needs a reset of this GPU" in refused.stderr and "nvidia-smi -i 0 -mig 1" in refused.stderr


@pytest.mark.parametrize(
    ("gpus", "profiles"),
    [
        ("1xRTX-PRO-6000-96GB:mig", ["1g.24gb", "2g.48gb"]),
        ("1xA30-24GB:mig", ["1g.6gb", "2g.12gb"]),
        ("1xH200-141GB:mig", ["1g.35gb", "3g.71gb"]),
        ("1xB200-180GB:mig", ["1g.45gb", "3g.90gb"]),
    ],
)
def test_other_gpus_by_what_their_driver_says(make_cantle, gpus, profiles):
    cantle = make_cantle(gpus)
    for fraction, profile in zip(("0.25", "0.5"), profiles, strict=True):
        done = cantle.cli("run", "--gpu", fraction, "--", *FILL)
        assert f"got MIG instance {profile}," in done.stderr
        memory = next(item["memory_bytes"] for item in cantle.json("mig", "profiles") if item["profile"] == profile)
        assert json.loads(done.stdout)["total_bytes"] == memory


def test_the_script_for_owners_of_a_card_runs(make_cantle):
    """On a simulated card, which knows no other answers than those in its own table."""
    cantle = make_cantle("2xA100-40GB:mig")
    script = [sys.executable, str(ROOT / "tests/gpu/mig_verify.py")]
    asked = cantle.program(*script, check=True)
    assert cantle.truth()[0]["mig"] == [] and "instances" not in json.loads(asked.stdout), "it is only asked"
    owned = [*script, "--cantle", str(CANTLE), "--i-own-this-card"]
    done = cantle.program(*owned, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["as_expected"] and len(report["instances"]) == sum(len(row["placements"]) for row in report["readings"]["table"])
    assert report["memory_of_a_process"]["remembers_the_old_profile"] and not report["names"]["name_is_of_place"]
    assert report["readings"]["codes"]["profile_wrong_version"] == 2
    assert cantle.truth()[0]["mig"] == [], "everything is put back"
    foreign(cantle, profile=19, start=0, size=1)
    refused = cantle.program(*owned)
    assert refused.returncode == 1 and "has instances" in refused.stderr and len(cantle.truth()[0]["mig"]) == 1
    off = make_cantle("1xT4-16GB").program(*script)
    assert off.returncode == 1 and "is not in MIG mode" in off.stderr


def test_exactly_one_task_makes_room_for_a_more_important_one(mig):
    """The quickstart: three 2g.10gb fill the GPU; for a 3g.20gb of higher priority the one at its place stops, no other."""
    mig.up("--queue", "q=task")
    mig.cli("quota", "set", "p", "--gpu", "1")
    small = ["--mig-profile", "2g.10gb", "--project", "p"]
    low = [mig.submit("q", *FILL, "--hold", "600", flags=small) for _ in range(3)]
    for task in low:
        mig.wait_state(task, "in_progress")
    wait_until(lambda: mig.used() == [3 * 9856 * MIB], 60, lambda: mig.used())
    before = {found["uuid"]: found for found in instances(mig)}
    wait_until(lambda: names_of_slices(mig) == set(before), 60, lambda: mig.json("gpus"))
    held_by = {piece["task"]: piece["mig"] for piece in mig.json("gpus")[0]["slices"]}
    large = ["--mig-profile", "3g.20gb", "--project", "p", "--priority", "5"]
    urgent = mig.submit("q", *FILL, "--hold", "600", flags=large)
    mig.wait_state(urgent, "in_progress")
    stopped = [task for task in low if any(event["kind"] == "preempt" for event in mig.json("events", "--task", task))]
    assert [held_by[task]["start"] for task in stopped] == [4], "a 3g.20gb goes to 0 or 4; two tasks are in the way at 0"
    wait_until(lambda: mig.used() == [(2 * 9856 + 19968) * MIB], 60, lambda: mig.used())
    after = {found["uuid"]: found for found in instances(mig)}
    for task in set(low) - set(stopped):
        uuid = held_by[task]["uuid"]
        assert after[uuid] == before[uuid], "the same instance, the same process in it"
        assert mig.task(task)["state"] == "in_progress"
    mig.wait_state(stopped[0], "queued")


def test_an_agent_killed_while_it_makes_an_instance(mig):
    port = own_port()
    up = mig.up("--queue", "q=task", port=port)
    faults(mig, "nvmlGpuInstanceCreateComputeInstance delay_ms=600000 once")
    task = mig.submit("q", "true", flags=["--mig-profile", "3g.20gb"])
    wait_until(lambda: "delay_ms" not in faults_to_come(mig), 60, lambda: mig.log())
    up.kill()
    up.wait()
    assert [found["uuid"] for found in instances(mig)] == [None], "half made"
    mig.up("--queue", "q=task", port=port)
    assert mig.wait_state(task, "completed")["exit_code"] == 0
    assert None not in [found["uuid"] for found in instances(mig)]
