"""Two jobs over the same two GPUs, whose kernels wait for each other across the GPUs, as those of NCCL do. Each rank is a slice.

The kernels are a stand-in: `cantle_sim_spin_until_2` spins until that of the other rank runs."""

import os
import time

import pytest

RUNS = int(os.environ.get("CANTLE_TEST_GANGS", 20))
ITERATIONS = 100
# Of each run on average: far beyond what a busy machine explains. Two jobs that wait for each other never end.
LIMIT_S = 15


@pytest.mark.parametrize("compute", ["even", "fair"])
def test_two_jobs_over_two_gpus_end(pair, tmp_path, compute):
    runs, begin = RUNS if compute == "fair" else 2, tmp_path / "begin"
    # Ranks come in the order in which two halves fill the first GPU, then the second one.
    options = {"number": ITERATIONS, "compute": compute, "repeat": runs}
    ranks = [pair.tenant("0.5", "rank", 200, words=[job, begin], **options) for job in (1, 2, 1, 2)]
    assert [len(gpu["processes"]) for gpu in pair.machine.truth()] == [2, 2]
    begin.touch()
    since = time.monotonic()
    for rank in ranks:
        rank.process.wait(timeout=max(1, runs * LIMIT_S - (time.monotonic() - since)))
    took = [result["seconds"] for rank in ranks for result in rank.result()]
    assert len(took) == 4 * runs
    took.sort()
    print(f"{compute}: {runs} runs, {took[len(took) // 2]:.2f} s at the median, slowest {took[-1]:.2f} s")
