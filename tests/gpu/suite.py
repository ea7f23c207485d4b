#!/usr/bin/env python3
"""Enforcement on a real GPU: each check has NVML as a witness outside the slice, and the program alone as negative control."""

import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from nvml import Nvml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANTLE = str(ROOT / "dist/bin/cantle")
FILL = [sys.executable, str(ROOT / "examples/fill_slice.py")]
MIB = 1 << 20
GIB = 1 << 30
SIMULATED = "CANTLE_SIM_GPUS" in os.environ


class Skip(Exception):
    """The check can't run here; the text says why."""


class Bench:
    """The card, the witness, and a private state directory."""

    def __init__(self, home):
        self.env = dict(os.environ, CANTLE_STATE_DIR=f"{home}/state", HOME=home)
        self.alone = dict(self.env)
        if SIMULATED:
            self.env["CANTLE_SIM_DIR"] = self.alone["CANTLE_SIM_DIR"] = os.environ["CANTLE_SIM_DIR"]
            self.alone["LD_LIBRARY_PATH"] = str(ROOT / "dist/lib/cantle/sim")
        self.nvml = Nvml(str(ROOT / "dist/lib/cantle/sim/libnvidia-ml.so.1") if SIMULATED else "libnvidia-ml.so.1")
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
    done = subprocess.run([*FILL, "--at-most", str(most)], env=bench.alone, capture_output=True, text=True, check=True)
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


def limits_says_enforced(bench):
    done = bench.run("run", "--gpu", "0.25", "--", CANTLE, "-o", "json", "limits")
    (item,) = json.loads(done.stdout)["items"]
    assert item["enforced"] is True, item
    return {"memory_limit_bytes": item["memory_limit_bytes"]}


TORCH = """
import json, torch
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(total + (64 << 20), dtype=torch.uint8, device="cuda"); over = "granted"
except torch.cuda.OutOfMemoryError:
    over = "refused"
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(20): a = (a @ a).clamp(-1, 1)
torch.cuda.synchronize()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for _ in range(200): a = (a @ a).clamp(-1, 1)
end.record(); torch.cuda.synchronize()
print(json.dumps({"total": total, "free": free, "over": over, "ms": start.elapsed_time(end)}))
"""


def torch_stays_in_its_slice(bench):
    if SIMULATED or subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        raise Skip("PyTorch is not installed" if not SIMULATED else "simulated GPUs run no kernels")
    with_cantle = lambda: json.loads(bench.run("run", "--gpu", "0.5", "--", sys.executable, "-c", TORCH).stdout)
    alone = lambda: json.loads(subprocess.check_output([sys.executable, "-c", TORCH], env=bench.alone, text=True))
    pairs = [(with_cantle(), alone()) for _ in range(5)]
    for inside, outside in pairs:
        assert inside["total"] == bench.half() and inside["over"] == "refused", inside
        assert outside["total"] > bench.half(), outside
    ratios = [inside["ms"] / outside["ms"] for inside, outside in pairs]
    return {"time_ratio_median": statistics.median(ratios), "time_ratios": ratios}


CHECKS = [
    a_slice_is_all_there_is,
    without_cantle_nothing_refuses,
    two_halves_side_by_side,
    kill_gives_everything_back,
    limits_says_enforced,
    torch_stays_in_its_slice,
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
        if SIMULATED:
            os.environ["CANTLE_SIM_DIR"] = f"{home}/sim"
            subprocess.run([CANTLE, "run", "--gpu", "0.5", "--", "true"], check=True, capture_output=True)
        bench = Bench(home)
        results = [judge(check, bench) for check in CHECKS]
        record = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "simulated": SIMULATED,
            **bench.nvml.describe(),
            "cantle": bench.run("--version").stdout.strip(),
            "results": results,
        }
    count = {word: sum(r["outcome"] == word for r in results) for word in ("passed", "failed", "skipped")}
    name = "gpu-suite" if not SIMULATED else "gpu-suite-simulated"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}-{record['date'][:10]}.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
