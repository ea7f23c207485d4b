#!/usr/bin/env python3
"""The documented example, live: three GPUs, four queues, four tasks; ends by itself.

`demo.py [BINARY]`, by default dist/bin/cantle. Exit code 0 only if it went as documented. GPUS=real uses this machine's first three GPUs
instead of simulated ones.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CANTLE = str((ROOT / (sys.argv[1] if len(sys.argv) > 1 else "dist/bin/cantle")).resolve())
# Simulated GPUs, as a new user would request them. Commands that need no GPU omit the option.
SIM_GPUS = [] if os.environ.get("GPUS") == "real" else ["--sim-gpus", "3xA100-40GB"]
FILL = ["python3", str(ROOT / "examples/fill_slice.py")]
QUEUES = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"]
UP = ["up", *SIM_GPUS, "--gpus", "0-2", "--queue", *QUEUES]
# The time for which each task keeps its memory once it has all of it. On a busy machine a task stays longer: until the demo has seen all of them.
HOLD_SECONDS = {"dual_gpus": 6, "quarter_gpu": 10, "half_gpu": 10, "single_gpu": 2}
WAITS = "needs 1 GPU, free 0.25 of GPU 2"
GIB = 1 << 30
LIVE = sys.stdout.isatty()


class Demo:
    def __init__(self, home):
        self.env = {"PATH": os.environ["PATH"], "HOME": home, "CANTLE_STATE_DIR": f"{home}/state"}
        self.log = open(f"{home}/up.log", "w+b")
        self.seen = pathlib.Path(home, "seen")
        # Any free port, so that another server can run at the same time.
        up = [CANTLE, *UP, "--listen", "127.0.0.1:0"]
        self.server = subprocess.Popen(up, env=self.env, stdout=self.log, stderr=subprocess.STDOUT)

    def cli(self, *words):
        done = subprocess.run([CANTLE, *words], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Surprise(f"cantle {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def json(self, *words):
        return json.loads(self.cli("-o", "json", *words))["items"]

    def wait_up(self):
        for _ in range(1200):
            self.log.seek(0)
            text = self.log.read().decode()
            if "cantle is up" in text:
                return
            if self.server.poll() is not None:
                raise Surprise(f"cantle up ended:\n{text}")
            time.sleep(0.05)
        raise Surprise("cantle up did not come up")

    def submit(self, queue):
        task = f"{shlex.join(FILL)} --hold {HOLD_SECONDS[queue]} && until [ -e {self.seen} ]; do sleep 0.1; done"
        return self.cli("submit", "--queue", queue, "--name", queue, "--", "sh", "-c", task).strip()

    def stop(self):
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.server.kill()


class Surprise(Exception):
    """The run differed from the documentation."""


def expect(true, text):
    if not true:
        raise Surprise(text)


def bar(gpu):
    """A GPU as its eighths: the first letter of each task that holds one."""
    letters = "".join(piece["task_name"][0] * (piece["milli"] // 125) for piece in gpu["slices"])
    return f"[{letters:·<8}]"


def picture(gpus, tasks, names):
    lines = ["  GPU                       eighths     given   memory used / limit"]
    for gpu in gpus:
        for piece in gpu["slices"]:
            piece["task_name"] = names.get(piece["task"], "?")
        used = sum(piece["memory_used_bytes"] for piece in gpu["slices"])
        limit = sum(piece["memory_limit_bytes"] for piece in gpu["slices"])
        lines.append(
            f"  {gpu['index']} {gpu['model']:<22} {bar(gpu)}  {gpu['allocated_milli'] / 1000:<6g}"
            f"  {used / GIB:4.1f} / {limit / GIB:g} GiB"
        )
    lines.append("  task          state        where / why it waits")
    index = {gpu["uuid"]: str(gpu["index"]) for gpu in gpus}
    for task in tasks:
        where = " and ".join(index[uuid] for uuid in task["gpus"])
        where = f"GPU {where}" if where else task["reason"] or ""
        lines.append(f"  {task['name']:<13} {task['state']:<12} {where}")
    return lines


def records(demo, task):
    return [json.loads(line) for line in demo.cli("logs", task).splitlines() if line.startswith("{")]


def watch(demo, ids):
    """Draws until all tasks have ended; returns what was seen: places, reasons, the fullest moment."""
    names = {task: queue for queue, task in ids.items()}
    seen = {"gpus": {}, "reasons": {}, "most_milli": 0, "start_order": []}
    drawn, deadline, before = 0, time.monotonic() + 300, None
    while True:
        expect(time.monotonic() < deadline, "the tasks did not end within 300 s")
        gpus = sorted(demo.json("gpus"), key=lambda gpu: gpu["index"])
        tasks = sorted(demo.json("tasks", *ids.values()), key=lambda task: list(ids.values()).index(task["id"]))
        for task in tasks:
            queue = names[task["id"]]
            if task["state"] == "in_progress" and task["gpus"]:
                seen["gpus"][queue] = task["gpus"]
                if queue not in seen["start_order"]:
                    seen["start_order"].append(queue)
            if task["state"] == "queued" and task["reason"]:
                seen["reasons"].setdefault(queue, []).append(task["reason"])
        seen["most_milli"] = max(seen["most_milli"], sum(gpu["allocated_milli"] for gpu in gpus))
        if seen["most_milli"] == 2750 and WAITS in " ".join(seen["reasons"].get("single_gpu", [])) or time.monotonic() > deadline - 200:
            demo.seen.touch()
        lines = picture(gpus, tasks, names)
        shape = [re.sub(r"[\d.]+ / ", "", line) for line in lines]
        if LIVE or shape != before:
            if LIVE and drawn:
                print(f"\x1b[{drawn}A\x1b[J", end="")
            print("\n".join(lines + [""]), flush=True)
            drawn, before = len(lines) + 1, shape
        if all(task["state"] in ("completed", "failed", "stopped") for task in tasks):
            return seen, {names[task["id"]]: task for task in tasks}, [gpu["uuid"] for gpu in gpus]
        time.sleep(0.3)


def negative_control(demo, memory):
    """The same program without cantle takes more than half of a GPU: nothing but cantle refused it."""
    machine = [CANTLE, "sim", "machine", "--"] if SIM_GPUS else []
    command = [*machine, *FILL, "--at-most", str(memory // 2 + GIB)]
    env = demo.env | {"CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    return record


def run(demo):
    print("$ cantle " + " ".join(UP))
    print("Three GPUs, four queues in order of priority: " + ", ".join(QUEUES) + ".")
    print("One task in each; every task takes all GPU memory it can get.\n")
    demo.wait_up()
    ids = {queue.split("=")[0]: demo.submit(queue.split("=")[0]) for queue in QUEUES}
    seen, ended, uuids = watch(demo, ids)

    expect(seen["gpus"].get("dual_gpus") == uuids[:2], "dual_gpus should have run on GPUs 0 and 1")
    expect(seen["gpus"].get("quarter_gpu") == [uuids[2]], "quarter_gpu should have run on GPU 2")
    expect(seen["gpus"].get("half_gpu") == [uuids[2]], "half_gpu should have run on GPU 2")
    expect(seen["most_milli"] == 2750, f"2.75 of 3 GPUs should have been in use, not {seen['most_milli'] / 1000:g}")
    reasons = seen["reasons"].get("single_gpu", [])
    expect(any(WAITS in reason for reason in reasons), f"why single_gpu waited: {reasons}")
    expect(seen["start_order"][-1] == "single_gpu", "single_gpu should have started last")
    expect(all(task["exit_code"] == 0 for task in ended.values()), "every task should have ended well")
    print("As documented:")
    print("  dual_gpus ran on GPUs 0 and 1; quarter_gpu and half_gpu shared GPU 2: 2.75 of 3 GPUs in use.")
    print(f"  single_gpu waited (\"{reasons[-1]}\") and started when a GPU came free.")
    for queue, task in ids.items():
        for record in records(demo, task):
            expect(record["refused_code"] == 2 and record["free_bytes"] == 0, f"{queue} was not held to its slice: {record}")
            print(
                f"  {queue:<12} saw {record['total_bytes'] / GIB:g} GiB, allocated {record['allocated_bytes'] / GIB:.2f} GiB"
                " (the rest is its CUDA context), and the next 2 MiB were refused: CUDA_ERROR_OUT_OF_MEMORY"
            )
    control = negative_control(demo, records(demo, ids["dual_gpus"])[0]["total_bytes"])
    expect(control["refused_code"] == 0, f"without cantle nothing should refuse: {control}")
    print(f"  without cantle the same program took {control['allocated_bytes'] / GIB:g} GiB of one GPU and nobody refused.")


def main():
    with tempfile.TemporaryDirectory(prefix="cantle-demo-") as home:
        demo = Demo(home)
        try:
            run(demo)
        except (Surprise, subprocess.CalledProcessError) as surprise:
            print(f"\nNOT as documented: {surprise}", file=sys.stderr)
            return 1
        finally:
            demo.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
