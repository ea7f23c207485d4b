"""Three ways to run the same program: with the driver alone, behind a filter that does nothing (the floor), and with cantle."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/bench"
# The library that programs are linked with; they find the machine's own.
STUB = ROOT / "dist/lib/cantle/sim/libcuda.so.1"
sys.path.insert(0, str(ROOT / "tests"))

from machine import CANTLE, Machine  # noqa: E402


def gcc(*words):
    subprocess.run(["gcc", "-O2", "-Wall", *map(str, words)], check=True)


def figures(command, env):
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def measure(home, program, turns):
    """The ways take turns on one machine; each figure is the least of its turns."""
    binary, floor = f"{home}/{program}", f"{home}/floor.so"
    gcc("-o", binary, HERE / f"{program}.c", STUB)
    gcc("-shared", "-fPIC", "-o", floor, HERE / "floor.c")
    env = {"PATH": os.environ["PATH"], "HOME": home}
    ways = {
        "alone": [binary],
        "floor": ["env", f"LD_PRELOAD={floor}", binary],
        "cantle": [CANTLE, "-q", "run", "--gpu", "0.5", "--", binary],
    }
    least = {way: {} for way in ways}
    machine = Machine("1xA100-40GB")
    try:
        for _ in range(turns):
            for way, words in ways.items():
                for name, value in figures(machine.command(*words), env).items():
                    least[way][name] = min(value, least[way].get(name, value))
    finally:
        machine.stop()
    return least


class Times(float):
    """A promise in proportion to what the driver takes alone."""


def compare(least, promised):
    """Prints what cantle adds to each figure and what was promised; returns the names of broken promises."""
    broken = []
    for name, alone in least["alone"].items():
        cantle, limit = least["cantle"][name], promised[name]
        added = cantle - alone
        is_kept = cantle <= alone * limit if isinstance(limit, Times) else added <= limit
        shown = f"x{float(limit)}" if isinstance(limit, Times) else f"+{limit}"
        print(f"{name:<28}{alone:>10.1f}{least['floor'][name]:>10.1f}{cantle:>10.1f}{added:>10.1f}{shown:>10}")
        broken += [] if is_kept else [name]
    return broken
