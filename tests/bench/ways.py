"""Three ways to run the same program: with the driver alone, behind a filter that does nothing (the floor), and with cantle."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/bench"
SIM = ROOT / "dist/lib/cantle/sim"
CANTLE = str(ROOT / "dist/bin/cantle")


def gcc(*words):
    subprocess.run(["gcc", "-O2", "-Wall", *map(str, words)], check=True)


def figures(command, env):
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def measure(home, program, turns):
    """The ways take turns; each figure is the least of its turns."""
    binary, floor = f"{home}/{program}", f"{home}/floor.so"
    gcc("-o", binary, HERE / f"{program}.c", SIM / "libcuda.so.1")
    gcc("-shared", "-fPIC", "-o", floor, HERE / "floor.c")
    env = {"PATH": os.environ["PATH"], "HOME": home, "CANTLE_STATE_DIR": f"{home}/state"}
    env |= {"CANTLE_SIM_DIR": f"{home}/sim", "CANTLE_SIM_GPUS": "1xA100-40GB"}
    ways = {
        "alone": ([binary], env | {"LD_LIBRARY_PATH": str(SIM)}),
        "floor": ([binary], env | {"LD_LIBRARY_PATH": str(SIM), "LD_PRELOAD": floor}),
        "cantle": ([CANTLE, "-q", "run", "--gpu", "0.5", "--", binary], env),
    }
    least = {way: {} for way in ways}
    for _ in range(turns):
        for way, (command, environment) in ways.items():
            for name, value in figures(command, environment).items():
                least[way][name] = min(value, least[way].get(name, value))
    return least


def compare(least, promised):
    """Prints what cantle adds to each figure beside what was promised; returns the names of broken promises."""
    broken = []
    for name, alone in least["alone"].items():
        cantle, limit = least["cantle"][name], promised[name]
        added = cantle - alone
        print(f"{name:<22}{alone:>10.1f}{least['floor'][name]:>10.1f}{cantle:>10.1f}{added:>10.1f}{f'+{limit}':>10}")
        broken += [name] if added > limit else []
    return broken
