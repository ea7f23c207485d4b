"""`cantle run`: one task now, here, in its slice."""

import json
import os
import signal

import pytest

from conftest import CANTLE, FILL, NOBODY, wait_until

GIB = 1 << 30
MIB = 1 << 20


@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        (["--gpu", "0.5"], [20 * GIB]),
        (["--gpu", "0.333"], [int(40 * GIB * 0.333) // (2 * MIB) * 2 * MIB]),
        (["--gpu-memory", "4G"], [4 * 10**9 // (2 * MIB) * 2 * MIB]),
        (["--gpu-memory", "4Gi"], [4 * GIB]),
        (["--gpus", "2"], [40 * GIB, 40 * GIB]),
    ],
)
def test_a_slice_is_all_there_is(cantle, flags, limits):
    done = cantle.cli("run", *flags, "--", *FILL)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["total_bytes"] for record in records] == limits
    assert all(record["refused_code"] == 2 and record["free_bytes"] == 0 for record in records)
    assert cantle.used() == [0, 0, 0], "everything is given back"


def test_exit_codes_are_the_tasks(cantle):
    for code in (0, 1, 7, 42):
        cantle.cli("run", "--gpu", "0.5", "--", "sh", "-c", f"exit {code}", code=code)
    cantle.cli("run", "--gpu", "0.5", "--", "sh", "-c", "kill -TERM $$", code=128 + signal.SIGTERM)
    cantle.cli("run", "--gpu", "0.5", "--", "/no/such/program", code=127)
    cantle.cli("run", "--gpu", "0.5", "--", "/etc/passwd", code=126)


def test_no_room_says_so(cantle):
    holder = cantle.start("run", "--gpus", "3", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: all(used == 40 * GIB for used in cantle.used()), 60, lambda: cantle.used())
    refused = cantle.cli("run", "--gpu", "0.5", "--", "true", code=6)
    assert "needs 0.5 GPU, nothing free" in refused.stderr
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=60)
    cantle.cli("run", "--gpu", "0.5", "--", "true")


def test_waits_for_room(cantle, tmp_path):
    cantle.start("run", "--gpus", "3", "--", "sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.2; done", log="holder.log")
    wait_until(lambda: "enforced" in cantle.log("holder.log"), 60, lambda: cantle.log("holder.log"))
    cantle.cli("run", "--gpu", "0.5", "--", "true", code=6)
    waiter = cantle.start("run", "--timeout", "120", "--gpu", "0.5", "--", "true", log="waiter.log")
    wait_until(lambda: "waiting: needs 0.5 GPU, nothing free" in cantle.log("waiter.log"), 60, lambda: cantle.log("waiter.log"))
    assert waiter.poll() is None
    (tmp_path / "end").touch()
    assert waiter.wait(timeout=120) == 0, cantle.log("waiter.log")


def test_killed_supervisor_leaves_the_task_limited_and_its_slice_taken(cantle):
    holder = cantle.start("run", "--gpus", "3", "--", *FILL, "--hold", "600", log="holder.log")
    wait_until(lambda: all(used == 40 * GIB for used in cantle.used()), 60, lambda: cantle.used())
    holder.kill()
    holder.wait()
    assert cantle.used() == [40 * GIB] * 3, "the task goes on"
    cantle.cli("run", "--gpu", "0.5", "--", "true", code=6)
    (pid,) = {process["pid"] for gpu in cantle.truth() for process in gpu["processes"]}
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: cantle.used() == [0] * 3, 60, "the task ends")
    cantle.cli("run", "--timeout", "60", "--gpu", "0.5", "--", "true")


def test_limits_inside(cantle):
    done = cantle.cli("run", "--gpu", "0.25", "--", CANTLE, "-o", "json", "limits")
    (item,) = json.loads(done.stdout)["items"]
    assert item["memory_limit_bytes"] == 10 * GIB
    assert item["memory_used_bytes"] == 0
    assert item["enforced"] is True
    outside = cantle.cli("limits", code=7)
    assert "not inside" in outside.stderr


def test_says_how_it_enforces(cantle):
    done = cantle.cli("run", "--gpu", "0.5", "--", "true")
    assert "mount namespace" in done.stderr and "20 GiB" in done.stderr


def test_without_root_the_preload_library_enforces(cantle, home_of_nobody):
    command = [CANTLE, "run", "--gpu", "0.5", "--", "/usr/bin/python3", FILL[1]]
    done = cantle.program(*command, user=NOBODY, env=cantle.env | {"HOME": str(home_of_nobody)})
    assert done.returncode == 0, done.stderr
    assert "LD_PRELOAD" in done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["total_bytes"] for record in records] == [20 * GIB]
    assert records[0]["refused_code"] == 2




def test_a_program_gets_the_signals_for_checkpoints(cantle, tmp_path):
    for name in ("USR1", "USR2"):
        saved = tmp_path / name
        script = f"trap 'touch {saved}; exit 7' {name}; touch {saved}.ready; while :; do sleep 0.1; done"
        run = cantle.start("run", "--gpu", "0.5", "--", "sh", "-c", script, log=f"{name}.log")
        wait_until((tmp_path / f"{name}.ready").exists, 60, lambda name=name: cantle.log(f"{name}.log"))
        run.send_signal(getattr(signal, f"SIG{name}"))
        assert run.wait(timeout=60) == 7, cantle.log(f"{name}.log")
        assert saved.exists()
