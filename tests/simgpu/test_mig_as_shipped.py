"""What NVIDIA's library does with MIG and its documentation does not say; each has its row in crates/simgpu/src/nvml/settings.rs."""

import json
import sys
import textwrap

import pytest

from test_mig import PRELUDE


def model(machine, *rows):
    folder = machine.folder / "sim"
    folder.mkdir(exist_ok=True)
    (folder / "model").write_text("".join(f"{row}\n" for row in rows))


def run(machine, script, **options):
    return machine.run(sys.executable, "-c", PRELUDE + textwrap.dedent(script), **options)


SLOW_NEIGHBOR = """
    import threading, time
    gpu(0), gpu(1)
    g = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(0), 9, place(0, 4))
    making = threading.Thread(target=n.nvmlGpuInstanceCreateComputeInstance, args=(g, 2))
    making.start()
    time.sleep(0.2)
    began, cpu = time.monotonic(), time.process_time()
    n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(1), 9)
    show([time.monotonic() - began, time.process_time() - cpu])
    making.join()
"""


@pytest.mark.gpus("2xA100-40GB:mig")
@pytest.mark.parametrize("lock", [1, 0])
def test_one_lock_for_the_mig_calls_of_a_process(machine, lock):
    """Without the lock, the negative control, the other GPU answers at once."""
    run(machine, "show(0)")
    model(machine, f"mig_lock={lock}")
    (machine.folder / "sim/faults").write_text("nvmlGpuInstanceCreateComputeInstance gpu=0 delay_ms=2000 once\n")
    waited, cpu = json.loads(run(machine, SLOW_NEIGHBOR))
    if lock:
        assert waited > 1.5 and cpu > 0.2, "it waits for another GPU, and takes time of a core for that"
    else:
        assert waited < 1


REPLACED = """
    import subprocess, sys
    def ids(profile):
        found, count = (n.c_nvmlGpuInstance_t * 4)(), ctypes.c_uint(0)
        code = n._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstances")(gpu(), profile, found, ctypes.byref(count))
        assert code == 0, code
        return list(found[:count.value])
    def info(handle):
        seen = n.nvmlGpuInstanceGetInfo(handle)
        return [seen.id, seen.profileId, seen.placement.size]
    four = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), 5, place(0, 4)) if {own} else None
    if {own}:
        n.nvmlGpuInstanceDestroy(four)
        three = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), 9, place(0, 4))
        show([[info(handle) for handle in ids(profile)] for profile in (5, 9)])
    else:
        other = lambda script: subprocess.run([sys.executable, "-c", sys.argv[1] + script], check=True)
        other("n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), 5, place(0, 4))")
        before = [info(handle) for handle in ids(5)]
        other("n.nvmlGpuInstanceDestroy(n.nvmlDeviceGetGpuInstanceById(gpu(), %d))" % before[0][0])
        other("n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), 9, place(0, 4))")
        seen = [[info(handle) for handle in ids(profile)] for profile in (5, 9)]
        n.nvmlShutdown(), n.nvmlInit()
        show([before, seen, [[info(handle) for handle in ids(profile)] for profile in (5, 9)]])
"""


@pytest.mark.gpus("1xA100-40GB:mig")
@pytest.mark.parametrize("remembered", [1, 0])
def test_a_process_remembers_what_an_id_was(machine, remembered):
    run(machine, "show(0)")
    model(machine, f"remembered_instances={remembered}")
    script = PRELUDE + textwrap.dedent(REPLACED.replace("{own}", "False"))
    before, seen, reopened = json.loads(machine.run(sys.executable, "-c", script, PRELUDE))
    ((number, profile, size),) = before
    assert profile == 5
    assert seen == [[], [[number, 5 if remembered else 9, size]]], "listed under the new profile, told to be the old one"
    assert reopened == [[], [[number, 9, size]]], "NVML opened anew knows better"


@pytest.mark.gpus("1xA100-40GB:mig")
def test_what_a_process_does_itself_it_knows(machine):
    script = PRELUDE + textwrap.dedent(REPLACED.replace("{own}", "True"))
    four, three = json.loads(machine.run(sys.executable, "-c", script, PRELUDE))
    assert four == [] and [profile for _, profile, _ in three] == [9]


@pytest.mark.gpus("1xA100-40GB:mig")
def test_an_unknown_row_is_refused(machine):
    run(machine, "show(0)")
    model(machine, "mig_lok=0")
    done = machine.run(sys.executable, "-c", "import pynvml; pynvml.nvmlInit()", code=1)
    assert done == ""


@pytest.mark.gpus("1xA100-40GB")
def test_placements_are_told_outside_of_mig_mode_too(machine):
    script = """
        count = ctypes.c_uint(0)
        code = n._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstancePossiblePlacements_v2")(gpu(), 19, None, ctypes.byref(count))
        show([code, count.value])
    """
    assert json.loads(run(machine, script)) == [0, 7]
