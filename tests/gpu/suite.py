#!/usr/bin/env python3
"""Enforcement on a real GPU: each check has NVML as a witness outside the slice, and the program alone as negative control."""

import contextlib
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import access
import report
from nvml import Nvml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANTLE = str(ROOT / "dist/bin/cantle")
FILL = [sys.executable, str(ROOT / "examples/fill_slice.py")]
MIB = 1 << 20
GIB = 1 << 30
OUTPUT = {"capture_output": True, "text": True, "timeout": 120}


class Skip(Exception):
    """The check can't run here; the text says why."""


class Bench:
    """The card, the witness, and cantle as it is without any setting."""

    def __init__(self, home):
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("CANTLE_")} | {"HOME": home}
        self.nvml = Nvml()
        self.total = self.nvml.memory().total

    def half(self):
        return self.total // 2 // (2 * MIB) * 2 * MIB

    def run(self, *words, code=0):
        done = subprocess.run([CANTLE, *words], env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"{words}: exit {done.returncode}: {done.stderr}"
        return done

    def start(self, *words):
        return subprocess.Popen([CANTLE, *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    @contextlib.contextmanager
    def watched(self):
        """Samples what is in use on the card at 50 Hz; gives a list whose maximum counts."""
        base, samples, stop = self.nvml.memory().used, [0], threading.Event()

        def sample():
            while not stop.wait(0.02):
                samples.append(self.nvml.memory().used - base)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            stop.set()
            thread.join()


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
    done = subprocess.run([*FILL, "--at-most", str(most)], env=bench.env, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout.splitlines()[0])
    assert record["refused_code"] == 0 and record["allocated_bytes"] > bench.half(), record
    return {"allocated_bytes": record["allocated_bytes"]}


def two_halves_side_by_side(bench):
    with bench.watched() as used:
        tasks = [bench.start("run", "--gpu", "0.5", "--", *FILL, "--hold", "3") for _ in range(2)]
        time.sleep(2)
        third = bench.run("run", "--gpu", "0.125", "--", "true", code=6)
        records = [json.loads(task.communicate(timeout=120)[0]) for task in tasks]
    assert all(record["total_bytes"] == bench.half() for record in records), records
    assert "nothing free" in third.stderr, third.stderr
    assert max(used) <= 2 * bench.half()
    return {"nvml_max_bytes": max(used)}


def kill_gives_everything_back(bench):
    base = bench.nvml.memory().used
    task = bench.start("run", "--gpu", "0.5", "--", "sh", "-c", f"echo $$; exec {' '.join(FILL)} --hold 60")
    pid = int(task.stdout.readline())
    json.loads(task.stdout.readline())
    os.kill(pid, 9)
    assert task.wait(timeout=30) == 128 + 9
    deadline = time.monotonic() + 5
    while bench.nvml.memory().used > base and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bench.nvml.memory().used <= base, "the driver took it back"
    bench.run("run", "--gpu", "1", "--", "true")
    return {}


def every_path_is_held(bench):
    if not shutil.which("gcc"):
        raise Skip("gcc is not installed")
    held, broken, absent = access.try_all(bench, bench.home)
    assert not broken, json.dumps(broken)
    assert len(held) >= 30, f"held: {held}, absent: {absent}"
    return {"paths": len(held), "absent": absent}


def limits_says_enforced(bench):
    done = bench.run("run", "--gpu", "0.25", "--", CANTLE, "-o", "json", "limits")
    (item,) = json.loads(done.stdout)["items"]
    assert item["enforced"] is True, item
    return {"memory_limit_bytes": item["memory_limit_bytes"]}


WORKLOADS = str(ROOT / "tests/gpu/workloads.py")
NOT_INSTALLED = 3
ALLOCATORS = {
    "torch": {},
    "torch_with_expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "torch_with_cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def workload(bench, name, env=None):
    """Runs it in half of the GPU, then alone as the control, and gives what both saw."""
    if bench.nvml.simulated and name != "graph":
        raise Skip("simulated GPUs run no kernels")
    command, env = [sys.executable, WORKLOADS, name], env or {}
    with bench.watched() as used:
        inside = subprocess.run([CANTLE, "run", "--gpu", "0.5", "--", *command], env={**bench.env, **env}, **OUTPUT)
    if inside.returncode == NOT_INSTALLED:
        raise Skip(inside.stderr.splitlines()[-1])
    assert inside.returncode == 0, f"exit {inside.returncode}: {inside.stderr[-2000:]}"
    outside = subprocess.run(command, env={**bench.env, **env}, check=True, **OUTPUT)
    inside, outside = json.loads(inside.stdout.splitlines()[-1]), json.loads(outside.stdout.splitlines()[-1])
    assert inside["total"] == bench.half() and inside["over"] == "refused", inside
    assert outside["total"] > bench.half(), outside
    assert max(used) <= bench.half(), f"NVML saw {max(used)} of {bench.half()}"
    return inside, outside


def framework(name, workload_name, env=None):
    def check(bench):
        inside, _ = workload(bench, workload_name, env)
        return inside

    check.__name__ = f"{name}_stays_in_its_slice"
    return check


def training_and_inference_cost_nothing(bench):
    """Time of a step in a slice divided by the time alone, in pairs, so that a card that warms up counts on both sides."""
    pairs = [workload(bench, "torch") for _ in range(5)]
    report = {}
    for what in ("train_ms", "infer_ms"):
        ratios = sorted(inside[what] / outside[what] for inside, outside in pairs)
        report[what.replace("_ms", "_time_ratios")] = ratios
        assert statistics.median(ratios) < 1.02, f"{what}: {ratios}"
    return report


CHECKS = [
    a_slice_is_all_there_is,
    without_cantle_nothing_refuses,
    two_halves_side_by_side,
    kill_gives_everything_back,
    limits_says_enforced,
    every_path_is_held,
    framework("graph", "graph"),
    *(framework(name, "torch", env) for name, env in ALLOCATORS.items()),
    framework("cupy", "cupy"),
    framework("jax", "jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    training_and_inference_cost_nothing,
]


def judge(check, bench):
    began = time.monotonic()
    try:
        outcome, detail = "passed", check(bench)
    except Skip as why:
        outcome, detail = "skipped", {"why": str(why)}
    except Exception:  # a check that breaks in any way has failed
        outcome, detail = "failed", {"why": traceback.format_exc()}
    print(f"{outcome:<8} {check.__name__} {json.dumps(detail)}", flush=True)
    return {"check": check.__name__, "outcome": outcome, "seconds": round(time.monotonic() - began, 2), **detail}


def main():
    out = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="cantle-gpu-") as home:
        bench = Bench(home)
        results = [judge(check, bench) for check in CHECKS]
        record = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "simulated": bench.nvml.simulated,
            **bench.nvml.describe(),
            "cantle": bench.run("--version").stdout.strip(),
            "results": results,
        }
    count = {word: sum(r["outcome"] == word for r in results) for word in ("passed", "failed", "skipped")}
    print(f"results: {report.write(out, record)}")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
