#!/usr/bin/env python3
"""The time of a task from its command to its main(), with and without cantle, and the memory of an idle agent.

Pairs: each run with cantle is followed by the same program alone. cantle's share is the difference to the median alone; the way
onto the machine is in both. Needs root, to make a machine with GPUs.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from machine import CANTLE, Machine  # noqa: E402

RUNS = 100
LAUNCH_P99_MS_MAX = 10.0
IDLE_RSS_MIB_MAX = 20.0


def milliseconds_to_main(command, env):
    began = time.monotonic_ns()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return (int(done.stdout) - began) / 1e6


def launch(machine, home, env):
    program = f"{home}/at_main"
    subprocess.run(["gcc", "-O2", "-o", program, str(ROOT / "tests/bench/at_main.c"), "-ldl"], check=True)
    alone, with_cantle = machine.command(program), machine.command(CANTLE, "run", "--gpu", "0.5", "--", program)
    milliseconds_to_main(with_cantle, env)  # the first run also measures the context; a node does that once
    pairs = [(milliseconds_to_main(with_cantle, env), milliseconds_to_main(alone, env)) for _ in range(RUNS)]
    floor = statistics.median(pair[1] for pair in pairs)
    shares = sorted(pair[0] - floor for pair in pairs)
    p50, p99 = shares[len(shares) // 2], shares[int(len(shares) * 0.99) - 1]
    print(f"launch: cantle's share p50 {p50:.2f} ms, p99 {p99:.2f} ms over {RUNS} runs; floor: the program alone {floor:.2f} ms")
    return p99


def rss_kib(pid, field):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def idle_agent(machine, home, env):
    log = open(f"{home}/log", "wb")
    server = subprocess.Popen(machine.command(CANTLE, "server", "--listen", "127.0.0.1:0"), env=env, stdout=log, stderr=log)
    agent = None
    try:
        time.sleep(2)
        words = ["daemon", "--dynamic-gpus", "--create-queue", "--queue", "a=0.25", "b=0.5", "c=1", "d=2", "--gpus", "0-2"]
        agent = subprocess.Popen(machine.command(CANTLE, *words), env=env, stdout=log, stderr=log)
        time.sleep(3)
        before = cpu_ticks(agent.pid)
        time.sleep(10)
        used = (cpu_ticks(agent.pid) - before) / os.sysconf("SC_CLK_TCK")
        rss = rss_kib(agent.pid, "VmRSS:") / 1024
        print(f"idle agent: {rss:.1f} MiB RSS (peak {rss_kib(agent.pid, 'VmHWM:') / 1024:.1f}), {used / 10 * 100:.2f} % CPU over 10 s")
        return rss
    finally:
        for child in filter(None, (agent, server)):
            child.terminate()
            child.wait()


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def main():
    if os.geteuid() != 0:
        print("launch, idle agent: skipped, they need root")
        return 0
    with tempfile.TemporaryDirectory(prefix="cantle-bench-") as home:
        env, machine = {"PATH": os.environ["PATH"], "HOME": home}, Machine("3xA100-40GB")
        try:
            p99, rss = launch(machine, home, env), idle_agent(machine, home, env)
        finally:
            machine.stop()
    good = p99 <= LAUNCH_P99_MS_MAX and rss <= IDLE_RSS_MIB_MAX
    print(f"promised: p99 at most {LAUNCH_P99_MS_MAX} ms, at most {IDLE_RSS_MIB_MAX} MiB: {'kept' if good else 'BROKEN'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
