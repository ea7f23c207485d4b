"""The Debian package under a real systemd (Debian 12's) as PID 1. GPUs are simulated; the machine is a set of namespaces on the test machine's
kernel, without a bootloader, and with the controllers that this kernel still has free (boot.sh)."""

import contextlib
import json
import os
import subprocess
import time

import pytest

from booted import AGENT, Booted, check_filled, until
from conftest import ROOT, fresh, only
from test_upgrade import next_version

IS_ALL = bool(os.environ.get("CANTLE_TEST_ALL"))
TASKS = 20 if IS_ALL else 3
# Each test boots a machine of its own, which takes 15 s.
in_soak = pytest.mark.skipif(not IS_ALL, reason="in make soak: CANTLE_TEST_ALL=yes")
SERVICES = ["cantle-server", "cantle-agent"]
# Waits for a file, then takes all the memory that it gets.
WAITS = "echo started >>/root/start-{name}; while [ ! -e /root/go-{name} ]; do sleep 0.2; done; python3 /root/fill_slice.py >/root/fill-{name}"
HALF = 20 << 30


@pytest.fixture
def machine(request, tmp_path):
    """A machine with the package and its services configured; none of them runs."""
    with contextlib.contextmanager(fresh)("bookworm", "systemd") as system:
        booted = Booted(system.tree, getattr(request, "param", "v2"), tmp_path)
        try:
            booted.boot()
            booted.run("dpkg", "--install", booted.bring(only("*.deb")))
            booted.configure()
            yield booted
        finally:
            booted.off()


def start(machine):
    machine.run("systemctl", "start", *SERVICES)


def submit(machine, names):
    for name in names:
        machine.submit(WAITS.format(name=name), name)
    begun = lambda: all((machine.tree / f"root/start-{name}").exists() for name in names)  # noqa: E731
    until("the tasks run", begun)


def finish(machine, names):
    """The tasks go on, and end; what each of them got."""
    for name in names:
        (machine.tree / f"root/go-{name}").touch()
    until("the tasks end", lambda: all(machine.states()[name] == "completed" for name in names))
    assert [(machine.tree / f"root/start-{name}").read_text() for name in names] == ["started\n"] * len(names)
    return [json.loads((machine.tree / f"root/fill-{name}").read_text()) for name in names]


def check_limits(filled):
    for seen in filled:
        check_filled(seen, HALF)


def test_the_services_are_ready_when_systemctl_start_returns(machine):
    assert [machine.shown(unit, "ActiveState") for unit in SERVICES] == ["inactive"] * 2, "the package starts none"
    machine.run("systemd-analyze", "verify", "--man=no", *(f"{unit}.service" for unit in SERVICES))
    began = time.monotonic()
    start(machine)
    took = time.monotonic() - began
    # No waiting in between: whoever is ready answers.
    assert "up" in machine.run("cantle", "nodes", "--no-headers").stdout
    assert [machine.shown(unit, "ActiveState") for unit in SERVICES] == ["active"] * 2
    print(f"both services ready after {took:.2f} s")
    machine.submit("python3 /root/fill_slice.py >/root/fill-first", "first")
    until("the task ends", lambda: machine.states() == {"first": "completed"})
    check_limits([json.loads((machine.tree / "root/fill-first").read_text())])


@in_soak
def test_a_program_that_never_says_it_is_ready_does_not_start(machine):
    """The control of the test above: systemd does wait for the message."""
    machine.drop_in("cantle-agent", "[Service]\nTimeoutStartSec=2\nRestart=no\nExecStart=\nExecStart=/bin/sleep 60\n")
    assert machine.run("systemctl", "start", "cantle-agent", check=False).returncode != 0
    assert machine.shown("cantle-agent", "Result") == "timeout"


@in_soak
def test_systemd_never_gives_up_an_agent(machine):
    """Each unit that cantle has or shows, with a program that cannot start, as an agent cannot while its server is away."""
    team = (ROOT / "docs/guide/team.md").read_text().split("/etc/systemd/system/cantle.service")[1]
    units = {"example": (ROOT / "examples/cantle-daemon.service").read_text()}
    units["team"] = "\n".join(line.removeprefix("    ") for line in team.splitlines()[1:] if line.startswith("    "))
    units |= {unit: (ROOT / f"packaging/systemd/{unit}.service").read_text() for unit in SERVICES}
    units["control"] = units["example"].replace("StartLimitIntervalSec=0", "")
    for name, text in units.items():
        assert text.count("ExecStart=") == 1
        text = "\n".join("ExecStart=/bin/false" if line.startswith("ExecStart=") else line for line in text.splitlines())
        (machine.tree / f"etc/systemd/system/try-{name}.service").write_text(text)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "--no-block", *(f"try-{name}" for name in units))
    until("systemd gives up the control", lambda: machine.shown("try-control", "ActiveState") == "failed")
    for name in set(units) - {"control"}:
        until(f"{name} has been started six times", lambda name=name: int(machine.shown(f"try-{name}", "NRestarts")) > 5)
        assert machine.shown(f"try-{name}", "ActiveState") == "activating", name


@in_soak
def test_an_agent_starts_when_its_server_is_there(machine):
    machine.run("systemctl", "start", "cantle-agent", check=False)
    until("it says what it waits for", lambda: "no server" in machine.log("cantle-agent"))
    time.sleep(5)
    assert machine.shown("cantle-agent", "ActiveState") == "activating"
    machine.run("systemctl", "start", "cantle-server")
    until("the agent is ready", lambda: machine.shown("cantle-agent", "ActiveState") == "active")


# Takes the driver's library past the filter: all of the GPU.
CHEATS = "echo started >>/root/start-{name}; while [ ! -e /root/go-{name} ]; do sleep 0.2; done; python3 /root/cheat.py --hold 3600 >/root/fill-{name}"


def cheat(machine, name, most_s):
    """How many seconds the task has more than its slice, up to a maximum; none if it is ended before it has looked."""
    (machine.tree / f"root/go-{name}").touch()
    filled = machine.tree / f"root/fill-{name}"
    until("it has taken the GPU", lambda: filled.exists() and filled.read_text() or not machine.members())
    began = time.monotonic()
    while machine.members():
        if time.monotonic() > began + most_s:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_restarted_agent_watches_its_tasks_before_the_server_is_back(machine):
    start(machine)
    program = (machine.tree / "root/fill_slice.py").read_text()
    (machine.tree / "root/cheat.py").write_text(program.replace('"libcuda.so.1"', '"/run/cantle/real/libcuda.so.1"'))
    for name in ("watched", "control"):
        machine.submit(CHEATS.format(name=name), name)
        until("it runs", (machine.tree / f"root/start-{name}").exists)
        machine.run("systemctl", "stop", *SERVICES)
        if name == "watched":
            machine.run("systemctl", "start", "--no-block", "cantle-agent")
            until("the agent watches", lambda: "watching 1 tasks" in machine.log("cantle-agent"))
            had_s = cheat(machine, name, 60)
            assert had_s is not None, "nobody ends it"
            print(f"the task was ended after {had_s:.1f} s")
            machine.run("systemctl", "start", "cantle-server")
            until("its end is reported", lambda: machine.states()["watched"] == "failed")
            until("the agent is ready", lambda: machine.shown("cantle-agent", "ActiveState") == "active")
        else:
            assert cheat(machine, name, max(10, 3 * had_s)) is None, "the control: with no agent nobody watches"


@pytest.mark.parametrize("machine", ["v2", "hybrid"] if IS_ALL else ["v2"], indirect=True)
def test_tasks_outlive_the_agents_service(machine, tmp_path):
    """A restart, a crash, an upgrade, and a stop: the tasks go on in their control groups and get their halves, no more."""
    start(machine)
    names = ["restart", "crash", "upgrade", "stop"]
    submit(machine, names)
    tasks = machine.members()
    assert len(tasks) == len(names)
    first = machine.shown("cantle-agent", "MainPID")

    machine.run("systemctl", "restart", "cantle-agent")
    assert (machine.members(), machine.shown("cantle-agent", "NRestarts")) == (tasks, "0")
    check_limits(finish(machine, ["restart"]))

    machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "cantle-agent")
    until("systemd starts the agent again", lambda: machine.shown("cantle-agent", "NRestarts") != "0")
    until("the agent is ready", lambda: machine.shown("cantle-agent", "ActiveState") == "active")
    check_limits(finish(machine, ["crash"]))

    before = machine.shown("cantle-server", "MainPID")
    machine.run("dpkg", "--install", machine.bring(next_version(only("*.deb"), tmp_path)))
    assert "0.1.1" in machine.run("dpkg-query", "--show", "cantle").stdout
    assert machine.shown("cantle-server", "MainPID") != before
    check_limits(finish(machine, ["upgrade"]))

    machine.run("systemctl", "stop", "cantle-agent")
    machine.run("systemctl", "daemon-reexec")
    # Nobody watches it now; the filter does not need the agent.
    (machine.tree / "root/go-stop").touch()
    until("the task has its memory", lambda: (machine.tree / "root/fill-stop").exists() and (machine.tree / "root/fill-stop").read_text())
    machine.run("systemctl", "start", "cantle-agent")
    check_limits(finish(machine, ["stop"]))
    until("their groups are removed", lambda: machine.members() == [])
    assert machine.shown("cantle-agent", "MainPID") != first


def test_with_systemds_default_a_restart_ends_the_tasks(machine):
    """The control of the test above: it notices a task that ends with its agent."""
    machine.drop_in("cantle-agent", "[Service]\nKillMode=control-group\n")
    start(machine)
    submit(machine, ["one"])
    machine.run("systemctl", "restart", "cantle-agent")
    until("the task's end is reported", lambda: machine.states()["one"] == "failed")
    until("its processes are gone", lambda: machine.members() == [])


@in_soak
def test_tasks_do_not_notice_ten_restarts(machine):
    start(machine)
    names = [f"task-{each}" for each in range(TASKS)]
    machine.configure(AGENT.replace("half=0.5", "half=0.125"))
    machine.run("systemctl", "restart", "cantle-agent")
    submit(machine, names)
    tasks = machine.members()
    for _ in range(10):
        machine.run("systemctl", "restart", "cantle-agent")
    assert machine.members() == tasks
    assert {seen["total_bytes"] for seen in finish(machine, names)} == {HALF // 4}


@in_soak
def test_a_reboot(machine):
    """Services that are enabled come back; tasks that ran are reported, and new ones run."""
    machine.run("systemctl", "enable", "--now", *SERVICES)
    submit(machine, ["done", "lost"])
    finish(machine, ["done"])
    machine.submit("trap 'echo had time; exit 0' TERM; echo began; while :; do sleep 0.1; done", "asked")
    until("it runs", lambda: machine.states()["asked"] == "in_progress")
    machine.reboot()
    until("the services are back", lambda: machine.shown("cantle-agent", "ActiveState") == "active")
    until("the end is reported", lambda: machine.states() == {"done": "completed", "lost": "failed", "asked": "failed"})
    reasons = {name: item.get("status_reason") or item.get("reason") for name, item in machine.tasks().items()}
    assert "the machine restarted" in reasons["lost"], reasons
    assert "had time" in machine.run("cantle", "logs", machine.tasks()["asked"]["id"]).stdout
    submit(machine, ["new"])
    check_limits(finish(machine, ["new"]))


@in_soak
def test_what_a_task_gets_from_the_service(machine):
    """Tasks need a home directory, and none of the variables that systemd means for the agent."""
    machine.drop_in("cantle-agent", "[Service]\nSetCredential=other:word\n")
    start(machine)
    machine.submit("env >/root/env", "env")
    until("the task ends", lambda: machine.states()["env"] == "completed")
    env = dict(line.split("=", 1) for line in (machine.tree / "root/env").read_text().splitlines())
    assert env.get("HOME") == "/root" and env.get("USER") == env.get("LOGNAME") == "root", env
    assert env.get("SHELL") == "/bin/bash", env
    agent = machine.sh(f"tr '\\0' '\\n' </proc/{machine.shown('cantle-agent', 'MainPID')}/environ")
    assert "INVOCATION_ID" in agent and "CREDENTIALS_DIRECTORY" in agent, "the control"
    of_systemd = {"NOTIFY_SOCKET", "INVOCATION_ID", "SYSTEMD_EXEC_PID", "JOURNAL_STREAM", "STATE_DIRECTORY", "CREDENTIALS_DIRECTORY"}
    assert not of_systemd & set(env), env
    # What systemd gives each service by default is little for programs that share a machine's GPUs: NCCL over InfiniBand locks memory.
    limits = {name: machine.shown("cantle-agent", name) for name in ("LimitMEMLOCK", "TasksMax", "LimitNOFILE")}
    assert limits["LimitMEMLOCK"] == limits["TasksMax"] == "infinity", limits
    assert int(limits["LimitNOFILE"]) >= 524288, limits


@in_soak
def test_the_servers_sandbox(machine):
    """It serves on a port below 1024 with a key of another user, and it can write nothing outside its directory."""
    machine.sh("useradd certs; mkdir /etc/certs")
    folder = machine.tree / "etc/certs"
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for words in (
        ["req", "-x509", *key, "-days", "2", "-keyout", "ca.key", "-out", "ca", "-subj", "/CN=Example CA"],
        ["req", "-new", *key, "-keyout", "key", "-out", "csr", "-subj", "/CN=box"],
        ["x509", "-req", "-in", "csr", "-CA", "ca", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "cert"],
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)
    machine.sh("chown certs /etc/certs/key; chmod 600 /etc/certs/key")
    (machine.tree / "etc/cantle/server.toml").write_text(
        '[server]\nlisten = "127.0.0.1:443"\ntls-cert = "/etc/certs/cert"\ntls-key = "/etc/certs/key"\n'
    )
    machine.run("systemctl", "start", "cantle-server")
    command = ["cantle", "--server", "https://127.0.0.1:443", "--ca", "/etc/certs/ca", "nodes"]
    assert "NODE" in machine.run(*command).stdout
    pid = machine.shown("cantle-server", "MainPID")
    within = ["nsenter", "--target", pid, "--mount"]
    machine.run("touch", "/etc/outside")
    assert "Read-only" in machine.run(*within, "touch", "/etc/inside", check=False).stderr
    machine.run(*within, "touch", "/var/lib/cantle/inside")
    status = machine.sh(f"cat /proc/{pid}/status")
    assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status, status
    line = machine.run("systemd-analyze", "security", "--no-pager", "cantle-server").stdout.strip().splitlines()[-1]
    assert float(line.split(":")[1].split()[0]) <= 2.5, line


def test_removal_ends_the_services_and_purge_leaves_nothing(machine):
    machine.run("systemctl", "enable", "--now", *SERVICES)
    machine.run("dpkg", "--purge", "cantle")
    assert machine.run("systemctl", "is-active", *SERVICES, check=False).stdout.split() == ["inactive"] * 2
    left = machine.sh("find /etc /usr /var/lib /run -name '*cantle*' -not -path '/var/lib/dpkg/*' -not -path '/run/log/*'")
    assert left == "", left
    until("nothing has failed", lambda: machine.run("systemctl", "is-system-running", check=False).stdout.strip() == "running")
