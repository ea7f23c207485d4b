#!/usr/bin/env python3
"""What the shim adds to calls of the driver, beside the driver alone and a filter that does nothing (the floor).

The three take turns, five times; each figure is the least of its rounds, in nanoseconds per call.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/bench"
SIM = ROOT / "dist/lib/cantle/sim"
CANTLE = str(ROOT / "dist/bin/cantle")
TURNS = 5
# Promised: at most so many nanoseconds over the driver alone.
PROMISED_NS = {"launch": 4, "mem_get_info": 50, "pair_2mib_0_live": 150, "pair_2mib_1000_live": 150, "pair_2mib_10000_live": 150}
PROMISED_NS |= {name.replace("2mib", "4kib"): limit for name, limit in list(PROMISED_NS.items())[2:]}


def gcc(*words):
    subprocess.run(["gcc", "-O2", "-Wall", *map(str, words)], check=True)


def figures(command, env):
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def measure(home):
    calls, floor = f"{home}/calls", f"{home}/floor.so"
    gcc("-o", calls, HERE / "calls.c", SIM / "libcuda.so.1")
    gcc("-shared", "-fPIC", "-o", floor, HERE / "floor.c")
    env = {"PATH": os.environ["PATH"], "HOME": home, "CANTLE_STATE_DIR": f"{home}/state"}
    env |= {"CANTLE_SIM_DIR": f"{home}/sim", "CANTLE_SIM_GPUS": "1xA100-40GB"}
    ways = {
        "alone": ([calls], env | {"LD_LIBRARY_PATH": str(SIM)}),
        "floor": ([calls], env | {"LD_LIBRARY_PATH": str(SIM), "LD_PRELOAD": floor}),
        "cantle": ([CANTLE, "-q", "run", "--gpu", "0.5", "--", calls], env),
    }
    least = {way: {} for way in ways}
    for _ in range(TURNS):
        for way, (command, environment) in ways.items():
            for name, value in figures(command, environment).items():
                least[way][name] = min(value, least[way].get(name, value))
    return least


def main():
    with tempfile.TemporaryDirectory(prefix="cantle-bench-") as home:
        least = measure(home)
    broken = []
    print(f"{'ns per call':<22}{'alone':>9}{'floor':>9}{'cantle':>9}{'added':>9}{'promised':>10}")
    for name, alone in least["alone"].items():
        cantle = least["cantle"][name]
        added, promised = cantle - alone, PROMISED_NS[name]
        print(f"{name:<22}{alone:>9.1f}{least['floor'][name]:>9.1f}{cantle:>9.1f}{added:>9.1f}{f'+{promised}':>10}")
        broken += [name] if added > promised else []
    print("promises kept" if not broken else f"BROKEN: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
