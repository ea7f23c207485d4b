"""`cantle daemon` with the command lines and files of `clearml-agent daemon`."""

import json
import subprocess

import pytest
from conftest import CANTLE, wait_until
from ours import SIM, command, daemon, ended

ALWAYS = "0-24 SUN-SAT"


def cantle(server, *words, code=0, **env):
    """Runs a command of cantle to its end; what it prints."""
    done = subprocess.run(
        [CANTLE, *words], env=server.env | SIM | env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd=server.home
    )
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
        assert refused.startswith("cantle: GPU 0 is taken by agent node1:dgpu0-1") and refused.count("\n") == 1
        endless = command(server, "endless", "sleep", "600")
        server.api("tasks.enqueue", task=endless, queue=queue)
        wait_until(lambda: server.status(endless) == "in_progress", 20, "the start")
    finally:
        assert cantle(server, *words, "--stop") == "agent node1:dgpu0-1 is stopped\n"
    assert server.status(endless) == "stopped"
    assert server.api("workers.get_all", last_seen=0)["workers"] == []
    assert "no agent node1:dgpu0-1 runs here" in cantle(server, *words, "--stop", code=3)
    assert cantle(server, "--no-headers", "daemon", "--status") == ""


def test_an_agent_that_cannot_serve_says_so_before_it_goes_to_the_background(server):
    said = cantle(server, "daemon", "--dynamic-gpus", "--gpus", "0", "--queue", "nosuch=0.5", "--detached", code=2)
    assert "nosuch" in said and "--create-queue" in said and said.count("\n") == 1


def test_server_keys_and_settings_from_clearml_conf(server):
    server.queue("half_gpu")
    keys = {"CLEARML_API_HOST", "CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY", "CLEARML_CONFIG_FILE", "CANTLE_STATE_DIR"}
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
    env = {name: value for name, value in (server.env | SIM).items() if name not in keys | {"CLEARML_WORKER_NAME"}}
    # Nothing else on this machine knows the server.
    env |= {"SUFFIX": "7", "CANTLE_STATE_DIR": str(server.home / "agent-state")}
    out = open(server.home / "conf.log", "wb")
    child = subprocess.Popen([CANTLE, *words], env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    server.background.append(child)
    workers = lambda: [worker["id"] for worker in server.api("workers.get_all", last_seen=60)["workers"]]
    wait_until(lambda: workers() or child.poll() is not None, 30, "the daemon")
    assert workers() == ["from-conf-7:dgpu0-1"], server.text("conf.log")
    task = command(server, "t", "true")
    server.api("tasks.enqueue", task=task, queue_name="half_gpu")
    reason = lambda: server.api("cantle.get_tasks", id=[task])["tasks"][0].get("reason") or ""
    wait_until(lambda: f"takes no tasks at {ALWAYS}" in reason(), 10, "the reason")
    assert server.status(task) == "queued"
    (server.home / "clearml.conf").write_text("api {\n api_server: x\n")
    broken = subprocess.run([CANTLE, *words], env=env, capture_output=True, text=True, timeout=30)
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
        (["--services-mode", "5"], "run clearml-agent daemon beside it"),
        (["--cpu-only"], "run clearml-agent daemon beside it"),
        (["--log-level", "LOUD"], "LOUD"),
        (["--polling-interval", "0"], "0.05 to 3600 seconds"),
    ],
)
def test_what_cannot_be_is_one_line(server, words, says):
    server.queue("half_gpu")
    said = cantle(server, "daemon", "--dynamic-gpus", "--gpus", "0", "--queue", "half_gpu=0.5", *words, code=2)
    assert says in said and said.count("\n") == 1


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
    wait_until(lambda: server.log_of(task) == "me\n", 10, "the log")
    shown = open(f"/proc/{child.pid}/cmdline").read()
    assert "secret" in shown, "as with ClearML's agent; CLEARML_AGENT_GIT_PASS hides it"
