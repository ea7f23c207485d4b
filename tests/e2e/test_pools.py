"""Pools of GPUs: a project's tasks stay on the GPUs that it may use, and take no more of a pool than their quota."""

import pytest

from conftest import wait_until

HOLD = ("sleep", "600")


@pytest.fixture
def hub(make_cantle):
    """A server alone."""
    found = make_cantle("1xA100-40GB")
    found.start("server", "--listen", "127.0.0.1:0", log="up.log")
    wait_until(lambda: "cantle server is up" in found.log(), 60, "the server")
    return found


@pytest.fixture
def node(hub, make_cantle):
    """Makes machines that serve the queue `q` of that server."""

    def make(name, gpus):
        machine = make_cantle(gpus)
        (keys,) = hub.json("credentials")
        machine.env["CANTLE_SERVER"] = keys["url"]
        machine.env["CLEARML_API_ACCESS_KEY"], machine.env["CLEARML_API_SECRET_KEY"] = keys["access_key"], keys["secret_key"]
        serve = ("daemon", "--dynamic-gpus", "--create-queue", "--queue", "q=task", "--worker-name", name)
        machine.start(*serve, log="daemon.log")
        wait_until(lambda: name in [node["node"] for node in hub.json("nodes") if node["alive"]], 60, name)
        return machine

    return make


def submit(hub, project, *command):
    return hub.submit("q", *(command or HOLD), flags=("--gpu", "1", "--project", project))


def model_of(hub, task):
    """The model of the GPU that the task holds. A node reports its slices after the start of a task."""
    hub.wait_state(task, "in_progress")

    def models():
        return [gpu["model"] for gpu in hub.json("gpus") for piece in gpu["slices"] if piece["task"] == task]

    wait_until(models, 60, lambda: hub.json("gpus"))
    return models()[0]


def why(hub, task, text):
    wait_until(lambda: text in hub.cli("why", task).stdout, 60, lambda: hub.cli("why", task).stdout)


def stays_queued(hub, task, seconds=5):
    """Agents plan at least every two seconds while a task waits."""
    with pytest.raises(pytest.fail.Exception):
        wait_until(lambda: hub.task(task)["state"] != "queued", seconds, "it waits")


@pytest.mark.full
def test_tasks_stay_on_the_gpus_of_their_pools(hub, node):
    node("big", "1xA100-40GB")
    node("small", "1xT4-16GB")
    wait_until(lambda: len(hub.json("gpus")) == 2, 60, lambda: hub.json("gpus"))
    said = hub.cli("pools", "set", "cheap", "--model", "*T4*").stderr
    assert "pool cheap: models *T4*; GPUs in it now: 1" in said and "warning" not in said
    hub.cli("quota", "set", "vision", "--gpus", "1", "--pools", "cheap")

    # A project below it has the same restriction. Three times: not by luck.
    for _ in range(3):
        task = submit(hub, "vision/night")
        assert "T4" in model_of(hub, task)
        hub.cli("stop", task)
        hub.wait_state(task, "stopped")
    first = submit(hub, "vision")
    assert "T4" in model_of(hub, first)
    second = submit(hub, "vision/night")
    why(hub, second, "project vision may use the pool cheap")
    stays_queued(hub, second)
    why(hub, second, "nothing free (1 of 1 in use)")

    # The same task of another project goes to the other GPU.
    other = submit(hub, "speech")
    assert "A100" in model_of(hub, other)
    hub.cli("stop", other)
    stays_queued(hub, second)

    def listed():
        (pool,) = hub.json("pools", "list")
        return pool["gpus"], pool["allocated_milli"], pool["projects"]

    wait_until(lambda: listed() == (1, 1000, ["vision"]), 60, listed)

    # Without the restriction it goes there, too.
    hub.cli("quota", "set", "vision", "--pools", "none")
    assert "A100" in model_of(hub, second)


def test_a_pool_that_no_agent_has_is_named(hub, node):
    node("big", "1xA100-40GB")
    said = hub.cli("pools", "set", "far", "--node", "far-*").stderr
    assert 'warning: "far-*" matches no node or model that has reported' in said
    hub.cli("quota", "set", "vision", "--gpu", "1", "--pools", "far")
    task = submit(hub, "vision", "true")
    why(hub, task, "project vision may use the pool far; no agent of queue q has a GPU of these")
    stays_queued(hub, task)
    # A machine of that name joins.
    node("far-1", "1xT4-16GB")
    hub.wait_state(task, "completed")


def test_bad_input(cantle):
    cantle.up("--queue", "q=task")

    def refused(*words, code):
        return cantle.cli(*words, code=code).stderr

    assert "there is no pool \"x\"; there is none at all" in refused("quota", "set", "a", "--pools", "x", code=3)
    assert "is no name of a pool" in refused("pools", "set", "a,b", "--model", "*", code=2)
    assert "pool a has an empty pattern" in refused("pools", "set", "a", "--node", "", code=2)
    assert "required arguments were not provided" in refused("pools", "set", "a", code=2)
    cantle.cli("pools", "set", "all", "--model", "*")
    assert "there is no pool \"x\"; there are all" in refused("quota", "set", "a", "--pool", "x", "--gpu", "1", code=3)
    assert "--pool all says nothing alone" in refused("quota", "set", "a", "--pool", "all", code=2)
    assert "cannot be used with" in refused("quota", "set", "a", "--pool", "all", "--weight", "2", code=2)
    assert "the limit of 1 GPU of pool all is below its quota of 2 GPUs there" in refused(
        "quota", "set", "a", "--pool", "all", "--gpu", "2", "--limit", "1", code=2
    )
    cantle.cli("quota", "set", "a", "--pool", "all", "--gpu", "2")
    assert "pool all is in use by the quota of project a; change the quota first" in refused("pools", "delete", "all", code=8)
    assert "project a has no quota of pool x" in refused("quota", "unset", "a", "--pool", "x", code=3)
    cantle.cli("quota", "unset", "a", "--pool", "all")
    cantle.cli("pools", "delete", "all")
    assert "there is no pool \"all\"; there is none at all" in refused("pools", "delete", "all", code=3)
    records = [record for record in cantle.json("audit") if record["action"] == "cantle.delete_pool" and record["outcome"] == "done"]
    (record,) = records
    assert (record["subject"], record["before"]) == ("all", {"nodes": [], "models": ["*"]}), record


def test_a_limit_of_a_pool(make_cantle):
    cantle = make_cantle("2xA100-40GB,1xT4-16GB")
    cantle.up("--queue", "q=task")
    cantle.cli("pools", "set", "big", "--model", "*A100*")
    cantle.cli("quota", "set", "a", "--gpu", "3")
    cantle.cli("quota", "set", "a", "--pool", "big", "--gpu", "1", "--limit", "1")
    tasks = [submit(cantle, "a") for _ in range(3)]
    for task in tasks[:2]:
        cantle.wait_state(task, "in_progress")
    assert sorted("T4" in model_of(cantle, task) for task in tasks[:2]) == [False, True]
    why(cantle, tasks[2], "project a holds 1 GPU of pool big and its limit of it is 1 GPU")
    stays_queued(cantle, tasks[2])

    def allocated():
        (project,) = [project for project in cantle.json("projects") if project["name"] == "a"]
        return project["by_pool"]["big"]["allocated_milli"], project["allocated_milli"]

    wait_until(lambda: allocated() == (1000, 2000), 60, allocated)
    # Without the limit it starts on the GPU that was free.
    cantle.cli("quota", "set", "a", "--pool", "big", "--limit", "none")
    assert "A100" in model_of(cantle, tasks[2])


@pytest.mark.full
def test_what_is_guaranteed_of_a_pool_comes_back(make_cantle):
    cantle = make_cantle("1xA100-40GB,1xT4-16GB")
    cantle.up("--queue", "q=task")
    cantle.cli("pools", "set", "big", "--model", "*A100*")
    cantle.cli("quota", "set", "guest", "--gpu", "2")
    guests = [submit(cantle, "guest") for _ in range(2)]
    models = {model_of(cantle, task): task for task in guests}
    (on_big,) = [task for model, task in models.items() if "A100" in model]

    # A quota of all GPUs takes nothing back: the guest is within its own.
    cantle.cli("quota", "set", "owner", "--gpu", "1", "--pools", "big")
    owner = submit(cantle, "owner")
    why(cantle, owner, "project owner may use the pool big")
    stays_queued(cantle, owner)

    cantle.cli("quota", "set", "owner", "--pool", "big", "--gpu", "1")
    assert "A100" in model_of(cantle, owner)
    cantle.wait_state(on_big, "queued")
    told = lambda: " ".join(cantle.cli("why", on_big).stdout.split())  # noqa: E731
    texts = "reclaimed by project owner", "project guest has more than its share, of all GPUs or of pool big"
    wait_until(lambda: all(text in told() for text in texts), 60, told)
    # And it is not taken back in turn.
    stays_queued(cantle, on_big)
    assert cantle.task(owner)["state"] == "in_progress"
