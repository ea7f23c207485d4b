"""A limit of GPU memory above the request: free memory is lent, and comes back when another task needs it. The driver's record is the witness."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from conftest import hold_until, wait_until
from test_make_room import is_out
from test_quotas import kinds, wait_reason
from test_suspend import GIB, MIB, TASK, start, used  # noqa: F401  (start is a fixture)

LENT = ("--gpu-memory-request", "8Gi", "--gpu-memory-limit", "24Gi")
# Of the 8 GiB that a neighbor of 32 GiB leaves: what is suspended here takes the machine's own memory.
NEIGHBOR = ("--gpu-memory", "32Gi")
SMALL = ("--gpu-memory-request", "1Gi", "--gpu-memory-limit", "5Gi")
CLAIM = ("--gpu-memory", "5Gi")
ONE = pytest.mark.machine("1xA100-40GB", None)


def total(task):
    """The size of the slice as the program sees it, in GiB."""
    return task.ask("info()")[1] / 1024


def note(task):
    return task.ask("json.load(open('/run/cantle/slice/memory.json'))")


def limits(cantle):
    return [row["memory_limit_bytes"] for row in cantle.json("ps") if row["state"] != "suspended"]


def until_total(task, size):
    wait_until(lambda: total(task) == size, 20, lambda: total(task))


@ONE
def test_what_is_free_is_lent_up_to_the_limit(start):
    task = start(*LENT)
    assert "(up to 24 GiB where free)" in task.log.read_text()
    until_total(task, 24)
    assert task.ask(f"alloc({20 * GIB})")[0] == 0, "more than its request"
    assert task.ask(f"alloc({10 * GIB})")[0] == 2, "no more than its limit"
    assert note(task) == {"request_bytes": 8 * GIB, "limit_bytes": 24 * GIB, "current_bytes": 24 * GIB}


@ONE
def test_without_a_limit_nothing_is_lent(start):
    task = start("--gpu-memory-request", "8Gi")
    time.sleep(3)
    assert total(task) == 8
    assert task.ask("os.path.exists('/run/cantle/slice/memory.json')") is False


@ONE
def test_memory_that_is_not_in_use_comes_back_at_once(start):
    borrower = start(*LENT)
    until_total(borrower, 24)
    began = time.monotonic()
    other = start("--gpu-memory", "28Gi")
    assert time.monotonic() - began < 5, "nobody was asked"
    assert other.ask(f"alloc({26 * GIB})")[0] == 0
    assert total(borrower) == 12
    assert sum(limits(start.cantle)) <= 40 * GIB
    assert borrower.ask(f"alloc({7 * GIB})")[0] == 0, "its request is its own"
    assert other.end() == 0
    until_total(borrower, 24)
    assert "another task needs GPU memory" not in borrower.log.read_text()


@ONE
def test_two_borrowers_share_what_is_free(start):
    first = start("--gpu-memory", "8Gi", "--gpu-memory-limit", "40Gi")
    until_total(first, 40)
    second = start("--gpu-memory", "8Gi", "--gpu-memory-limit", "40Gi")
    until_total(second, 20)
    assert total(first) == 20
    assert second.end() == 0
    until_total(first, 40)


@ONE
def test_a_task_that_keeps_it_is_suspended_and_comes_back(start):
    cantle, _, borrower = start.cantle, start(*NEIGHBOR), start(*SMALL)
    until_total(borrower, 5)
    assert borrower.ask(f"alloc({4 * GIB})")[0] == 0
    held = used(cantle)
    other = start(*CLAIM, "--timeout", "60")
    said = borrower.log.read_text()
    assert "another task needs GPU memory: this one may keep" in said and "it is suspended until there is room" in said, said
    assert "waiting: waits for" in other.log.read_text() and "uses beyond its request" in other.log.read_text()
    assert other.ask(f"alloc({4 * GIB})")[0] == 0, "all that it was given"
    states = {row["task"]: row["state"] for row in cantle.json("ps")}
    assert states[borrower.id] == "suspended" and states[other.id] == "running"
    assert other.end() == 0
    wait_until(lambda: used(cantle) == held, 30, lambda: used(cantle))
    until_total(borrower, 5)
    assert borrower.ask("info()")[0] > 0 and borrower.end() == 0


@ONE
def test_a_task_that_gives_it_back_runs_on(start):
    """As vLLM does with its sleep mode: it reads what it may keep, and frees the rest."""
    cantle, borrower = start.cantle, start(*LENT)
    until_total(borrower, 24)
    status, address = borrower.ask(f"alloc({16 * GIB})")
    assert status == 0
    other = cantle.start("run", "--gpu-memory", "30Gi", "--timeout", "60", "--", "sleep", "5", log="other.log")
    wait_until(lambda: "keep_bytes" in note(borrower), 20, lambda: note(borrower))
    asked = note(borrower)
    assert asked["keep_bytes"] == 10 * GIB and asked["keep_until_ms"] / 1000 - time.time() < 11
    assert borrower.ask(f"alloc({GIB})")[0] == 2, "no more is lent to it meanwhile"
    assert borrower.ask(f"cu.cuMemFree_v2(c_uint64({address}))") == 0
    assert other.wait(timeout=30) == 0, (cantle.home / "other.log").read_text()
    assert "suspended" not in borrower.log.read_text()
    wait_until(lambda: "keep_bytes" not in note(borrower), 20, lambda: note(borrower))
    until_total(borrower, 24)


@ONE
def test_a_task_that_cannot_be_suspended_ends(start):
    borrower = [start(*NEIGHBOR), start(*SMALL)][1]
    until_total(borrower, 5)
    assert borrower.ask(f"managed({GIB})") == 0 and borrower.ask(f"alloc({3 * GIB})")[0] == 0
    other = start(*CLAIM, "--timeout", "60")
    said = borrower.log.read_text()
    assert "the task is ended: it did not give GPU memory back, and it cannot be suspended" in said, said
    assert "managed memory" in said and said.count("the task is ended") == 1
    assert other.ask(f"alloc({4 * GIB})")[0] == 0


@ONE
def test_a_task_whose_cantle_run_was_killed_gives_it_back(start):
    borrower = [start(*NEIGHBOR), start(*SMALL)][1]
    until_total(borrower, 5)
    assert borrower.ask(f"alloc({4 * GIB})")[0] == 0
    borrower.child.kill()
    borrower.child.wait()
    other = start(*CLAIM, "--timeout", "60")
    assert other.ask(f"alloc({4 * GIB})")[0] == 0
    assert borrower.id not in [row["task"] for row in start.cantle.json("ps")]


@ONE
def test_who_does_not_ask_any_more_needs_nothing(start):
    cantle, borrower = start.cantle, start(*LENT)
    until_total(borrower, 24)
    assert borrower.ask(f"alloc({20 * GIB})")[0] == 0
    said = cantle.cli("run", "--gpu-memory", "30Gi", "--timeout", "3", "--", "true", code=6).stderr
    assert "uses beyond its request" in said, said
    wait_until(lambda: "keep_bytes" not in note(borrower), 20, lambda: note(borrower))
    time.sleep(2)
    assert "it is suspended" not in borrower.log.read_text()
    assert borrower.ask("info()")[1] == 24 << 10


def test_limits_that_mean_nothing(start):
    refused = {
        ("--gpu-memory", "8Gi", "--gpu-memory-limit", "8Gi"): "is not more than the request of 8 GiB",
        ("--gpus", "1", "--gpu-memory-limit", "8Gi"): "a whole GPU has all of its memory",
        ("--gpu-memory-limit", "8Gi"): "a whole GPU has all of its memory",
        ("--mig-profile", "1g.5gb", "--gpu-memory-limit", "8Gi"): "a MIG instance has the memory of its profile",
        ("--gpu", "0.5", "--isolation", "mig", "--gpu-memory-limit", "30Gi"): "a MIG instance has the memory of its profile",
        ("--gpu-memory", "8Gi", "--gpu-memory-limit", "9"): "has no unit",
    }
    for flags, why in refused.items():
        said = start.cantle.cli("run", *flags, "--", "true", code=2).stderr
        assert why in said and len(said.splitlines()) <= 3, said
    task = start(*LENT)
    said = start.cantle.cli("resize", task.id, "--gpu-memory", "9Gi", code=8).stderr
    assert "its size follows from what is free" in said, said


# Of a queue.


def crowded(make_cantle):
    """An agent with one GPU, on which a neighbor leaves 8 GiB."""
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "q=task")
    neighbor = cantle.submit("q", "sleep", "3600", flags=NEIGHBOR)
    cantle.wait_state(neighbor, "in_progress")
    return cantle


def holder(end, more=""):
    """A program that holds 4 GiB as soon as its slice has them."""
    return (
        sys.executable,
        "-c",
        f"""{TASK.split("for line")[0]}
while info()[1] < 5 << 10: time.sleep(0.2)
{more}
status = alloc({3500 * MIB})
assert status[0] == 0, status
print("holds", flush=True)
while not os.path.exists({str(end)!r}): time.sleep(0.1)
""",
    )


def test_an_agent_suspends_the_borrower_for_a_task_of_its_queue(make_cantle, tmp_path):
    cantle = crowded(make_cantle)
    end, second_end = tmp_path / "end", tmp_path / "second"
    first = cantle.submit("q", *holder(end), flags=SMALL)
    wait_until(lambda: "holds" in cantle.output(first), 60, lambda: cantle.output(first))
    second = cantle.submit("q", *hold_until(second_end, "--at-most", 3 * GIB), flags=CLAIM)
    wait_reason(cantle, second, "uses beyond its request")
    cantle.wait_state(second, "in_progress", seconds=90)
    wait_until(lambda: is_out(cantle, first), 30, lambda: cantle.task(first))
    assert "another task needs GPU memory: this one may keep 3 GiB" in cantle.output(first)
    assert "needs GPU memory that it uses beyond its request" in cantle.task(first)["reason"]
    second_end.touch()
    cantle.wait_state(second, "completed")
    wait_until(lambda: not is_out(cantle, first), 60, lambda: cantle.task(first))
    end.touch()
    cantle.wait_state(first, "completed")
    assert kinds(cantle, first).count("place") == 1, "no work was lost"


def test_what_cannot_be_suspended_is_queued_again(make_cantle, tmp_path):
    cantle = crowded(make_cantle)
    end, second_end = tmp_path / "end", tmp_path / "second"
    first = cantle.submit("q", *holder(end, f"assert managed({256 * MIB}) == 0"), flags=SMALL)
    wait_until(lambda: "holds" in cantle.output(first), 60, lambda: cantle.output(first))
    second = cantle.submit("q", *hold_until(second_end, "--at-most", 3 * GIB), flags=CLAIM)
    cantle.wait_state(second, "in_progress", seconds=90)
    second_end.touch()
    cantle.wait_state(second, "completed")
    wait_until(lambda: kinds(cantle, first).count("place") == 2, 60, lambda: kinds(cantle, first))
    assert "it is not suspended" in cantle.cli("logs", first, "--run", "1").stdout
    end.touch()
    cantle.wait_state(first, "completed")


def test_accounts_have_the_request_and_not_what_is_lent(make_cantle, tmp_path):
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "q=task")
    cantle.cli("quota", "set", "a", "--gpu", "0.5")
    end = tmp_path / "end"
    task = cantle.submit("q", *holder(end), flags=("--gpu-memory", "8Gi", "--gpu-memory-limit", "24Gi", "--project", "a"))
    wait_until(lambda: "holds" in cantle.output(task), 60, lambda: cantle.output(task))
    wait_until(lambda: limits(cantle) == [24 * GIB], 20, lambda: limits(cantle))
    (project,) = [one for one in cantle.json("projects") if one["name"] == "a"]
    assert project["allocated_milli"] == 200
    end.touch()
    cantle.wait_state(task, "completed")


@pytest.mark.full
@ONE
def test_a_storm_of_borrowers(start):
    """Tasks come and go and take what they get. The limits never exceed the GPU, and a request is always met."""
    cantle, neighbor, seed = start.cantle, start("--gpu-memory", "28Gi"), random.randrange(1 << 30)
    print("seed", seed)
    rng, tasks, over, started = random.Random(seed), [], [], 0
    until = time.monotonic() + 60
    while time.monotonic() < until:
        held = limits(cantle)
        if sum(held) > 40 * GIB or used(cantle)[0] > 40 * GIB:
            over.append((held, used(cantle)))
        if len(tasks) < 4 and rng.random() < 0.5:
            request = rng.randrange(1, 4)
            flags = ("--gpu-memory", f"{request}Gi", "--gpu-memory-limit", f"{request + rng.randrange(1, 9)}Gi", "--timeout", "60")
            try:
                tasks.append(start(*flags))
            except AssertionError:
                pytest.fail(f"no room for {request} GiB: {json.dumps(cantle.json('ps'))} {cantle.truth()}")
            started += 1
            assert tasks[-1].ask(f"alloc({request * GIB - 600 * MIB})")[0] == 0, "its request is its own"
        elif tasks and rng.random() < 0.3:
            task = tasks.pop(rng.randrange(len(tasks)))
            task.child.stdin.close()
            if rng.random() < 0.5:
                task.child.kill()
            try:
                task.child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                # It is suspended, and would end as soon as there is room.
                task.child.kill()
                task.child.wait()
        elif tasks:
            # Of a task that is suspended, the answer comes later.
            rng.choice(tasks).tell(f"alloc({GIB})")
    # A task that was suspended when its `cantle run` was killed would stay.
    for pid in (pid for row in cantle.json("ps") if row["state"] == "suspended" for pid in row["pids"]):
        os.kill(pid, signal.SIGKILL)
    assert not over, over
    assert started > 5 and neighbor.ask(f"alloc({27 * GIB})")[0] == 0
