"""`--sim-gpus`, the newcomers' convenience: on a box without GPUs, one option on each command, everything else as documented."""

import json
import pathlib
import signal

import pytest

from conftest import CANTLE, FILL, FOUR_QUEUES, NOBODY, ROOT, wait_until
from machine import Witness
from test_documented_example import as_documented

GIB = 1 << 30
THREE = ["--sim-gpus", "3xA100-40GB"]
VARIABLES = "env | grep ^CANTLE_SIM || echo none"


@pytest.fixture
def box(make_cantle):
    """A box on which nothing has GPUs but what asks for simulated ones."""
    return make_cantle(None)


def held(child):
    """The driver's own record of each GPU, read from outside through the device that this process sees."""
    witness = Witness(f"/proc/{child.pid}/root")
    try:
        return [gpu["used_bytes"] for gpu in witness.truth()]
    finally:
        witness.end()


def truth(box, *options):
    return json.loads(box.cli("sim", "truth", "-o", "json", *options).stdout)["gpus"]


def one_line(done):
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, (done.stdout, done.stderr)
    return done.stderr


def start_holder(box, *flags):
    """A task that has filled its slice and keeps it."""
    holder = box.start("run", *THREE, *flags, "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: "refused_code" in box.log("holder.log"), 60, lambda: box.log("holder.log"))
    return holder


def end(child):
    child.send_signal(signal.SIGTERM)
    child.wait(timeout=60)


def test_without_it_there_are_none(box):
    """Negative control: all that the other tests see comes from the option."""
    assert "--sim-gpus 3xA100-40GB" in box.cli("run", "--gpu", "0.5", "--", "true", code=7).stderr
    assert not box.machine.path("/dev/nvidiactl").exists()


def test_run(box):
    done = box.cli("run", "--sim-gpus", "1xA100-40GB", "--gpu", "0.5", "--", *FILL)
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert record["total_bytes"] == 20 * GIB and record["refused_code"] == 2 and record["free_bytes"] == 0
    assert "mount namespace" in done.stderr
    assert not box.machine.path("/dev/nvidiactl").exists(), "the box itself is as it was"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_in_a_file_of_options(box, tmp_path, way):
    file = tmp_path / "options.toml"
    file.write_text('sim-gpus = "1xA100-40GB"\n[run]\ngpu = "0.5"\n')
    if way == "variable":
        box.env["CANTLE_CONFIG"] = str(file)
    done = box.cli(*(["--config", str(file)] if way == "option" else []), "run", "--", *FILL)
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert record["total_bytes"] == 20 * GIB and record["refused_code"] == 2


def test_up_and_what_needs_no_gpu(box):
    """Only the command that uses GPUs has the option; the others find the server."""
    up = box.up(*THREE, "--queue", "half=0.5", "dual=2", "--gpus", "0-2")
    half, dual = box.submit("half", *FILL, "--hold", "600"), box.submit("dual", *FILL, "--hold", "600")
    for task, limits in ((half, [20 * GIB]), (dual, [40 * GIB] * 2)):
        box.wait_state(task, "in_progress")
        wait_until(lambda t=task, n=len(limits): len(box.filled(t)) == n, 60, lambda t=task: box.output(t))
        assert [record["total_bytes"] for record in box.filled(task)] == limits
        assert all(record["refused_code"] == 2 for record in box.filled(task))
    assert sorted(held(up)) == [20 * GIB, 40 * GIB, 40 * GIB]
    assert [gpu["used_bytes"] for gpu in truth(box)] == held(up), "asked outside of the machine, with no option"
    box.cli("stop", half, dual)
    wait_until(lambda: held(up) == [0, 0, 0], 60, lambda: held(up))


def test_commands_share_the_gpus(box):
    holder = start_holder(box, "--gpus", "3")
    assert held(holder) == [40 * GIB] * 3
    assert "needs 0.5 GPU, nothing free" in box.cli("run", *THREE, "--gpu", "0.5", "--", "true", code=6).stderr
    uuids = [json.loads(line)["gpu"] for line in box.log("holder.log").splitlines() if line.startswith("{")]
    seen = truth(box, *THREE)
    assert [gpu["uuid"] for gpu in seen] == uuids and [gpu["used_bytes"] for gpu in seen] == [40 * GIB] * 3
    pids = {process["pid"] for gpu in seen for process in gpu["processes"]}
    assert len(pids) == 1 and "fill_slice" in pathlib.Path(f"/proc/{pids.pop()}/cmdline").read_text()
    end(holder)
    done = box.cli("run", *THREE, "--gpus", "3", "--", *FILL)
    assert [json.loads(line)["gpu"] for line in done.stdout.splitlines()] == uuids, "the same ones as before"


def test_other_gpus_only_when_nothing_runs_on_these(box):
    holder = start_holder(box, "--gpu", "0.5")
    other = ["--sim-gpus", "1xT4-16GB"]
    refused = one_line(box.cli("run", *other, "--gpu", "1", "--", "true", code=2))
    assert "3xA100-40GB" in refused and "1xT4-16GB" in refused
    assert sorted(held(holder)) == [0, 0, 20 * GIB], "nothing happened to them"
    end(holder)
    (record,) = [json.loads(line) for line in box.cli("run", *other, "--gpu", "1", "--", *FILL).stdout.splitlines()]
    assert 14 * GIB < record["total_bytes"] <= 16 * GIB
    assert [gpu["memory_bytes"] for gpu in truth(box)] == [record["total_bytes"]]


def test_no_truth_where_there_is_none(box):
    one_line(box.cli("sim", "truth", code=7))
    assert not box.machine.path("/var/lib/cantle/sim/state").exists(), "asking makes none"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_task_can_not_tell_that_its_gpus_are_simulated(box, way):
    if way == "variable":
        box.env |= {"CANTLE_SIM_GPUS": THREE[1]}
    flags = THREE if way == "option" else []
    assert box.cli("run", *flags, "--gpu", "0.5", "--", "sh", "-c", VARIABLES).stdout == "none\n"
    seen = box.cli("run", *flags, "--gpu", "0.5", "--", "sh", "-c", "ls /dev/nvidiactl; tr '\\0' '\\n' < /proc/$PPID/cmdline")
    assert "/dev/nvidiactl" in seen.stdout and "sim" not in seen.stdout
    box.up(*flags, "--queue", "half=0.5")
    task = box.submit("half", "sh", "-c", VARIABLES)
    box.wait_state(task, "completed")
    assert box.output(task).splitlines() == ["none"]


@pytest.mark.full
def test_demo_program_agrees(box):
    """`make demo` on a box without GPUs. It shows a newcomer what to type."""
    done = box.program(ROOT / "tests/demo.sh", timeout=600)
    assert as_documented(done)[0] == f"$ cantle up {' '.join(THREE)} --gpus 0-2 --queue {' '.join(FOUR_QUEUES)}"


@pytest.fixture
def visitor(box, home_of_nobody):
    """Runs a command as an ordinary user who has a home."""

    def run(*words, before=()):
        return box.program(*before, CANTLE, *words, user=NOBODY, env=box.env | {"HOME": str(home_of_nobody)})

    run.home = home_of_nobody
    return run


def test_an_ordinary_user(box, visitor):
    done = visitor("run", *THREE, "--gpu", "0.5", "--", "/usr/bin/python3", FILL[1])
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert record["total_bytes"] == 20 * GIB and record["refused_code"] == 2
    who = visitor("run", *THREE, "--gpu", "0.5", "--", "sh", "-c", f"id -u; grep CapEff /proc/self/status; {VARIABLES}")
    assert who.stdout.split() == [str(NOBODY), "CapEff:", "0" * 16, "none"]
    assert (visitor.home / ".local/state/cantle/sim/state").exists()
    assert not box.machine.path("/var/lib/cantle/sim/state").exists(), "root's place is not touched"


def test_root_of_a_user_namespace(box):
    """As in a container of LXC or of a rootless engine: it may mount, but make no device nodes."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    done = box.program(*namespace, CANTLE, "run", "--sim-gpus", "1xA100-40GB", "--gpu", "0.5", "--", *FILL)
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert record["total_bytes"] == 20 * GIB and record["refused_code"] == 2


def test_an_ordinary_user_without_user_namespaces_is_told(visitor):
    """As where the administrator has switched them off."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@"'
    switched_off = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--keep-caps", "--", "sh", "-c", script, "sh"]
    told = visitor("run", *THREE, "--gpu", "0.5", "--", "true", before=switched_off)
    assert told.returncode == 7 and "needs root or user namespaces" in one_line(told), told
