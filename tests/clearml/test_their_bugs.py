"""Faults of ClearML's own scheduler of dynamic GPUs, and the behavior of cantle's agent in the same cases. Each was reproduced with
clearml-agent 3.0.3."""

import subprocess

import pytest
from conftest import CANTLE, is_one_error, wait_until
from ours import NODE, command, daemon, ended


def hold(server, name, then="true"):
    """A task that runs until the file `name` is there."""
    return command(server, name, "sh", "-c", f"while [ ! -e {server.home}/{name} ]; do sleep 0.1; done; {then}")


def release(server, name):
    (server.home / name).touch()


def enqueue(server, task, queue):
    server.api("tasks.enqueue", task=task, queue_name=queue)
    return task


def view(server, task):
    return server.api("cantle.get_tasks", id=[task])["tasks"][0]


def waits_for(server, task, reason):
    wait_until(lambda: reason in (view(server, task).get("reason") or ""), 60, f"{reason!r}")
    assert server.status(task) == "queued"


def runs(server, *tasks):
    wait_until(lambda: all(server.status(task) == "in_progress" for task in tasks), 60, "the start")


def test_a_range_never_lands_on_a_gpu_in_use(server):
    """Theirs: with half=0.5 opp=0.25-1 the second task gets the whole GPU while half of it is in use."""
    for queue in ("half", "opp"):
        server.queue(queue)
    argv = [CANTLE, "daemon", "--dynamic-gpus", "--gpus", "0", "--queue", "half=0.5", "opp=0.25-1"]
    done = subprocess.run(server.command(argv), env=server.env | NODE, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2 and "opp=0.25-1: a range is MIN-MAX in whole GPUs" in done.stderr
    daemon(server, "--queue", "half=0.5", "opp=1-3")
    half, opp = enqueue(server, hold(server, "half"), "half"), enqueue(server, hold(server, "opp"), "opp")
    runs(server, half, opp)
    wait_until(lambda: len(view(server, opp)["gpus"]) == 2, 60, "the two GPUs that are free")
    assert view(server, half)["gpus"][0] not in view(server, opp)["gpus"]
    release(server, "half")
    release(server, "opp")
    assert ended(server, half, opp) == ["completed"] * 2


def test_queues_in_turn_go_on_when_the_gpus_are_full(server):
    """Theirs: --order-fairness crashes forever once all GPUs are in use."""
    for queue in ("a", "b"):
        server.queue(queue)
    tasks = [enqueue(server, hold(server, f"{queue}{n}"), queue) for queue in "ab" for n in range(3)]
    child = daemon(server, "--queue", "a=1", "b=1", "--order-fairness")
    running = lambda: {name for name, task in zip(("a0", "a1", "a2", "b0", "b1", "b2"), tasks) if server.status(task) == "in_progress"}
    wait_until(lambda: len(running()) == 3, 60, "three on three GPUs")
    first = running()
    assert {"a0", "b0"} <= first, "one of each in turn"
    for name in first:
        release(server, name)
    wait_until(lambda: len(running()) == 3 and not running() & first, 60, "the other three")
    assert child.poll() is None
    for name in ("a0", "a1", "a2", "b0", "b1", "b2"):
        release(server, name)
    assert ended(server, *tasks) == ["completed"] * 6


def test_a_slice_ends_with_its_task_however_that_ends(server):
    """Theirs: the slice of a killed task stays taken for up to 600 s."""
    server.queue("single")
    daemon(server, "--queue", "single=1", gpus="0")
    # In its own pid namespace: no number that this test could send a signal to.
    killed = enqueue(server, command(server, "killed", "sh", "-c", "sleep 1; kill -KILL $$"), "single")
    after = enqueue(server, command(server, "after", "true"), "single")
    assert ended(server, killed, after, seconds=120) == ["failed", "completed"], "far from 600 s"


def test_a_task_sees_its_own_gpu_only_and_says_what_it_got(server):
    """Theirs: NVIDIA_VISIBLE_DEVICES=all in every task, and the fraction is not in any log."""
    server.queue("half")
    daemon(server, "--queue", "half=0.5")
    task = enqueue(server, command(server, "t", "sh", "-c", "echo devices=$NVIDIA_VISIBLE_DEVICES"), "half")
    assert ended(server, task) == ["completed"]
    wait_until(lambda: "devices=" in server.log_of(task), 60, "the log")
    assert "all" not in server.log_of(task)
    assert "0.5 of GPU 0 (NVIDIA A100-SXM4-40GB), 20 GiB limit" in server.text("daemon.log")
    messages = lambda: [event["message"] for event in server.api("cantle.get_events", task=task)["events"]]
    wait_until(lambda: any("0.5 of GPU 0" in message for message in messages()), 60, "the event")


def test_memory_is_what_the_driver_says(server):
    """Theirs: a table in the agent has the L4 with 48 GB."""
    server.queue("half")
    daemon(server, "--queue", "half=0.5", gpus="0", machine=server.another("1xL4-24GB"))
    task = enqueue(server, command(server, "t", "sh", "-c", "echo limit=$((GPU_MEMORY_LIMIT >> 20))"), "half")
    assert ended(server, task) == ["completed"]
    wait_until(lambda: "limit=" in server.log_of(task), 60, "the log")
    limit_mib = int(server.log_of(task).split("=")[1])
    assert 11 * 1024 <= limit_mib <= 12 * 1024


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--queue", "third=0.3333"], "in steps of 0.001"),
        (["--queue", "q=1.25"], "nearest are 1 and 2"),
        (["--queue", "q=0"], "zero GPUs"),
        (["--queue", "q=x"], "not a number of GPUs"),
        (["--queue", "half_gpu"], "needs NAME=SPEC"),
        (["--queue", "q=4"], "needs 4 GPUs, but this agent has 3"),
        (["--queue", "half=0.5", "q=4"], "needs 4 GPUs, but this agent has 3"),
        (["--queue", "q=3-1"], "MIN ≤ MAX"),
        (["--queue", "q=-2"], "q=-2"),
        (["--queue", "nosuch=1"], 'there is no queue "nosuch"'),
        (["--gpus", "0-3", "--queue", "q=1"], "there is no GPU 3"),
    ],
)
def test_a_queue_that_cannot_be_served_is_one_line_at_the_start(server, words, says):
    """Theirs: accepted, and then all queues behind it wait forever without a message; or a Python error."""
    for queue in ("q", "half", "half_gpu"):
        server.queue(queue)
    argv = [CANTLE, "daemon", "--dynamic-gpus", *(["--gpus", "0-2"] if "--gpus" not in words else []), *words]
    done = subprocess.run(server.command(argv), env=server.env | NODE, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2 and says in done.stderr and is_one_error(done.stderr), done.stderr


@pytest.mark.parametrize(
    ("words", "env", "named"),
    [(["--gpus", "0,", "1"], {}, "node1:dgpu0,1"), ([], {"NVIDIA_VISIBLE_DEVICES": "0,1"}, "node1:dgpu0,1")],
)
def test_the_documented_words_for_gpus_work(server, words, env, named):
    """Theirs: `--gpus 0, 1`, as every page of the documentation has it, is refused."""
    server.queue("q")
    child = server.start([CANTLE, "daemon", "--dynamic-gpus", *words, "--queue", "q=1"], "daemon.log", **NODE | env)
    worker = lambda: [worker["id"] for worker in server.api("workers.get_all", last_seen=60)["workers"]]
    wait_until(lambda: worker() or child.poll() is not None, 60, "the daemon")
    assert worker() == [named], server.text("daemon.log")


@pytest.mark.parametrize("backfill", [False, True])
def test_a_head_that_waits_blocks_the_others_unless_backfill_is_on(server, backfill):
    """Strict order is ClearML's; with --backfill smaller tasks use what the head can't, and the head starts no later."""
    for queue in ("large", "half", "single", "quarter"):
        server.queue(queue)
    flags = ["--backfill"] if backfill else []
    daemon(server, "--queue", "large=0.75", "half=0.5", "single=1", "quarter=0.25", *flags, gpus="0-1")
    large = enqueue(server, hold(server, "large"), "large")
    runs(server, large)
    half = enqueue(server, hold(server, "half"), "half")
    runs(server, half)
    # A quarter of GPU 0 and half of GPU 1 are free; GPU 1 is the one that is nearer to being free for the head.
    head = enqueue(server, hold(server, "head"), "single")
    waits_for(server, head, "needs 1 GPU")
    first, second = (enqueue(server, hold(server, name), "quarter") for name in ("first", "second"))
    if backfill:
        runs(server, first)
        assert view(server, first)["gpus"] == view(server, large)["gpus"]
        waits_for(server, second, f"what is free is kept for task {head}")
    else:
        waits_for(server, first, f"task {head}")
    release(server, "half")
    runs(server, head, first)
    assert server.status(second) == "queued"
    assert view(server, head)["gpus"] == view(server, half)["gpus"], "its place was kept"
    for name in ("large", "head", "first", "second"):
        release(server, name)
    assert ended(server, large, half, head, first, second) == ["completed"] * 5
