"""What a slice adds to calls of the driver and to the start of a program. Both ways take turns; each figure is the least, or the median, of its turns."""

import shutil
import statistics
import subprocess
import time

import access
from bench import Skip

SOURCES = access.ROOT / "tests/bench"
TURNS, ROUNDS, STARTS = 3, 2, 20
# What is promised (SPECIFICATION.md), and the noise: calls that wait for the card take tens of microseconds, and differ by a tenth from run to run.
CALL_NS_MAX = {"launch": 4, "pair_async_128kib": 250, "pair_async_1mib": 300, "pair_async_16mib": 500}
OTHERS_NS_MAX, START_MS_MAX = 250, 10
SLOW_NS, NOISE, NOISE_OF_SLOW = 10_000, 0.02, 0.1


def compiled(bench, program, *libraries):
    if not shutil.which("gcc"):
        raise Skip("gcc is not installed")
    subprocess.run(["gcc", "-O2", "-o", f"{bench.home}/{program}", SOURCES / f"{program}.c", *libraries], check=True)
    return f"{bench.home}/{program}"


def in_half(bench):
    """Starts a command in half of the card."""
    return lambda *words: bench.start("run", "-q", "--gpu", "0.5", "--", *words)


def figures(child):
    out, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors[-2000:]
    return {name: float(value) for name, value in map(str.split, out.splitlines())}


def calls_of_the_driver(bench):
    """Nanoseconds of a launch, a question for free memory, a synchronization, and pairs of allocation and release: from pools with 1 KiB to 16 MiB, and
    with up to 10,000 others alive."""
    command = [compiled(bench, "calls", access.path_of_libcuda()), str(ROUNDS)]
    least = {"alone": {}, "slice": {}}
    for _ in range(TURNS):
        for way, start in (("alone", bench.alone), ("slice", in_half(bench))):
            for name, value in figures(start(*command)).items():
                least[way][name] = min(value, least[way].get(name, value))
    facts = {name: {"alone_ns": alone, "added_ns": round(least["slice"][name] - alone, 1)} for name, alone in least["alone"].items()}
    noise = {name: alone * (NOISE_OF_SLOW if alone > SLOW_NS else NOISE) for name, alone in least["alone"].items()}
    limit = {name: CALL_NS_MAX.get(name, OTHERS_NS_MAX) + noise[name] for name in noise}
    over = [name for name, one in facts.items() if one["added_ns"] > limit[name]]
    assert bench.nvml.simulated or not over, (over, facts)
    return {**facts, "judged": not bench.nvml.simulated}


def start_of_a_program(bench):
    """Milliseconds from the command to main(), for a program in a slice and for one alone. The floor is a program that opens NVML, which `cantle run`
    has to do, too."""
    program, took = compiled(bench, "at_main", "-ldl"), {"alone": [], "floor": [], "slice": []}
    ways = {
        "alone": bench.alone,
        "floor": lambda program: bench.alone(program, "libnvidia-ml.so.1"),
        "slice": in_half(bench),
    }
    for _ in range(STARTS):
        for way, start in ways.items():
            began = time.monotonic_ns()
            took[way].append((int(start(program).communicate(timeout=60)[0]) - began) / 1e6)
    facts = {f"{way}_ms": {"median": round(statistics.median(each), 2), "max": round(max(each), 2)} for way, each in took.items()}
    added_ms = facts["slice_ms"]["median"] - facts["floor_ms"]["median"]
    assert bench.nvml.simulated or added_ms < START_MS_MAX, facts
    return {**facts, "judged": not bench.nvml.simulated}
