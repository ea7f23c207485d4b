"""Compute shares by weight, compared with the driver's own division of time in the same run. The measure is the number of kernels that ended, in
parts of what as many processes end alone: several processes lose a tenth of their time to changes of context, with or without a slice. All of
one check run the same kernel. On a simulated card the figures are shown and not judged: tests/compute judges there, by the driver's count."""

import os
import sys
import time

from bench import HERE, Skip

SECONDS, ERROR_MAX, SYNC_ERROR_MAX, AGGREGATE_MIN, TRIES = 2.0, 0.03, 0.12, 0.92, 3
PROGRAM = [sys.executable, str(HERE / "kernels.py")]


def race(bench, compute, tenants, way, us, loops=0):
    """The number of kernels that each tenant (a part of the GPU, or None without a slice, and its processes) ends in the same time."""
    started = []
    for part, processes in tenants:
        words = [*PROGRAM, way, str(us), str(loops), str(processes)]
        run = ["run", "--quiet", "--gpu", str(part), "--compute", compute, "--", *words]
        started.append(bench.alone(*words) if part is None else bench.start(*run))
        # One after the other: the first alone finds out how long its chain has to be.
        loops = bench.record(started[-1])["loops"]
    begin, seconds = time.monotonic() + 0.5, 0.5 if bench.nvml.simulated else SECONDS
    for child in started:
        child.stdin.write(f"{begin} {seconds}\n")
        child.stdin.flush()
    said = [bench.record(child) for child in started]
    bench.end_children()
    digests = {digest for one in said for digest in one["digests"]}
    return [one["done"] for one in said], digests, loops


def experiment(bench, tenants, way, us):
    [solo], right, loops = race(bench, "even", [(None, 1)], way, us)
    solos = {count: solo if count == 1 else race(bench, "even", [(None, count)], way, us, loops)[0][0] for _, count in tenants}
    facts = {"kernel_us": us, "way": way, "asked": [round(part, 3) for part, _ in tenants], "processes": [count for _, count in tenants]}
    for compute in ("fair", "even"):
        done, digests, _ = race(bench, compute, tenants, way, us, loops)
        parts = [each / max(solos[count], 1) for each, (_, count) in zip(done, tenants, strict=True)]
        had = [each / max(sum(parts), 1e-9) for each in parts]
        error = max(abs(share - part) for share, (part, _) in zip(had, tenants, strict=True))
        facts[compute] = {"had": [round(share, 3) for share in had], "error": round(error, 3), "of_solo": round(sum(parts), 3)}
        # No kernel is cut or changed.
        assert digests == right, facts
    return facts


def holds(facts):
    """A loop that synchronizes leaves gaps in its turns, and the GPU idle meanwhile."""
    sync = facts["way"] == "sync"
    return facts["fair"]["error"] <= (SYNC_ERROR_MAX if sync else ERROR_MAX) and (sync or facts["fair"]["of_solo"] >= AGGREGATE_MIN)


def shares(name, weights, processes=None, way="async", us=200):
    def check(bench):
        if os.geteuid() != 0:
            raise Skip("only root's tasks have a gate; run this as root")
        tenants = [(weight / sum(weights), count) for weight, count in zip(weights, processes or [1] * len(weights), strict=True)]
        tries = [experiment(bench, tenants, way, us)]
        # If all processors are busy, threads wake up late.
        while not (bench.nvml.simulated or holds(tries[-1])) and len(tries) < TRIES:
            tries.append(experiment(bench, tenants, way, us))
        assert bench.nvml.simulated or holds(tries[-1]), tries
        return {**tries[-1], "tries": len(tries), "judged": not bench.nvml.simulated}

    check.__name__ = f"shares_{name}"
    return check


SHARES = [
    shares("1_9", [1, 9]),
    shares("1_1_with_one_process_and_four", [1, 1], [1, 4]),
    shares("1_3_of_graphs", [1, 3], way="graph"),
    shares("1_3_with_a_synchronization_per_launch", [1, 3], way="sync"),
    shares("1_1", [1, 1]),
    shares("1_3", [1, 3]),
    shares("1_3_of_small_kernels", [1, 3], us=20),
    shares("1_1_2_4", [1, 1, 2, 4]),
]
