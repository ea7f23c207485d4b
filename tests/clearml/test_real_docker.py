"""ClearML's own agent, our module, and a real container engine: the documented example with nothing in between but
what stands in for NVIDIA's runtime. `tests/docker/run.sh` starts the engine, on the machine with GPUs on which it runs this."""

import json
import os
import pathlib
import site
import subprocess
import sys

import pytest
from conftest import CANTLE, ROOT, wait_until
from ours import command
from test_dynamic_gpus import each_is_held_to_its_slice, ended

HERE = pathlib.Path(__file__).parent
ENGINE = pathlib.Path(os.environ["CANTLE_TEST_ENGINE"])
IMAGE = os.environ["CANTLE_TEST_IMAGE"]
QUEUES = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"]


def containers():
    """Ids of the containers that cantle has to do with, as the engine knows them."""
    return docker("ps", "--quiet", "--filter", "label=cantle.dev/lease").split()


def docker(*words):
    return subprocess.run(["docker", *words], env=engine_env(), capture_output=True, text=True, check=True).stdout


def engine_env():
    return {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{ENGINE}/docker.sock"}


def stock_agent(server):
    """Installs nothing in the containers: they find ClearML's agent in a directory of this machine, and run it with their own
    Python, which is of the same version."""
    version = docker("run", "--rm", "--network=none", IMAGE, "python3", "-c", "import sys; print(*sys.version_info[:2])")
    if version.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"the image has Python {version.strip()}, ClearML's agent is installed here for {sys.version}")
    home = server.home
    (home / "bin").mkdir()
    (home / "bin/docker").symlink_to(HERE / "docker_on_sim")
    (home / "reports").mkdir()
    [packages] = site.getsitepackages()
    settings = ["LOCAL_PYTHON=python3", "PYTHONPATH=/clearml", "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL=1"]
    settings.append(f"GREEDY_REPORT_DIR={home}/reports")
    mounts = [f"{packages}:/clearml:ro", f"{home}/reports:{home}/reports"]
    options = ["--network=host", *(f"-e {setting}" for setting in settings), *(f"-v {mount}" for mount in mounts)]
    env = engine_env() | {
        "PATH": f"{home}/bin:{server.env['PATH']}",
        "PYTHONPATH": str(ROOT / "python/src"),
        "CANTLE_BIN": CANTLE,
        "CLEARML_WORKER_NAME": "node1",
        "CLEARML_AGENT_QUEUE_POLL_FREQ_SEC": "1",
        "CLEARML_AGENT_SKIP_PIP_VENV_INSTALL": "/usr/bin/python3",
        "CLEARML_AGENT_EXTRA_DOCKER_ARGS": " ".join(options),
        "PYTHONUNBUFFERED": "1",
    }
    words = ["--dynamic-gpus", "--gpus", "0-2", "--queue", *QUEUES, "--docker", IMAGE, "--standalone-mode", "--foreground"]
    child = server.start(["clearml-agent", "daemon", *words], "agent.log", **env)
    wait_until(lambda: "No tasks in Queues" in server.text("agent.log") or child.poll() is not None, 120, "agent")
    assert child.poll() is None, server.text("agent.log")


def test_the_documented_example_with_the_stock_agent_in_real_containers(server):
    names = [queue.partition("=")[0] for queue in QUEUES]
    queues = {name: server.queue(name) for name in names}
    stock_agent(server)
    script = {"entry_point": "greedy.py", "diff": (HERE / "greedy.py").read_text(), "binary": "python3"}
    tasks = {}
    for name in names:
        tasks[name] = server.api("tasks.create", name=name, type="training", script=script)["id"]
        server.api("tasks.enqueue", task=tasks[name], queue=queues[name])
    each_is_held_to_its_slice(server, tasks)
    assert len(containers()) == len(server.leases()) == 2, "the two fractions have slices"
    assert server.status(tasks["single_gpu"]) == "queued"
    workers = {w["id"] for w in server.api("workers.get_all", last_seen=600, worker_pattern="node1:gpu*")["workers"]}
    assert workers == {"node1:gpu0,1", "node1:gpu2.25a", "node1:gpu2.5a"}
    (server.home / "reports/go").touch()
    assert all(ended(server, task) == "completed" for task in tasks.values()), server.text("agent.log")
    wait_until(lambda: server.leases() == [], 120, "slices end with their containers")


def test_an_option_that_would_lift_the_limit_is_refused(server):
    queue = {name: server.queue(name) for name in (queue.partition("=")[0] for queue in QUEUES)}["half_gpu"]
    stock_agent(server)
    container = {"image": IMAGE, "arguments": "--privileged"}
    task = server.api("tasks.create", name="t", type="training", script={"entry_point": "x.py"}, container=container)["id"]
    server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, task) == "failed"
    refusal = "container option --privileged is refused: it gives the task every GPU and undoes every limit"
    wait_until(lambda: refusal in server.log_of(task) + server.text("agent.log"), 60, "the refusal")


def test_services_of_our_agent_in_real_containers(server):
    """No GPU: nothing of the driver is in the container, no device and no library."""
    queue = server.queue("services")
    words = ["--services-mode", "2", "--queue", "services", "--docker", IMAGE, "--network=none"]
    server.start([CANTLE, "daemon", *words, "--server", server.url], "daemon.log", **engine_env() | {"CLEARML_WORKER_NAME": "node1"})
    say = "echo [$CUDA_VISIBLE_DEVICES]; ls /usr/lib/x86_64-linux-gnu | grep -c libcuda; sleep 600"
    tasks = [command(server, "service", "sh", "-c", say) for _ in range(2)]
    for task in tasks:
        server.api("tasks.enqueue", task=task, queue=queue)
    wait_until(lambda: all("[]\n0\n" in server.log_of(task) for task in tasks), 240, "both run, without a GPU")
    found = containers()
    assert len(found) == 2
    for container in json.loads(docker("inspect", *found)):
        assert container["Mounts"] == [] and not container["HostConfig"]["Devices"]
    for task in tasks:
        server.api("tasks.stop", task=task)
    assert [ended(server, task) for task in tasks] == ["stopped"] * 2
    wait_until(lambda: containers() == [], 120, "no container is left")
