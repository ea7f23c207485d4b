"""Whose process a task is: `--task-user` and `[task_users]`, from inside tasks of an agent of root."""

import json
import os
import subprocess
import sys

import pytest

from conftest import CANTLE, FILL, wait_until
from test_programs import WORKS, lacks

QUEUES = ["--queue", "none=none", "gpu=0.25"]
# Users of the machine, with a second group each; `printer` is a system account.
UIDS = {"alice": 4001, "asmith": 4002, "cantle-task": 4003, "printer": 200}
GROUP = 4100
WHO = "id -un; id -u; id -gn; id -Gn; umask; pwd; echo $HOME $USER $LOGNAME $SHELL; touch $HOME/made && stat -c %U $HOME/made"
LOOK = """
import json, os
def call(f, *args):
    try:
        f(*args)
        return "done"
    except OSError as error:
        return error.errno
caps = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff:"))
print(json.dumps({
    "capabilities": int(caps, 16),
    "first": call(os.kill, 1, 9),
    "environ": call(open, "/proc/1/environ"),
    "root": call(os.setuid, 0),
    "limits": call(open, "/run/cantle/slice/limits", "w"),
    "passwords": call(open, "/etc/shadow"),
    "output": call(open, "/dev/stdout", "w"),
}))
"""  # fmt: skip


@pytest.fixture
def people(cantle):
    """The machine has users with homes."""
    machine = cantle.machine
    run = machine.path("/run")
    lines = [f"{name}:x:{uid}:{uid}::/run/homes/{name}:/usr/sbin/nologin" for name, uid in UIDS.items()]
    (run / "passwd").write_text(machine.path("/etc/passwd").read_text() + "\n".join(lines) + "\n")
    lines = [f"{name}:x:{uid}:" for name, uid in UIDS.items()] + [f"scientists:x:{GROUP}:{','.join(UIDS)}"]
    (run / "group").write_text(machine.path("/etc/group").read_text() + "\n".join(lines) + "\n")
    for name in ("passwd", "group"):
        assert cantle.program("mount", "--bind", f"/run/{name}", f"/etc/{name}").returncode == 0
    for name, uid in UIDS.items():
        home = f"/run/homes/{name}"
        done = cantle.program("sh", "-c", f"mkdir -p {home} && chown {uid}:{uid} {home} && chmod 700 {home}")
        assert done.returncode == 0, done.stderr
    return cantle


def ended(cantle, task):
    return cantle.wait_state(task, "completed", "failed"), cantle.output(task)


def submitted(cantle, queue, *command, directory="/"):
    words = " ".join(f"'{word}'" for word in command)
    done = cantle.program("sh", "-c", f"cd {directory} && exec {CANTLE} submit --queue {queue} -- {words}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("queue", ["none", "gpu"])
def test_a_task_is_a_process_of_the_named_user(people, queue):
    people.up(*QUEUES, "--task-user", "cantle-task")
    task, printed = ended(people, submitted(people, queue, "sh", "-c", WHO))
    assert task["state"] == "completed", (task, printed)
    home = "/run/homes/cantle-task"
    variables = f"{home} cantle-task cantle-task /bin/sh"
    assert printed.splitlines()[-8:] == ["cantle-task", "4003", "cantle-task", "cantle-task scientists", "0022", "/", variables, "cantle-task"]
    task, printed = ended(people, submitted(people, queue, sys.executable, "-c", LOOK))
    assert task["state"] == "completed", (task, printed)
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    # Process 1 is root's and takes no signal; nothing of root's opens.
    assert found == {"capabilities": 0, "first": 1, "environ": 13, "root": 1, "limits": found["limits"], "passwords": 13, "output": "done"}
    assert found["limits"] in (2, 13, 30)
    assert "tasks run as user cantle-task (--task-user cantle-task)" in people.log()
    assert "run as user cantle-task" in people.program(CANTLE, "doctor").stdout


@pytest.mark.parametrize("queue", ["none", "gpu"])
def test_a_command_in_a_task_is_its_users(people, queue):
    """`cantle exec` of an administrator gives the command what the task has, and no more."""
    people.up(*QUEUES, "--task-user", "cantle-task")
    task = submitted(people, queue, sys.executable, "-u", "-c", f"{LOOK}\nimport time; time.sleep(300)")
    people.wait_state(task, "in_progress")
    wait_until(lambda: "{" in people.output(task), 60, lambda: people.output(task))
    its = json.loads(next(line for line in people.output(task).splitlines() if line.startswith("{")))
    done = people.program(CANTLE, "exec", task, "--", "sh", "-c", WHO)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["cantle-task", "4003", "cantle-task", "cantle-task scientists"], done.stdout
    done = people.program(CANTLE, "exec", task, "--", sys.executable, "-c", LOOK)
    assert done.returncode == 0 and json.loads(done.stdout) == its, (done, its)


def test_a_slice_holds_a_task_of_another_user(people):
    people.up(*QUEUES, "--task-user", "cantle-task")
    task, printed = ended(people, submitted(people, "gpu", *FILL))
    assert task["state"] == "completed", printed
    (filled,) = people.filled(task["id"])
    assert filled["total_bytes"] == 10 << 30 and 9 << 30 < filled["allocated_bytes"] <= 10 << 30, filled


def test_programs_of_every_day_work_for_another_user(people):
    """Those of docs/reference/programs.md, each in a directory of its own. Only root becomes another user."""
    people.up("--queue", "gpu=0.25", "--task-user", "cantle-task")
    tasks = {}
    for name in WORKS:
        if lacks(name):
            continue
        script = f"own=$(mktemp -d); trap 'rm -rf $own' EXIT; cd $own && {WORKS[name]}"
        done = people.program(CANTLE, "submit", "--queue", "gpu", "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        tasks[name] = done.stdout.strip()
    ends = {name: ended(people, task) for name, task in tasks.items()}
    failed = {name: printed for name, (_, printed) in ends.items() if "works" not in printed.splitlines()[-2:]}
    assert "Operation not permitted" in failed.pop("setpriv, su")
    assert not failed, "\n".join(f"{name}: {printed}" for name, printed in failed.items())


def test_without_a_named_user_a_task_is_the_agents(people):
    """And that is said: the negative control."""
    people.up(*QUEUES)
    task, printed = ended(people, submitted(people, "none", "id", "-u"))
    assert (task["state"], printed.splitlines()[-1]) == ("completed", "0")
    assert "tasks run as root, the agent's user (--task-user agent)" in people.log()
    doctor = people.program(CANTLE, "doctor")
    assert "run as root, the agent's user" in doctor.stdout and "task user: give --task-user" in doctor.stderr, doctor


def test_a_task_is_its_submitters(people, tmp_path):
    """By the same name, by the table, and not at all."""
    config = tmp_path / "up.toml"
    config.write_text('[up]\ntask_user = "submitter"\n[task_users]\nbob = "asmith"\n')
    up = people.start("--config", config, "up", "--listen", "127.0.0.1:0", *QUEUES, log="up.log")
    wait_until(lambda: "cantle is up" in people.log() or up.poll() is not None, 60, people.log)
    assert up.poll() is None, people.log()
    people.cli("projects", "create", "p", code=None)
    outcome = {}
    for name in ("alice", "bob", "mallory", "printer"):
        (user,) = people.json("users", "add", name, "--role", "admin")
        own = {"CLEARML_API_ACCESS_KEY": user["access_key"], "CLEARML_API_SECRET_KEY": user["secret_key"]}
        done = people.program("sh", "-c", f"cd / && exec {CANTLE} submit --queue none -- id -un", env=people.env | own)
        assert done.returncode == 0, done.stderr
        outcome[name] = ended(people, done.stdout.strip())
    for name, unix in (("alice", "alice"), ("bob", "asmith")):
        task, printed = outcome[name]
        assert (task["state"], printed.splitlines()[-1:]) == ("completed", [unix]), (task, printed)
    for name, why in (("mallory", 'this machine has no user "mallory"'), ("printer", 'user "printer" of this machine is a system account (uid 200')):
        task, _ = outcome[name]
        assert task["state"] == "failed" and why in task["reason"] and "[task_users]" in task["reason"], task


def test_a_directory_that_the_user_cannot_enter(people):
    people.up(*QUEUES, "--task-user", "cantle-task")
    people.program("mkdir", "-m", "700", "/run/closed")
    task, _ = ended(people, submitted(people, "none", "pwd", directory="/run/closed"))
    why = "user cantle-task, who the task runs as, cannot enter its working directory /run/closed: Permission denied"
    assert task["state"] == "failed" and why in task["reason"], task


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--task-user", "nosuch"], '--task-user nosuch: this machine has no user "nosuch"'),
        (["--task-users", "a=b"], "--task-users has no effect with --task-user agent"),
        (["--task-user", "submitter", "--task-users", "a"], "--task-users a: write SERVER-USER=USER"),
    ],
)
def test_a_user_that_cannot_be_is_refused(cantle, words, why):
    done = cantle.program(CANTLE, "up", "--listen", "127.0.0.1:0", *words)
    line, *hints = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith(f"cantle: {why}"), done.stderr
    assert all(hint.startswith("hint: ") for hint in hints)


def test_an_ordinary_user_starts_tasks_as_itself_only(cantle, home_of_nobody):
    env = cantle.env | {"HOME": str(home_of_nobody)}
    words = ["--state", home_of_nobody / "state", "up", "--listen", "127.0.0.1:0", "--task-user", "daemon"]
    command = cantle.machine.command(CANTLE, *words, user=65534)
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and "only an agent of root starts tasks as another user, and this one runs as nobody" in done.stderr, done.stderr
    assert os.geteuid() == 0
