"""`cantle daemon` with the command lines and files of `clearml-agent daemon`."""

import json
import subprocess

import pytest
from conftest import CANTLE, is_one_error, wait_until
from ours import NODE, command, daemon, ended

ALWAYS = "0-24 SUN-SAT"


def cantle(server, *words, code=0, **env):
    """Runs a command of cantle to its end; what it prints."""
    argv, env = server.command([CANTLE, *words]), server.env | NODE | env
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def test_an_agent_in_the_background(server):
    queue = server.queue("half_gpu")
    words = ["daemon", "--dynamic-gpus", "--gpus", "0-1", "--queue", "half_gpu=0.5"]
    said = cantle(server, *words, "--detached")
    assert said.startswith("agent node1:dgpu0-1 serves in the background (pid ")
    try:
        [worker] = server.api("workers.get_all", last_seen=60)["workers"]
        assert worker["id"] == "node1:dgpu0-1"
        task = command(server, "t", "true")
        server.api("tasks.enqueue", task=task, queue=queue)
        assert ended(server, task) == ["completed"]
        [agent] = json.loads(cantle(server, "-o", "json", "daemon", "--status"))["items"]
        assert agent["worker"] == "node1:dgpu0-1" and str(agent["holder"]["pid"]) in said
        # A session of its own: the end of the terminal is not its end.
        stat = open(f"/proc/{agent['holder']['pid']}/stat").read().rsplit(")", 1)[1].split()
        assert int(stat[3]) == agent["holder"]["pid"]
        refused = cantle(server, *words, "--detached", code=8)
        assert refused.startswith("cantle: GPU 0 is taken by agent node1:dgpu0-1") and is_one_error(refused)
        assert "\nhint: stop it first" in refused
        endless = command(server, "endless", "sleep", "600")
        server.api("tasks.enqueue", task=endless, queue=queue)
        wait_until(lambda: server.status(endless) == "in_progress", 60, "the start")
    finally:
        assert cantle(server, *words, "--stop") == "agent node1:dgpu0-1 is stopped\n"
    assert server.status(endless) == "stopped"
    assert server.api("workers.get_all", last_seen=0)["workers"] == []
    assert "no agent node1:dgpu0-1 runs here" in cantle(server, *words, "--stop", code=3)
    assert cantle(server, "--no-headers", "daemon", "--status") == ""


def test_an_agent_that_cannot_serve_says_so_before_it_goes_to_the_background(server):
    said = cantle(server, "daemon", "--dynamic-gpus", "--gpus", "0", "--queue", "nosuch=0.5", "--detached", code=2)
    assert "nosuch" in said and "--create-queue" in said and is_one_error(said)


def test_server_keys_and_settings_from_clearml_conf(server):
    server.queue("half_gpu")
    keys = {"CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY", "CLEARML_CONFIG_FILE"}
    access, secret = server.env["CLEARML_API_ACCESS_KEY"], server.env["CLEARML_API_SECRET_KEY"]
    (server.home / "clearml.conf").write_text(f"""
# as clearml-init writes it
api {{
    # Notice: 'host' is the api server (default port 8008), not the web server.
    api_server: {server.url}
    web_server: {server.url}
    files_server: {server.url}/files
    credentials {{"access_key" = "{access}", "secret_key" = "{secret}"}}
}}
agent.worker_name = from-conf-${{SUFFIX}}
agent {{ downtime: ["{ALWAYS}"] }}
""")
    words = ["daemon", "--dynamic-gpus", "--gpus", "0-1", "--queue", "half_gpu=0.5"]
    env = {name: value for name, value in server.env.items() if name not in keys} | {"SUFFIX": "7"}
    # Nothing else on this machine knows the server.
    argv = server.command([CANTLE, *words], server.another())
    out = open(server.home / "conf.log", "wb")
    child = subprocess.Popen(argv, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    server.background.append(child)
    workers = lambda: [worker["id"] for worker in server.api("workers.get_all", last_seen=60)["workers"]]
    wait_until(lambda: workers() or child.poll() is not None, 60, "the daemon")
    assert workers() == ["from-conf-7:dgpu0-1"], server.text("conf.log")
    task = command(server, "t", "true")
    server.api("tasks.enqueue", task=task, queue_name="half_gpu")
    reason = lambda: server.api("cantle.get_tasks", id=[task])["tasks"][0].get("reason") or ""
    wait_until(lambda: f"takes no tasks at {ALWAYS}" in reason(), 60, "the reason")
    assert server.status(task) == "queued"
    (server.home / "clearml.conf").write_text("api {\n api_server: x\n")
    broken = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180)
    assert broken.returncode == 2 and broken.stderr.count("\n") == 1
    assert "clearml.conf: line 3: the section has no end" in broken.stderr


def test_uptime_and_queues_in_turn(server):
    queue = server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5", "--uptime", ALWAYS, "--order-fairness")
    task = command(server, "t", "true")
    server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, task) == ["completed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--uptime", "17-20"], '--uptime "17-20" is not HOURS DAYS'),
        (["--uptime", ALWAYS, "--downtime", ALWAYS], "cannot be used with"),
        (["--detached", "--foreground"], "cannot be used with"),
        (["--use-owner-token"], "only ClearML's paid server"),
        (["--services-mode", "5"], "--services-mode and --dynamic-gpus"),
        (["--services-mode", "0"], "number of tasks that may run at once"),
        (["--cpu-only"], "--cpu-only and --dynamic-gpus"),
        (["--log-level", "LOUD"], "LOUD"),
        (["--polling-interval", "0"], "0.05 to 3600 seconds"),
    ],
)
def test_what_cannot_be_is_one_line(server, words, says):
    server.queue("half_gpu")
    said = cantle(server, "daemon", "--dynamic-gpus", "--gpus", "0", "--queue", "half_gpu=0.5", *words, code=2)
    assert says in said and is_one_error(said)


def serve(server, *words, worker, log, **env):
    """`cantle daemon` with these words, once it serves as this worker."""
    child = server.start([CANTLE, "daemon", *words, "--server", server.url], log, **NODE | env)
    workers = lambda: [w["id"] for w in server.api("workers.get_all", last_seen=60)["workers"]]
    wait_until(lambda: worker in workers() or child.poll() is not None, 60, f"{worker}: {server.text(log)}")
    assert child.poll() is None, server.text(log)
    return child


def until(server, name):
    return f"while [ ! -e {server.home}/{name} ]; do sleep 0.1; done"


def enqueue(server, queue, name, script):
    task = command(server, name, "sh", "-c", script)
    server.api("tasks.enqueue", task=task, queue_name=queue)
    return task


def reason_of(server, task):
    return server.api("cantle.get_tasks", id=[task])["tasks"][0].get("reason") or ""


def test_services_run_several_at_a_time_beside_the_gpus(server):
    for queue in ("services", "more", "single_gpu"):
        server.queue(queue)
    daemon(server, "--queue", "single_gpu=1", gpus="0")
    serve(server, "--services-mode", "2", "--queue", "services", "more", worker="node1:cpu:0", log="services.log")
    say = f"echo [$NVIDIA_VISIBLE_DEVICES] [$CUDA_VISIBLE_DEVICES] $CLEARML_WORKER_ID; {until(server, 'go')}"
    first, second = enqueue(server, "more", "first", say), enqueue(server, "services", "second", say)
    wait_until(lambda: [server.status(t) for t in (first, second)] == ["in_progress"] * 2, 60, "two of them")
    third = enqueue(server, "services", "third", say)
    wait_until(lambda: reason_of(server, third) == "this agent runs at most 2 tasks at a time, and 2 run", 60, "the reason")
    # A task without a GPU takes none from tasks with GPUs.
    beside = enqueue(server, "single_gpu", "beside", "true")
    assert ended(server, beside) == ["completed"]
    assert server.status(third) == "queued"
    gpus = lambda: {node["node"]: len(node["gpus"]) for node in server.api("cantle.get_nodes")["nodes"]}
    wait_until(lambda: gpus() == {"node1:dgpu0": 1, "node1:cpu:0": 0}, 60, "both reports")
    (server.home / "go").touch()
    assert ended(server, first, second, third) == ["completed"] * 3
    wait_until(lambda: server.log_of(third), 60, "the log")
    assert server.log_of(third) == f"[none] [] node1:cpu:0:service:{third}\n"
    assert cantle(server, "daemon", "--services-mode", "--stop") == "agent node1:cpu:0 is stopped\n"


def test_each_running_task_is_a_worker_of_its_own(server):
    """As with ClearML's agent: its web page shows the slices of each task, under ids that end with the task."""
    for queue in ("dual_gpus", "quarter_gpu", "services"):
        server.queue(queue)
    agent = daemon(server, "--queue", "dual_gpus=2", "quarter_gpu=0.25", "--child-report-tags", "blue")
    serve(server, "--services-mode", "--queue", "services", worker="node1:cpu:0", log="services.log")
    hold = f"echo $CLEARML_WORKER_ID; {until(server, 'go')}"
    dual, first = enqueue(server, "dual_gpus", "dual", hold), enqueue(server, "quarter_gpu", "first", hold)
    second, service = enqueue(server, "quarter_gpu", "second", hold), enqueue(server, "services", "service", hold)
    children = {"node1:gpu0,1": dual, "node1:gpu2.25a": first, "node1:gpu2.25b": second, f"node1:cpu:0:service:{service}": service}
    workers = lambda: {w["id"]: w for w in server.api("workers.get_all", last_seen=60)["workers"]}
    tasks = lambda: {id: worker["task"]["id"] for id, worker in workers().items() if "task" in worker}
    wait_until(lambda: tasks() == children, 60, f"the children; there are {tasks()}")
    # It is a worker before it has figures.
    wait_until(lambda: workers()["node1:gpu2.25a"].get("machine_stats"), 60, "the figures")
    child = workers()["node1:gpu2.25a"]
    assert child["tags"] == ["blue"] and child["queues"] == []
    used, free = child["machine_stats"]["gpu_memory_used"], child["machine_stats"]["gpu_memory_free"]
    assert (len(used), used[0] + free[0]) == (1, 10240.0), "the slice, not the GPU"
    # A stock agent of this name takes its GPUs from these ids.
    stock = server.api("workers.get_all", last_seen=600, worker_pattern="node1:gpu*")["workers"]
    assert len(stock) == 3
    # Ids are kept by an agent that takes the tasks over.
    agent.kill()
    agent.wait()
    daemon(server, "--queue", "dual_gpus=2", "quarter_gpu=0.25", log="second.log")
    (server.home / "go").touch()
    assert ended(server, *children.values()) == ["completed"] * 4
    wait_until(lambda: set(workers()) == {"node1:dgpu0-2", "node1:cpu:0"}, 60, f"no children; there are {set(workers())}")
    for id, task in children.items():
        wait_until(lambda task=task: server.log_of(task), 60, "the log")
        assert server.log_of(task) == f"{id}\n"


@pytest.mark.parametrize(("script", "says"), [("echo saving $CLEARML_TASK_ID >> $PWD/saved", "ended with exit status: 0"), ("sleep 60", "did not end within 1 s")])
def test_an_abort_callback_of_the_agent_comes_before_the_stop(server, script, says):
    queue = server.queue("half_gpu")
    env = {"CLEARML_AGENT_ABORT_CALLBACK_CMD": f"sh -c '{script}; echo called'", "CLEARML_AGENT_ABORT_CALLBACK_TIMEOUT": "1" if "60" in script else "30"}
    daemon(server, "--queue", "half_gpu=0.5", **env)
    task = command(server, "t", "sh", "-c", "echo runs; sleep 600")
    server.api("tasks.enqueue", task=task, queue=queue)
    # A task that is stopped before its program runs has nothing to save.
    wait_until(lambda: "runs\n" in server.log_of(task), 60, "the start")
    server.api("tasks.stop", task=task)
    assert ended(server, task) == ["stopped"]
    wait_until(lambda: says in server.log_of(task), 60, f"the log; it is {server.log_of(task)}")
    assert ("called\n" in server.log_of(task)) == ("60" not in script)
    if "60" not in script:
        assert (server.home / "saved").read_text() == f"saving {task}\n"


def test_two_agents_of_one_machine_are_two_nodes(server):
    """Each has some of the GPUs: neither's report hides the other's, in either order."""
    queue = server.queue("single_gpu")
    for gpu in ("0", "1-2"):
        words = ["--dynamic-gpus", "--gpus", gpu, "--queue", "single_gpu=1"]
        serve(server, *words, worker=f"node1:dgpu{gpu}", log=f"{gpu}.log")
    tasks = [enqueue(server, "single_gpu", str(n), until(server, "go")) for n in range(3)]
    wait_until(lambda: [server.status(task) for task in tasks] == ["in_progress"] * 3, 60, "three of them")
    nodes = lambda: server.api("cantle.get_nodes")["nodes"]
    held = lambda: {node["node"]: [len(gpu["slices"]) for gpu in node["gpus"]] for node in nodes()}
    # A task is said to run before the slices are reported.
    wait_until(lambda: held() == {"node1:dgpu0": [1], "node1:dgpu1-2": [1, 1]}, 60, "a slice on each GPU")
    assert server.api("queues.get_by_id", queue=queue)["queue"]["entries"] == []
    (server.home / "go").touch()
    assert ended(server, *tasks) == ["completed"] * 3


def test_an_agent_without_gpus_runs_one_at_a_time(server):
    server.api("queues.create", name="any", system_tags=["default"])
    # Without --queue: the one that is tagged as the default.
    serve(server, worker="node1:cpu:0", log="first.log", CLEARML_CPU_ONLY="1")
    serve(server, "--cpu-only", "--queue", "other", "--create-queue", worker="node1:cpu:1", log="second.log")
    long = enqueue(server, "any", "long", until(server, "go"))
    wait_until(lambda: server.status(long) == "in_progress", 60, "the start")
    short = enqueue(server, "any", "short", "true")
    wait_until(lambda: reason_of(server, short) == "this agent runs one task at a time", 60, "the reason")
    (server.home / "go").touch()
    assert ended(server, long, short) == ["completed"] * 2
    twice = cantle(server, "daemon", "--cpu-only", "--queue", "any", "--worker-id", "node1:cpu:1", code=8)
    assert twice.startswith("cantle: agent node1:cpu:1 runs here already (pid ") and is_one_error(twice)


def test_tags_and_properties_go_before_the_hours(server):
    """`force_workers:on|off` on a queue, then `force` of the worker, then --downtime."""
    for queue, tags in (("on", ["force_workers:on"]), ("off", ["force_workers:off"]), ("plain", [])):
        server.api("queues.create", name=queue, tags=tags)
    words = ["--dynamic-gpus", "--gpus", "0", "--queue", "on=0.5", "off=0.5", "plain=0.5", "--downtime", ALWAYS]
    serve(server, *words, worker="node1:dgpu0", log="daemon.log")
    on, off, plain = (enqueue(server, queue, queue, "true") for queue in ("on", "off", "plain"))
    assert ended(server, on) == ["completed"]
    wait_until(lambda: reason_of(server, off) == "the queue is tagged force_workers:off", 60, "the tag")
    wait_until(lambda: f"takes no tasks at {ALWAYS}" in reason_of(server, plain), 60, "the hours")
    force = lambda value: server.api("workers.set_runtime_properties", worker="node1:dgpu0", runtime_properties=[{"key": "force", "value": value}])
    force("off")
    wait_until(lambda: reason_of(server, plain) == "the worker's runtime property force is off", 60, "the property")
    force("on")
    assert ended(server, plain) == ["completed"]
    assert server.status(off) == "queued"


def test_the_whole_command_line_of_clearmls_agent(server):
    """Everything that a unit file may have; what has no meaning here is accepted with a word about it."""
    queue = server.queue("half_gpu")
    extra = "--foreground --create-queue --standalone-mode --force-current-version --check-bootstrap -O --git-user me --git-pass secret"
    child = daemon(server, "--queue", "half_gpu=0.5", *extra.split(), "--log-level", "debug", "--polling-interval", "1")
    log = server.text("daemon.log")
    assert "--force-current-version: no effect" in log and "--check-bootstrap: no effect" in log
    task = command(server, "t", "sh", "-c", "echo $CLEARML_AGENT_GIT_USER")
    server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, task) == ["completed"]
    wait_until(lambda: server.log_of(task) == "me\n", 60, "the log")
    shown = open(f"/proc/{child.pid}/cmdline").read()
    assert "secret" in shown, "as with ClearML's agent; CLEARML_AGENT_GIT_PASS hides it"
