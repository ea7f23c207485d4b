"""What docs/security.md says that a task finds, read back from inside: a task with a GPU and one without, of a `cantle run` and of an agent."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from conftest import CANTLE, wait_until

LOOK = [sys.executable, str(pathlib.Path(__file__).with_name("sandbox_inside.py"))]
QUEUES = ["--queue", "none=none", "gpu=0.25"]
# The default capabilities of containers without MKNOD, with IPC_LOCK and SYS_NICE.
CAPABILITIES = "00000000a08465fb"
STATE = ("/var/lib/cantle/server", "/var/lib/cantle/agent")


def of(printed):
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


def in_task(cantle, queue, *command, flags=()):
    task = cantle.submit(queue, *command, flags=flags)
    ended = cantle.wait_state(task, "completed", "failed")
    return ended, cantle.output(task)


def assert_is_walled_in(inside, outside):
    same = [kind for kind, name in inside["namespaces"].items() if name == outside["namespaces"][kind]]
    assert not same, f"the machine's own: {same}"
    assert inside["pids"] < 10 < outside["pids"]
    assert inside["group"] and inside["cgroups"] == []
    assert inside["writable"] == []
    assert (inside["clone3"], inside["keyctl"]) == ("ENOSYS", "EPERM")
    assert inside["starts"] == "a", "a program starts others as ever"
    assert inside["capabilities"] == CAPABILITIES
    assert inside["hostname"] == outside["hostname"]


def assert_is_the_machine(outside):
    """The negative control."""
    assert outside["cgroups"] and outside["writable"]
    assert outside["clone3"] == "EINVAL" and outside["keyctl"] != "EPERM"


@pytest.fixture
def up(cantle):
    cantle.up(*QUEUES)
    return cantle


@pytest.mark.parametrize("queue", ["none", "gpu"])
def test_a_task_of_an_agent_finds_its_own_only(up, queue):
    outside = of(up.program(*LOOK, *STATE, "/run/cantle/node/leases").stdout)
    assert_is_the_machine(outside)
    assert "credentials.json" in outside["found"][STATE[0]] and "jobs" in outside["found"][STATE[1]]
    ended, printed = in_task(up, queue, *LOOK, *STATE, "/run/cantle/node/leases", "/run/cantle")
    assert ended["state"] == "completed", printed
    inside = of(printed)
    assert_is_walled_in(inside, outside)
    assert inside["descriptors"] == [0, 1, 2]
    found = inside["found"]
    assert [found[path] for path in STATE] == [[], []] and found["/run/cantle/node/leases"] == "ENOENT"
    assert set(found["/run/cantle"]) <= {"empty", "real", "slice"}


def test_a_task_of_run_finds_its_own_only(cantle):
    outside = of(cantle.program(*LOOK).stdout)
    inside = of(cantle.cli("run", "--gpu", "0.25", "--", *LOOK).stdout)
    assert_is_walled_in(inside, outside)


def test_run_passes_on_what_its_caller_opened(cantle):
    done = cantle.program("bash", "-c", f"{CANTLE} run --gpu 0.25 -- cat <(echo given)")
    assert done.stdout == "given\n", done.stderr


@pytest.mark.parametrize("queue", ["none", "gpu"])
def test_no_task_gets_the_keys_of_a_server_wherever_its_state_is(cantle, tmp_path, queue):
    """An agent of root with keys of its own beside a server with a state directory of its own, as docs/guide/team.md has them."""
    state, keys = tmp_path / "state", tmp_path / "agent.keys"
    server = cantle.start("--state", state, "server", "--listen", "127.0.0.1:0", "--database", f"sqlite:{tmp_path}/elsewhere.db", log="s")
    wait_until(lambda: "is up: " in cantle.log("s"), 60, "cantle server")
    url = cantle.log("s").split("is up: ")[1].split()[0]
    pair = json.loads((state / "server/credentials.json").read_text())
    keys.write_text(f'{{"access_key": "{pair["access_key"]}", "secret_key": "{pair["secret_key"]}"}}')
    keys.chmod(0o600)
    cantle.start("--server", url, "--keys", keys, "--state", tmp_path / "other", "daemon", "--dynamic-gpus", "--create-queue", *QUEUES, log="a")
    cantle.env |= {"CANTLE_SERVER": url, "CLEARML_API_ACCESS_KEY": pair["access_key"], "CLEARML_API_SECRET_KEY": pair["secret_key"]}
    wait_until(lambda: cantle.cli("nodes", code=None).stdout.count("\n") > 1, 60, lambda: cantle.log("a"))
    # What everybody may see stays in sight.
    (tmp_path / "data").write_text("data")
    wanted = [state / "server", tmp_path / "other/agent", keys, tmp_path / "elsewhere.db", tmp_path / "data"]
    ended, printed = in_task(cantle, queue, *LOOK, *wanted)
    assert ended["state"] == "completed", printed
    assert list(of(printed)["found"].values()) == [[], [], 0, 0, 4]
    attack = f"env -u CLEARML_AUTH_TOKEN {CANTLE} --state {state} credentials"
    ended, printed = in_task(cantle, queue, "sh", "-c", attack)
    assert ended["state"] == "failed" and pair["secret_key"] not in printed, printed
    assert pair["secret_key"] in cantle.program("sh", "-c", attack).stdout, "the negative control"
    assert server.poll() is None


@pytest.mark.parametrize("directory", ["/proc", "/proc/sys/kernel", "/sys/fs", "/sys/fs/cgroup/freezer"])
def test_the_kernels_directories_are_none_to_work_in(up, directory):
    done = up.program("sh", "-c", f"cd {directory} && exec {CANTLE} run --gpu 0.25 -- pwd")
    (line, *hints) = done.stderr.splitlines()
    assert done.returncode == 125 and done.stdout == "", done
    assert line.startswith("cantle: ") and f"working directory {directory} " in line and hints[0].startswith("hint: ")
    done = up.program("sh", "-c", f"cd {directory} && exec {CANTLE} submit --queue none -- pwd")
    ended = up.wait_state(done.stdout.strip(), "completed", "failed")
    assert ended["state"] == "failed" and f"working directory {directory} " in ended["reason"], ended


def test_the_working_directory_is_entered_by_its_path(up, tmp_path):
    """One that is hidden from tasks leads nowhere; any other is as it was."""
    done = up.program("sh", "-c", f"cd {STATE[0]} && exec {CANTLE} run --gpu 0.25 -- ls")
    assert (done.returncode, done.stdout) == (0, "")
    (tmp_path / "a file").write_text("")
    done = up.program("sh", "-c", f"cd {tmp_path} && exec {CANTLE} run --gpu 0.25 -- ls")
    assert "a file" in done.stdout.splitlines(), done


@pytest.mark.parametrize("queue", ["none", "gpu"])
def test_programs_that_start_others_do_not_answer(up, queue):
    """An engine's socket is worth as much as root on the machine."""
    path = "/run/docker.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        os.chdir(up.machine.path("/run"))
        engine.bind("docker.sock")
        os.chdir("/")
        engine.listen()
        assert of(up.program(*LOOK, path).stdout)["found"][path] == "answers"
        ended, printed = in_task(up, queue, *LOOK, path)
        assert ended["state"] == "completed" and of(printed)["found"][path] == 0, printed


def test_a_task_without_a_gpu_cannot_stop_its_agent(up):
    agent = up.background[0].pid
    script = f"kill -STOP {agent}; echo code $?"
    ended, printed = in_task(up, "none", "sh", "-c", script)
    assert "code 1" in printed and ended["state"] == "completed", printed
    state = subprocess.run(["ps", "-o", "state=", str(agent)], capture_output=True, text=True, check=True).stdout
    assert not state.startswith("T")


HONEST = {
    "data loaders": [
        sys.executable, "-c",
        "import multiprocessing as m, multiprocessing.shared_memory as s\n"
        "a = s.SharedMemory(create=True, size=1 << 20); a.unlink()\n"
        "with m.Pool(4) as pool: assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))",
    ],
    "threads": [sys.executable, "-c", "import threading as t; [(x := t.Thread(target=print)).start() or x.join() for _ in range(9)]"],
    "a debugger": [
        sys.executable, "-c",
        "import ctypes, os, signal, time\n"
        "c = os.fork()\n"
        "if not c: time.sleep(60)\n"
        "assert ctypes.CDLL(None).ptrace(0x4206, c, 0, 0) == 0; os.kill(c, signal.SIGKILL)",
    ],
    "another user": ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "true"],
    "a user namespace": ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
    "a virtual environment": ["sh", "-c", f"{sys.executable} -m venv --without-pip $HOME/venv && $HOME/venv/bin/python -c ''"],
    "ssh": ["sh", "-c", "! command -v ssh-keygen || ssh-keygen -q -t ed25519 -N '' -f $HOME/key"],
    "git": ["sh", "-c", "! command -v git || git init -q $HOME/repository"],
    "a compiler": ["sh", "-c", "echo 'int main(void) { return 0; }' | gcc -x c -o $HOME/out - && $HOME/out"],
    "a terminal": ["script", "-qec", "true", "/dev/null"],
    "output by name": ["sh", "-c", "echo out >/dev/stdout && echo err >/dev/stderr"],
    "a server": [sys.executable, "-c", "import socket as s; a = s.create_server(('127.0.0.1', 0)); s.create_connection(a.getsockname())"],
}  # fmt: skip


@pytest.mark.parametrize("queue", ["none", "gpu"])
def test_honest_programs_work(up, queue):
    tasks = {name: up.submit(queue, *command) for name, command in HONEST.items()}
    ended = {name: up.wait_state(task, "completed", "failed")["state"] for name, task in tasks.items()}
    failed = {name: up.output(tasks[name]) for name, state in ended.items() if state != "completed"}
    assert not failed
