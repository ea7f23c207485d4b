"""The example of the documentation, as a user would run it, with the simulated driver as the outside witness."""

from conftest import FILL, FOUR_QUEUES, ROOT, hold_until, wait_until

GIB = 1 << 30
MIB = 1 << 20


def hold(seconds):
    return [*FILL, "--hold", str(seconds)]


def all_used(gpus):
    pieces = [piece for gpu in gpus for piece in gpu["slices"]]
    return all(piece["memory_used_bytes"] == piece["memory_limit_bytes"] for piece in pieces)


def wait_reason(cantle, task, reason):
    """Before the others run it waits for another reason."""
    wait_until(lambda: (cantle.task(task)["reason"] or "").startswith(reason), 60, lambda: cantle.task(task))
    assert cantle.task(task)["state"] == "queued"


def test_four_queues_on_three_gpus(cantle, tmp_path):
    cantle.up("--queue", *FOUR_QUEUES, "--gpus", "0-2")
    dual = cantle.submit("dual_gpus", *hold_until(tmp_path / "end"))
    quarter = cantle.submit("quarter_gpu", *hold(600))
    half = cantle.submit("half_gpu", *hold(600))
    single = cantle.submit("single_gpu", *hold(1))

    for task in (dual, quarter, half):
        cantle.wait_state(task, "in_progress")
    uuids = [gpu["uuid"] for gpu in sorted(cantle.json("gpus"), key=lambda gpu: gpu["index"])]
    assert cantle.task(dual)["gpus"] == uuids[:2]
    assert cantle.task(quarter)["gpus"] == cantle.task(half)["gpus"] == [uuids[2]]
    assert sum(cantle.task(task)["milli"] for task in (dual, quarter, half)) == 2750

    # The whole-GPU task waits, and says why in the words of the documentation.
    wait_reason(cantle, single, "needs 1 GPU, free 0.25 of GPU 2")
    why = cantle.cli("why", single).stdout
    assert "needs 1 GPU, free 0.25 of GPU 2" in why and "2.75 of 3 in use" in why

    # Each task got all of its slice and was refused the next 2 MiB; the driver's own count agrees byte for byte.
    for task, limits in ((dual, [40 * GIB] * 2), (quarter, [10 * GIB]), (half, [20 * GIB])):
        wait_until(lambda t=task, n=len(limits): len(cantle.filled(t)) == n, 60, lambda t=task: cantle.output(t))
        for record, limit in zip(cantle.filled(task), limits, strict=True):
            assert record["refused_code"] == 2 and record["refused_bytes"] == 2 * MIB
            assert record["total_bytes"] == limit
            assert record["free_bytes"] == 0
            assert 0 < limit - record["allocated_bytes"] < GIB, "what is missing is the context"
    assert cantle.used() == [40 * GIB, 40 * GIB, 30 * GIB]
    # cantle's own view follows within one report.
    wait_until(lambda: all_used(cantle.json("gpus")), 60, lambda: cantle.json("gpus"))

    # When the two GPUs come free the waiting task starts on the first of them and ends well.
    (tmp_path / "end").touch()
    cantle.wait_state(dual, "completed")
    assert cantle.wait_state(single, "in_progress", "completed")["gpus"] == [uuids[0]]
    assert cantle.wait_state(single, "completed")["exit_code"] == 0
    wait_until(lambda: cantle.used() == [0, 0, 30 * GIB], 60, lambda: cantle.used())


def test_without_cantle_nothing_refuses(cantle):
    """Negative control: the same program alone takes more than any of the slices above."""
    done = cantle.program(*FILL, "--at-most", 21 * GIB, check=True)
    records = done.stdout.splitlines()
    assert len(records) == 3
    for record in records:
        assert f'"allocated_bytes": {21 * GIB}' in record and '"refused_code": 0' in record


def test_two_gpus_four_halves(cantle):
    """`--gpus 0, 1`, as ClearML's pages print it: four tasks run at once, a fifth waits."""
    cantle.up("--gpus", "0,", "1", "--queue", "half_gpu=0.5")
    tasks = [cantle.submit("half_gpu", *hold(600)) for _ in range(5)]
    for task in tasks[:4]:
        cantle.wait_state(task, "in_progress")
    wait_reason(cantle, tasks[4], "needs 0.5 GPU, nothing free")
    wait_until(lambda: cantle.used() == [40 * GIB, 40 * GIB, 0], 60, lambda: cantle.used())
    cantle.cli("stop", tasks[1])
    cantle.wait_state(tasks[1], "stopped")
    cantle.wait_state(tasks[4], "in_progress")


def as_documented(done):
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2.75 of 3" in done.stdout and "the same program took 21 GiB of one GPU and nobody refused" in done.stdout
    return done.stdout.splitlines()


def test_demo_program_agrees(cantle):
    """`make demo` is a program of its own; it must pass too. Here as the owner of three cards runs it."""
    done = cantle.program(ROOT / "tests/demo.sh", env=cantle.env | {"GPUS": "real"}, timeout=600)
    assert as_documented(done)[0] == f"$ cantle up --gpus 0-2 --queue {' '.join(FOUR_QUEUES)}"
    assert cantle.used() == [0, 0, 0], "its tasks have ended"
