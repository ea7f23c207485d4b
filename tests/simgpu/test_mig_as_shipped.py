"""Undocumented behavior of NVIDIA's library with MIG; each has its row in crates/sim/simgpu/src/nvml/settings.rs."""

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
    # The fault is gone from the script as soon as the call is in it.
    while "delay_ms" in open(faults).read(): time.sleep(0.01)
    began, cpu = time.monotonic(), time.process_time()
    n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(1), 9)
    show([time.monotonic() - began, time.process_time() - cpu, making.is_alive()])
    making.join()
"""


@pytest.mark.clock
@pytest.mark.gpus("2xA100-40GB:mig")
@pytest.mark.parametrize("lock", [1, 0])
def test_one_lock_for_the_mig_calls_of_a_process(machine, lock):
    """Without the lock, the negative control, the other GPU answers at once."""
    run(machine, "show(0)")
    model(machine, f"mig_lock={lock}")
    (machine.folder / "sim/faults").write_text("nvmlGpuInstanceCreateComputeInstance gpu=0 delay_ms=4000 once\n")
    waited, cpu, is_making = json.loads(run(machine, f"\n    faults = {str(machine.folder / 'sim/faults')!r}" + SLOW_NEIGHBOR))
    if lock:
        assert waited > 2 and cpu > 0.2, "it waits for another GPU, and takes time of a core for that"
    else:
        assert is_making, "it did not wait"


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


OPENED = """
    import subprocess
    uuid = make(19, 0, 1)
    g, c = instance(uuid)
    number = n.nvmlGpuInstanceGetInfo(g).id
    minors = dict(line.split() for line in open(f"{sim}/proc/driver/nvidia-caps/mig-minors"))
    node = f"{sim}/dev/nvidia-caps/nvidia-cap" + minors[f"gpu0/gi{number}/ci0/access"]
    monitor = subprocess.Popen(["sleep", "60"], stdin=open(node))
    opened = code(destroy, uuid)
    monitor.kill(), monitor.wait()
    show([opened, code(destroy, uuid) if opened else None])
"""


@pytest.mark.gpus("1xA100-40GB:mig")
@pytest.mark.parametrize("counted", [1, 0])
def test_who_has_a_capability_open_keeps_the_instance(machine, counted):
    run(machine, "show(0)")
    model(machine, f"open_capability={counted}")
    script = f"\n    sim = {str(machine.folder / 'sim')!r}" + OPENED
    assert json.loads(run(machine, script)) == ([19, 0] if counted else [0, None])


@pytest.mark.gpus("2xA100-40GB:mig")
@pytest.mark.parametrize("own", [1, 0])
def test_each_gpu_numbers_its_instances_in_its_own_way(machine, own):
    run(machine, "show(0)")
    model(machine, f"ids_by_gpu={own}")
    script = "show([n.nvmlGpuInstanceGetInfo(instance(make(9, 4, 4, i=i))[0]).id for i in (0, 1)])"
    assert json.loads(run(machine, script)) == ([2, 1] if own else [2, 2])


@pytest.mark.gpus("1xA100-40GB:mig")
@pytest.mark.parametrize("by_pipe", [1, 0])
def test_a_neighbor_changes_the_name_of_a_place(machine, by_pipe):
    run(machine, "show(0)")
    model(machine, f"uuid_by_pipe={by_pipe}")
    alone, again, beside = json.loads(run(machine, """
        alone = make(19, 0, 1); destroy(alone)
        again = make(19, 0, 1); destroy(again)
        make(19, 6, 1)
        show([alone, again, make(19, 0, 1)])
    """))
    assert alone == again and (alone != beside) == bool(by_pipe)


SET_MODE = """
    activation = ctypes.c_int()
    code = n._nvmlGetFunctionPointer("nvmlDeviceSetMigMode")(gpu({gpu}), 1, ctypes.byref(activation))
    show([code, activation.value, n.nvmlDeviceGetMigMode(gpu({gpu}))])
"""


@pytest.mark.gpus("1xA100-40GB,1xH100-80GB")
@pytest.mark.parametrize(("row", "ampere"), [("ampere_reset=1", [0, 19, [0, 1]]), ("ampere_reset=0", [0, 0, [1, 1]]), ("no_reset=1", [0, 16, [0, 1]])])
def test_before_hopper_a_mode_needs_a_reset(machine, row, ampere):
    """Another process has NVML open, as every monitor has."""
    run(machine, "show(0)")
    model(machine, row)
    open_elsewhere = "\n    import subprocess, sys\n    subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
    for gpu, expected in ((0, ampere), (1, [0, 0, [1, 1]])):
        child = PRELUDE + textwrap.dedent(SET_MODE.replace("{gpu}", str(gpu)))
        script = PRELUDE + textwrap.dedent(open_elsewhere)
        assert json.loads(machine.run(sys.executable, "-c", script, child)) == expected


@pytest.mark.gpus("1xA100-40GB")
def test_alone_an_ampere_changes_its_mode_at_once(machine):
    assert json.loads(run(machine, SET_MODE.replace("{gpu}", "0"))) == [0, 0, [1, 1]]


@pytest.mark.gpus("1xA100-40GB:mig")
def test_a_driver_that_is_loaded_again(machine):
    """Instances are gone; the mode that was pending is the mode."""
    script = "make(9, 0, 4); n.nvmlDeviceSetMigMode(gpu(), 0); show(n.nvmlDeviceGetMigMode(gpu()))"
    assert json.loads(run(machine, script)) == [1, 0]
    assert machine.reload()
    assert machine.truth()[0]["mig"] == []
    assert json.loads(run(machine, "show(n.nvmlDeviceGetMigMode(gpu()))")) == [0, 0]


@pytest.mark.gpus("1xA100-40GB")
def test_a_driver_in_use_is_not_loaded_again(machine):
    holder = machine.client()
    assert holder("context()") == 0
    assert not machine.reload()
    holder.kill()
    assert machine.reload()


@pytest.mark.gpus("1xA100-40GB")
@pytest.mark.parametrize("mps", [1, 0])
def test_clients_of_mps_have_a_list_of_their_own(machine, mps):
    holder = machine.client()
    assert holder("context()") == 0
    model(machine, f"mps={mps}")
    lists = json.loads(run(machine, """
        both = n.nvmlDeviceGetComputeRunningProcesses_v3(gpu()), n.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu())
        show([[row.pid for row in rows] for rows in both])
    """))
    assert lists == ([[], [holder.pid]] if mps else [[holder.pid], []])
