#!/usr/bin/env python3
"""The time that the driver's own limit adds to the start of a task, on a simulated driver 615: the control group, the limit, and the lease that names both.

Pairs: each run with the limit is followed by one with the filter alone, on the same machine. The 10th percentiles are compared. Needs root, to make a machine with GPUs.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from launch import CANTLE, ROOT, Machine, milliseconds_to_main  # noqa: E402

DRIVER = "615.71.09"
RUNS = 150
ADDED_MS_MAX = 2.0


def limits(machine, home, env):
    program = f"{home}/at_main"
    subprocess.run(["gcc", "-O2", "-o", program, str(ROOT / "tests/bench/at_main.c"), "-ldl"], check=True)
    limited, filtered = (machine.command(CANTLE, "run", "--gpu", "0.5", "--enforce", mode, "--", program) for mode in ("driver", "filter"))
    for mode, word in ((limited, "enforced by driver + "), (filtered, "enforced by ")):
        # The first run also measures the context; a node does that once.
        said = subprocess.run(mode, env=env, capture_output=True, text=True, check=True).stderr
        assert word in said and ("driver +" in said) == (mode is limited), said
    pairs = [(milliseconds_to_main(limited, env), milliseconds_to_main(filtered, env)) for _ in range(RUNS)]
    # Runs that other programs disturb are in the upper part.
    with_limit, alone = (statistics.quantiles(times, n=10)[0] for times in zip(*pairs))
    added = with_limit - alone
    print(f"driver's limit: {added:.2f} ms added at the 10th percentile of {RUNS} pairs ({with_limit:.2f} ms to main(), {alone:.2f} ms with the filter alone)")
    return added


def main():
    if os.geteuid() != 0:
        print("driver's limit: skipped, it needs root")
        return 0
    with tempfile.TemporaryDirectory(prefix="cantle-bench-") as home:
        env, machine = {"PATH": os.environ["PATH"], "HOME": home}, Machine("1xA100-40GB", driver=DRIVER)
        try:
            added = limits(machine, home, env)
        finally:
            machine.stop()
    good = added <= ADDED_MS_MAX
    print(f"promised: at most {ADDED_MS_MAX} ms: {'kept' if good else 'BROKEN'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
