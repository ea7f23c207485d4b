"""ClearML's own agent with `--dynamic-gpus`, our server and our module: fractions that are enforced."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import CANTLE, ROOT, wait_until

HERE = pathlib.Path(__file__).parent
MODULE = ROOT / "python/src"
MIB = 1 << 20
A100_40GB = 40 * 1024 * MIB

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the stand-in for docker mounts, so it needs root")


@pytest.fixture
def dynamic(server):
    """Starts the stock agent on three GPUs; queues are made as they are named."""
    home = server.home
    (home / "bin").mkdir()
    (home / "bin/docker").symlink_to(HERE / "docker")
    (home / "reports").mkdir()

    def start(*queues, gpus="0-2"):
        names = {queue.split("=")[0]: server.queue(queue.split("=")[0]) for queue in queues}
        env = {
            "PATH": f"{home}/bin:{server.env['PATH']}",
            "PYTHONPATH": str(MODULE),
            "CANTLE_BIN": CANTLE,
            "CLEARML_WORKER_NAME": "node1",
            "CLEARML_AGENT_QUEUE_POLL_FREQ_SEC": "1",
            "PYTHONUNBUFFERED": "1",
            "FAKE_DOCKER_LOG": str(home / "docker.log"),
            "FAKE_DOCKER_PROGRAM": str(HERE / "greedy.py"),
            # docker's stand-in gives the container nothing of its environment; the agent passes these on as -e.
            "CLEARML_AGENT_EXTRA_DOCKER_ARGS": f"-e GREEDY_REPORT_DIR={home}/reports",
        }
        argv = ["clearml-agent", "daemon", "--dynamic-gpus", "--gpus", gpus, "--queue", *queues, "--docker", "--foreground"]
        child = server.start(argv, "agent.log", **env)
        wait_until(lambda: "No tasks in Queues" in server.text("agent.log") or child.poll() is not None, 60, "agent")
        assert child.poll() is None, server.text("agent.log")
        return names

    return start


def enqueue(server, queue, name):
    task = server.api("tasks.create", name=name, type="training", script={"entry_point": "x.py", "diff": "pass"})["id"]
    server.api("tasks.enqueue", task=task, queue=queue)
    return task


def report_of(server, task):
    file = server.home / "reports" / task
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 90, f"{task}'s report")
    words = file.read_text().split()
    return dict(zip(words[::2], map(int, words[1::2])))


def each_is_held_to_its_slice(server, tasks):
    """Those of the documented example that run at once: they see their slice, and can't take more."""
    for name, devices, fraction in (("dual_gpus", 2, 1), ("quarter_gpu", 1, 0.25), ("half_gpu", 1, 0.5)):
        seen = report_of(server, tasks[name])
        limit = int(A100_40GB * fraction)
        assert seen["devices"] == devices and seen["total"] == limit, "the task sees its slice"
        assert seen["refusal"] == 2, "CUDA_ERROR_OUT_OF_MEMORY"
        assert limit - 1024 * MIB < seen["taken"] <= limit
    shared = server.machine.used(gpu=2)
    assert int(A100_40GB * 0.75) - 2048 * MIB < shared <= int(A100_40GB * 0.75), "the driver says the same of the GPU with two slices"


def ended(server, task):
    wait_until(lambda: server.status(task) in ("completed", "failed", "stopped"), 90, f"{task}'s end")
    return server.status(task)


@needs_root
def test_the_documented_example(server, dynamic):
    names = dynamic("dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1")
    tasks = {name: enqueue(server, queue, name) for name, queue in names.items()}
    workers = lambda: {w["id"] for w in server.api("workers.get_all", last_seen=600, worker_pattern="node1:gpu*")["workers"]}
    wait_until(lambda: {"node1:gpu0,1", "node1:gpu2.25a", "node1:gpu2.5a"} <= workers(), 60, "three containers")
    assert "Not enough free GPUs 0.25/1.0" in wait_until(
        lambda: "Not enough free GPUs" in server.text("agent.log") and server.text("agent.log"), 30, "the waiting task"
    )
    each_is_held_to_its_slice(server, tasks)
    assert len(server.leases()) == 2, "the two fractions have slices"
    (server.home / "reports/go").touch()
    assert all(ended(server, task) == "completed" for task in tasks.values()), server.text("agent.log")
    assert server.leases() == [], "slices end with their containers"


@needs_root
def test_an_option_that_would_lift_the_limit_is_refused(server, dynamic):
    queue = dynamic("half_gpu=0.5")["half_gpu"]
    container = {"image": "python:3.11", "arguments": "--privileged"}
    task = server.api("tasks.create", name="t", type="training", script={"entry_point": "x.py"}, container=container)["id"]
    server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, task) == "failed"
    said = server.log_of(task) + server.text("agent.log")
    assert "container option --privileged is refused: it gives the task every GPU and undoes every limit" in said


def patch(words, fraction, **env):
    """Calls the module as the agent does; what it returns, or its error."""
    code = (
        "import json, sys\nfrom clearml_agent_fractional_gpu import *\n"
        "try:\n print(json.dumps(patch_docker_cmd_gpu_fraction(json.loads(sys.argv[1]), gpu_fraction=json.loads(sys.argv[2]))))\n"
        "except FractionalGpuError as error:\n print(json.dumps(str(error)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(words), json.dumps(fraction)],
        env={"PYTHONPATH": str(MODULE), "PATH": "/nowhere", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


RUN = ["docker", "run", "-t", "--gpus", '"device=2"', "img", "bash"]


def test_the_module_hands_over_to_cantle():
    words = patch(RUN, 0.25, CANTLE_BIN=CANTLE)
    assert words == [CANTLE, "docker-run", "--gpu", "0.250", "--timeout", "30", "--", *RUN]


def test_the_module_never_lets_a_container_run_without_its_limit():
    assert "cantle is not installed" in patch(RUN, 0.5, CANTLE_BIN="/nowhere/cantle")
    for fraction in (0, 1.5, None, "x", 0.1234):
        assert "is not a fraction of a GPU" in patch(RUN, fraction, CANTLE_BIN=CANTLE)
    assert "not a docker run command line" in patch(["docker", "ps"], 0.5, CANTLE_BIN=CANTLE)


def test_the_wheel_is_pure_and_needs_nothing(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "-w", tmp_path]
    subprocess.run([*pip, ROOT / "python"], check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == "clearml_agent_fractional_gpu-0.1.0-py3-none-any.whl"
