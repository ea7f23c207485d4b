"""Checks that need nothing but the driver (and gcc, where they say so)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import access
from bench import CANTLE, FILL, GIB, HERE, MIB, Skip


def the_card_is_idle(bench):
    """Everything below compares what is in use on the card with what it was before."""
    first = bench.used()
    time.sleep(1)
    assert bench.used() == first, "somebody else uses the card"
    return {"used_bytes": first}


def a_slice_is_all_there_is(bench):
    with bench.watched() as used:
        done = bench.run("run", "--gpu", "0.5", "--", *FILL, "--hold", "1")
    record = json.loads(done.stdout)
    assert record["total_bytes"] == bench.half(), record
    assert record["refused_code"] == 2, record
    assert max(used) <= bench.half(), f"NVML saw {max(used)} of {bench.half()}"
    return {"limit_bytes": bench.half(), "nvml_max_bytes": max(used), "allocated_bytes": record["allocated_bytes"]}


def without_cantle_nothing_refuses(bench):
    most = bench.half() + GIB
    record = json.loads(bench.alone(*FILL, "--at-most", str(most)).communicate(timeout=bench.time_left())[0].splitlines()[0])
    assert record["refused_code"] == 0 and record["allocated_bytes"] > bench.half(), record
    return {"allocated_bytes": record["allocated_bytes"]}


def a_context_alone_is_no_offense(bench):
    """A program that has taken no memory yet, for longer than the watchdog's grace period."""
    began = time.monotonic()
    bench.last_record(bench.job("context", "4"))
    alone = bench.last_record(bench.job("context", "1", part=None))
    return {"seconds": round(time.monotonic() - began, 1), "control": alone}


def each_context_is_charged(bench):
    """At once, and with all that the driver takes for it: more than NVML reports for the process. The last one that fits is the last."""
    limit, base = 2 * GIB, bench.used()
    words = [sys.executable, str(HERE / "jobs.py"), "contexts"]
    outside = bench.record(bench.alone(*words, "8"))
    bench.end_children()
    assert bench.settle(base) <= base
    inside = bench.record(bench.start("run", "--quiet", "--gpu-memory", f"{limit // MIB}Mi", "--", *words, "8"))
    facts = {"inside": inside, "outside": outside, "nvml_bytes": bench.used() - base}
    # The negative control.
    assert outside["code"] == 0 and outside["used"][-1] > limit, facts
    assert inside["code"] == 2 and inside["used"][-1] <= limit, facts
    assert facts["nvml_bytes"] <= inside["used"][-1] <= facts["nvml_bytes"] + 8 * MIB * len(inside["used"]), facts
    return facts


def two_halves_both_take_all(bench):
    base = bench.used()
    halves = [bench.job("fill") for _ in range(2)]
    full = [bench.record(child) for child in halves]
    if len(bench.nvml.devices) == 1:
        third = bench.run("run", "--gpu", "0.125", "--", "true", code=6)
        assert "nothing free" in third.stderr, third.stderr
    used = bench.used() - base
    contexts = [bench.half() - record["taken"] - record["free"] for record in full]
    facts = {"taken_bytes": [record["taken"] for record in full], "context_bytes": contexts, "nvml_bytes": used}
    assert all(record["total"] == bench.half() for record in full), facts
    # Each could take its limit but for its context and what is smaller than a granule.
    assert all(record["free"] < 4 * MIB for record in full), facts
    assert used <= 2 * bench.half(), facts
    return facts


def free_memory_after_a_sibling_ended(bench):
    inside = bench.last_record(bench.job("sibling"))
    outside = bench.last_record(bench.job("sibling", part=None))
    assert outside["beside"] < outside["after"] == outside["before"], outside
    assert inside["beside"] < inside["before"], inside
    assert inside["after"] == inside["before"], inside
    return {"inside": inside}


def programs_can_be_linked_inside(bench):
    if not shutil.which("gcc"):
        raise Skip("gcc is not installed")
    source = os.path.join(bench.home, "linked.c")
    with open(source, "w") as out:
        out.write("int cuInit(unsigned), cuDriverGetVersion(int *), cuLaunchKernel();\n")
        out.write("int main(int n, char **v) { int x = 0; return n > 5 ? cuLaunchKernel() : cuInit(0) || cuDriverGetVersion(&x) || !x; }\n")
    command = f"gcc -w -o {bench.home}/linked {source} {access.path_of_libcuda()} && {bench.home}/linked"
    outside = bench.alone("sh", "-c", command)
    assert outside.wait(timeout=bench.time_left()) == 0, outside.stderr.read()
    bench.run("run", "--gpu", "0.25", "--", "sh", "-c", command)
    return {}


def functions_looked_up_are_hooked(bench):
    """cuGetProcAddress at every version, of every function that is known: the driver's answer, with its hooked functions replaced."""
    names = access.ROOT / "crates/sim/simgpu/data/cuda-symbols.txt"
    lookup = [sys.executable, access.BYPASS / "lookup.py", names]
    found = json.loads(bench.run("run", "--quiet", "--gpu", "0.25", "--", *map(str, lookup)).stdout)
    assert not found["wrong"] and not found["unexported"], found
    assert len(found["substituted"]) > 50, found
    return {"look_ups": found["untouched"], "hooked": len(found["substituted"])}


def no_capture_is_disturbed(bench):
    """Each call has the same codes as outside, with what the filter asks the driver behind it."""
    command = [sys.executable, str(HERE / "captures.py")]
    outside, inside = (bench.last_record(start(*command)) for start in (bench.alone, lambda *words: bench.start("run", "--quiet", "--gpu", "0.25", "--", *words)))
    differ = {name: [codes, inside[name]] for name, codes in outside.items() if inside[name] != codes}
    assert not differ, differ
    assert any(ended for codes in outside.values() for _, ended in codes), "no call ended a capture: this shows nothing"
    return {"codes": outside}


def nvidia_smi_shows_the_slice(bench):
    if not shutil.which("nvidia-smi"):
        raise Skip("nvidia-smi is not installed")
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    inside = int(bench.run("run", "--quiet", "--gpu", "0.25", "--", *ask).stdout)
    outside = int(subprocess.run(ask, env=bench.env, capture_output=True, text=True, check=True).stdout.splitlines()[0])
    assert inside == bench.part(0.25) // MIB < outside, (inside, outside)
    bench.run("run", "--quiet", "--gpu", "0.25", "--", "nvidia-smi")
    return {"inside_mib": inside, "outside_mib": outside}


def outside_pid(inside, word):
    """A task has its own pid namespace: the machine's pid of its process `inside`, whose command line has `word`."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            pids = process.joinpath("status").read_text().split("NSpid:")[1].split("\n")[0].split()
            command = process.joinpath("cmdline").read_text()
        except OSError:
            continue
        if int(pids[-1]) == inside and word in command:
            return int(process.name)
    raise AssertionError(f"no process {inside} with {word}")


def kill_gives_everything_back(bench):
    base = bench.used()
    # Words that no other program on the machine has, whatever else runs on it.
    hold = f"--hold 600.{os.getpid()}"
    task = bench.start("run", "--gpu", "0.5", "--", "sh", "-c", f"echo $$; exec {' '.join(FILL)} {hold}")
    pid = int(task.stdout.readline())
    json.loads(task.stdout.readline())
    os.kill(outside_pid(pid, hold.replace(" ", "\0")), 9)
    assert task.wait(timeout=bench.time_left()) == 128 + 9
    assert bench.settle(base) <= base, "the driver took it back"
    bench.run("run", "--gpu", "1", "--", "true")
    return {}


def limits_says_enforced(bench):
    done = bench.run("run", "--gpu", "0.25", "--", CANTLE, "-o", "json", "limits")
    (item,) = json.loads(done.stdout)["items"]
    assert item["enforced"] is True, item
    return {"memory_limit_bytes": item["memory_limit_bytes"]}


def a_reset_gives_everything_back(bench):
    inside = bench.last_record(bench.job("reset"))
    assert inside["after"] >= inside["before"] + 512 * MIB and inside["again"], inside
    return {"inside": inside}


def forks_and_ipc_work_as_outside(bench):
    facts = {}
    for name in ("forked", "ipc"):
        facts[name] = inside, outside = [bench.last_record(bench.job(name, part=part)) for part in (0.5, None)]
        same = ("child_was_refused", "parent_goes_on", "imported")
        assert [inside.get(key) for key in same] == [outside.get(key) for key in same], facts
    # The importer has a context; the gigabyte is the exporter's.
    assert facts["ipc"][0]["cost"] < GIB, facts
    return facts


def a_driver_opened_past_the_slice_is_ended(bench):
    """The negative of all others: the driver's own file at its private place is no way around the slice for long."""
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); sys.argv = ['jobs.py', 'fill']; import ctypes, jobs; real = ctypes.CDLL; "
    program += "ctypes.CDLL = lambda name: real('/run/cantle/real/libcuda.so.1'); jobs.main()"
    task = bench.start("run", "--gpu", "0.25", "--", sys.executable, "-c", program)
    first = task.stdout.readline()
    if not first:
        raise Skip(f"the driver's file is not there: {task.communicate()[1][-300:]}")
    taken, began = json.loads(first)["taken"], time.monotonic()
    gpus = json.loads(bench.run("gpus", "-o", "json").stdout)["items"]
    backends = {backend for gpu in gpus for slice in gpu["slices"] for backend in slice.get("enforced_by", [])}
    # A driver with limits of its own refuses what the watchdog would not tolerate.
    if "nvml" in backends and taken <= bench.part(0.25) + 512 * MIB:
        bench.go_on(task)
        return {"taken_bytes": taken, "refused_by": "the driver"}
    code = task.wait(timeout=bench.time_left())
    assert code == 128 + 9, f"exit {code} with {taken} bytes"
    return {"taken_bytes": taken, "seconds": round(time.monotonic() - began, 1)}


def every_path_is_held(bench):
    if not shutil.which("gcc"):
        raise Skip("gcc is not installed")
    held, broken, absent = access.try_all(bench, bench.home)
    assert not broken, json.dumps(broken)
    assert len(held) >= 30, f"held: {held}, absent: {absent}"
    return {"paths": len(held), "absent": absent}
