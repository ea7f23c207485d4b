"""Quotas in service: what is lent is used, taken back when its owner comes, and finished later."""

import signal

from conftest import hold_until, own_port, wait_until

GIB = 1 << 30


def hold(gib, release):
    return hold_until(release, "--at-most", gib * GIB)


def holders(cantle):
    """The number of processes that hold 1 GiB and 2 GiB, by the driver's count: the projects take different amounts."""
    held = [process["used_bytes"] for gpu in cantle.truth() for process in gpu["processes"]]
    return [sum(gib * GIB <= used < (gib + 1) * GIB for used in held) for gib in (1, 2)]


def states(cantle, tasks):
    return [cantle.task(task)["state"] for task in tasks]


def wait_reason(cantle, task, text):
    wait_until(lambda: text in (cantle.task(task)["reason"] or ""), 60, lambda: cantle.task(task))


def kinds(cantle, task):
    return [event["kind"] for event in cantle.json("events", "--task", task)]


def project(cantle, name):
    (found,) = [project for project in cantle.json("projects") if project["name"] == name]
    return found


def test_lent_gpus_come_back_when_their_owner_needs_them(cantle, tmp_path):
    # Past use only counts for what is left over; here everything is granted.
    cantle.up("--queue", "q=task", "--usage-half-life", "1h")
    half = ("--gpu", "0.5", "--project")
    vision = [cantle.submit("q", *hold(1, tmp_path / "vision"), flags=(*half, "vision")) for _ in range(6)]
    for task in vision:
        cantle.wait_state(task, "in_progress")
    wait_until(lambda: holders(cantle) == [6, 0], 60, lambda: holders(cantle))
    speech = [cantle.submit("q", *hold(2, tmp_path / "speech"), flags=(*half, "speech")) for _ in range(3)]

    # Without quotas no task has to stop.
    wait_reason(cantle, speech[0], "nothing free")
    assert states(cantle, vision) == ["in_progress"] * 6
    assert not any("reclaim" in kinds(cantle, task) for task in vision)

    for name in ("vision", "speech"):
        cantle.cli("quota", "set", name, "--gpu", "1.5")
    for task in speech:
        cantle.wait_state(task, "in_progress")
    wait_until(lambda: holders(cantle) == [3, 3], 60, lambda: holders(cantle))
    wait_until(lambda: sorted(states(cantle, vision)) == ["in_progress"] * 3 + ["queued"] * 3, 60, "three back in the queue")
    back = [task for task in vision if cantle.task(task)["state"] == "queued"]
    for task in back:
        story = cantle.json("events", "--task", task)
        (reclaim,) = [event for event in story if event["kind"] == "reclaim"]
        assert "reclaimed by project speech for task" in reclaim["message"]
        assert [event["kind"] for event in story].count("requeue") == 1
    assert all("reclaimed by project speech" in cantle.cli("why", task).stdout for task in back)
    # The first of them says what keeps it; the others, that they are behind it.
    uses_up = "needs 0.5 GPU, nothing free (3 of 3 in use); project vision holds 1.5 GPUs and its share is 1.5 GPUs (quota 1.5)"
    firsts = lambda: [why for why in (cantle.cli("why", task).stdout for task in back) if uses_up in why]
    wait_until(firsts, 60, lambda: [cantle.cli("why", task).stdout for task in back])
    assert any("others are stopped for it once project vision holds less" in why for why in firsts()), firsts()
    # Shares are those of the last plan.
    shares = lambda: [project(cantle, "vision")[f"{what}_milli"] for what in ("deserved", "fair_share", "allocated")]  # noqa: E731
    wait_until(lambda: shares() == [1500] * 3, 60, shares)
    share = project(cantle, "vision")
    assert (share["running"], share["waiting"]) == (3, 3)

    # The owner's tasks are done: the stopped ones run again, and all complete.
    (tmp_path / "speech").touch()
    for task in speech:
        cantle.wait_state(task, "completed")
    for task in back:
        cantle.wait_state(task, "in_progress")
    wait_until(lambda: holders(cantle) == [6, 0], 60, lambda: holders(cantle))
    wait_until(lambda: project(cantle, "vision")["over_quota_milli"] == 1500, 60, lambda: project(cantle, "vision"))
    wait_until(lambda: project(cantle, "vision")["usage_ppm"] > 0, 60, lambda: project(cantle, "vision"))
    (tmp_path / "vision").touch()
    for task in vision:
        cantle.wait_state(task, "completed")
    wait_until(lambda: cantle.used() == [0, 0, 0], 60, lambda: cantle.used())
    runs = [kinds(cantle, task).count("place") for task in vision]
    assert sorted(runs) == [1, 1, 1, 2, 2, 2], "who was not stopped ran once"


def test_a_limit_and_protection_hold(cantle, tmp_path):
    """A limit is never passed, what can't be stopped must fit the quota, and a minimum run time is kept."""
    cantle.up("--queue", "q=task")
    cantle.cli("quota", "set", "a", "--gpu", "1", "--limit", "1.5", "--min-run", "3600")
    cantle.cli("quota", "set", "b", "--gpu", "2.5")
    for_ever = ["sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.2; done"]
    flags = ("--gpu", "0.5", "--project", "a/sub")
    runs = [cantle.submit("q", *for_ever, flags=flags) for _ in range(3)]
    for task in runs:
        cantle.wait_state(task, "in_progress")
    over = cantle.submit("q", *for_ever, flags=flags)
    wait_reason(cantle, over, "project a holds 1.5 GPUs and its limit is 1.5 GPUs")
    assert "would start with: tasks of project a that hold 0.5 GPUs ending, or a higher limit" in cantle.cli("why", over).stdout

    # b is owed 2.5, but a's tasks have not run for their minimum: b gets what is free, and waits for the rest.
    owed = [cantle.submit("q", *for_ever, flags=("--gpu", "0.5", "--project", "b")) for _ in range(4)]
    for task in owed[:3]:
        cantle.wait_state(task, "in_progress")
    wait_reason(cantle, owed[3], "nothing free")
    assert states(cantle, runs) == ["in_progress"] * 3

    # Without the protection one of them has to go, within seconds and with no other event.
    cantle.cli("quota", "set", "a", "--min-run", "0")
    cantle.wait_state(owed[3], "in_progress")
    wait_until(lambda: sorted(states(cantle, runs)) == ["in_progress"] * 2 + ["queued"], 60, "one of a is back")
    whole = cantle.submit("q", "true", flags=("--gpus", "3", "--project", "b", "--non-preemptible"))
    wait_reason(cantle, whole, "cannot be stopped for others, so it must fit the quota of project b")
    (tmp_path / "end").touch()
    for task in (*runs, over, *owed):
        cantle.wait_state(task, "completed")


def test_preemption_by_priority_within_a_project(cantle, tmp_path):
    cantle.up("--queue", "q=task")
    cantle.cli("quota", "set", "a", "--gpu", "3")
    low = [cantle.submit("q", "sleep", "600", flags=("--gpus", "1", "--project", "a")) for _ in range(3)]
    for task in low:
        cantle.wait_state(task, "in_progress")
    high = cantle.submit("q", "true", flags=("--gpus", "1", "--project", "a", "--priority", "5", "--name", "urgent"))
    cantle.wait_state(high, "completed")
    story = [event for task in low for event in cantle.json("events", "--task", task) if event["kind"] == "preempt"]
    assert len(story) == 1 and "by task urgent" in story[0]["message"]
    for task in low:
        cantle.wait_state(task, "in_progress")


def test_a_task_moves_for_one_that_fits_nowhere_else(cantle):
    """Two halves on two GPUs leave no whole one; with --consolidate, and only then, one of them moves to the other."""

    def scattered(*flags):
        cantle.up("--gpus", "0-1", "--queue", "q=task", *flags)
        cantle.cli("quota", "set", "a", "--gpu", "2")
        halves = [cantle.submit("q", "sleep", "600", flags=("--gpu", "0.5", "--project", "a")) for _ in range(3)]
        for task in halves:
            cantle.wait_state(task, "in_progress")
        cantle.cli("stop", halves[0])
        cantle.wait_state(halves[0], "stopped")
        return halves[1:], cantle.submit("q", "sleep", "600", flags=("--gpus", "1", "--project", "a"))

    halves, whole = scattered()
    wait_reason(cantle, whole, "needs 1 GPU, free 0.5 of GPU 0, 0.5 of GPU 1")
    assert "would start with: a running task that ends and leaves 1 GPU free on one node" in cantle.cli("why", whole).stdout
    assert states(cantle, halves) == ["in_progress"] * 2
    cantle.cli("stop", whole, *halves)
    for task in (whole, *halves):
        cantle.wait_state(task, "stopped")
    cantle.end()

    halves, whole = scattered("--consolidate")
    for task in (whole, *halves):
        cantle.wait_state(task, "in_progress")
    wait_until(lambda: sorted(kinds(cantle, task).count("place") for task in halves) == [1, 2], 60, "one of them moved")
    (moved,) = [event for task in halves for event in cantle.json("events", "--task", task) if event["kind"] == "move"]
    assert "moves to another place" in moved["message"]


def test_killed_in_the_middle_of_taking_back(cantle, tmp_path):
    """`kill -9` while a task is being stopped for another: it stops, is queued once, and both run to their end once."""
    port = own_port()
    up = cantle.up("--queue", "q=task", port=port)
    runs = tmp_path / "runs"
    # It ignores SIGTERM, so that there is a middle.
    stubborn = ["sh", "-c", f"trap '' TERM; echo run >> {runs}; until [ -e {tmp_path}/end ]; do sleep 0.2; done"]
    victim = cantle.submit("q", *stubborn, flags=("--gpus", "3", "--project", "rich"))
    cantle.wait_state(victim, "in_progress")
    wait_until(runs.exists, 60, "the task")
    cantle.cli("quota", "set", "rich", "--gpu", "0")
    cantle.cli("quota", "set", "poor", "--gpu", "3")
    owner = cantle.submit("q", "sh", "-c", f"echo owner >> {runs}", flags=("--gpus", "1", "--project", "poor"))
    wait_until(lambda: "stopping: reclaimed" in cantle.log(), 60, lambda: cantle.log())
    up.send_signal(signal.SIGKILL)
    up.wait()
    cantle.up("--queue", "q=task", port=port)
    cantle.wait_state(owner, "completed")
    cantle.wait_state(victim, "in_progress")
    (tmp_path / "end").touch()
    cantle.wait_state(victim, "completed")
    assert runs.read_text().split() == ["run", "owner", "run"]
    assert [kinds(cantle, victim).count(kind) for kind in ("reclaim", "requeue", "place")] == [1, 1, 2]


def test_quotas_count_over_all_nodes(make_cantle, tmp_path):
    """Two agents of one server: a limit holds for both together, and one task's place is taken back once."""
    hub, far = make_cantle("1xA100-40GB"), make_cantle("1xA100-40GB")
    hub.up("--queue", "q=task", "--worker-name", "near")
    (keys,) = hub.json("credentials")
    far.env["CANTLE_SERVER"] = keys["url"]
    far.env["CLEARML_API_ACCESS_KEY"], far.env["CLEARML_API_SECRET_KEY"] = keys["access_key"], keys["secret_key"]
    far.start("daemon", "--dynamic-gpus", "--queue", "q=task", "--worker-name", "far")
    wait_until(lambda: len(hub.json("nodes")) == 2, 60, "both nodes")
    for_ever = ["sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.2; done"]

    def submit(project, count):
        return [hub.submit("q", *for_ever, flags=("--gpu", "0.5", "--project", project)) for _ in range(count)]

    hub.cli("quota", "set", "capped", "--limit", "1")
    capped = submit("capped", 4)
    wait_until(lambda: sorted(states(hub, capped)) == ["in_progress"] * 2 + ["queued"] * 2, 60, "two of four")
    waits = next(task for task in capped if hub.task(task)["state"] == "queued")
    wait_reason(hub, waits, "project capped holds 1 GPU and its limit is 1 GPU")
    for task in capped:
        hub.cli("stop", task)
    for task in capped:
        hub.wait_state(task, "stopped", "created")

    hub.cli("quota", "set", "vision", "--gpu", "1")
    hub.cli("quota", "set", "speech", "--gpu", "1")
    vision = submit("vision", 4)
    for task in vision:
        hub.wait_state(task, "in_progress")
    assert {hub.task(task)["node"] for task in vision} == {"near", "far"}
    speech = submit("speech", 2)
    for task in speech:
        hub.wait_state(task, "in_progress")
    wait_until(lambda: sorted(states(hub, vision)) == ["in_progress"] * 2 + ["queued"] * 2, 60, lambda: states(hub, vision))
    assert sum(kinds(hub, task).count("reclaim") for task in vision) == 2
    (tmp_path / "end").touch()
    for task in (*vision, *speech):
        hub.wait_state(task, "completed")
