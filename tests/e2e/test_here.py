"""`cantle ps`, `gpus` and `top` on a machine without a server, and the server that other users of its machine find."""

import json
import pathlib
import subprocess

from conftest import CANTLE, NOBODY, hold_until, wait_until


def held(cantle, gpu, tmp_path, name, user=None):
    """A slice of `cantle run` that uses memory until the file is there."""
    over = tmp_path / f"{name}.over"
    words = [CANTLE, "run", "--gpu", gpu, "--", *hold_until(over)]
    child = subprocess.Popen(cantle.machine.command(*words, user=user), env=cantle.env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cantle.background.append(child)
    return over


def test_the_slices_of_a_machine_without_a_server(cantle, tmp_path):
    assert cantle.json("ps") == []
    over = held(cantle, "0.25", tmp_path, "one")
    wait_until(lambda: [s for s in cantle.json("ps") if s["memory_used_bytes"] > 0], 60, lambda: cantle.json("ps"))
    (one,) = cantle.json("ps")
    assert one["milli"] == 250 and one["memory_limit_bytes"] == 10 << 30 and one["user"] == "root"
    # The pids are the machine's: what kill and nvidia-smi take.
    (pid,) = one["pids"]
    assert "fill_slice" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    table = cantle.cli("ps").stdout
    assert table.splitlines()[0].split() == ["NAME", "USER", "GPU", "SLICE", "USED", "/", "LIMIT", "PIDS", "AGE", "QUEUE"]
    assert str(pid) in table and " 0.25 " in table

    done = cantle.cli("gpus")
    assert "no server: this machine" in done.stderr
    head, *rows = done.stdout.splitlines()
    assert {"BUSY", "TEMP", "POWER", "TASKS"} <= set(head.split()) and len(rows) == 3
    assert " °C" in rows[0] and " W" in rows[0] and "[AA......]" in rows[0]
    gpus = cantle.json("gpus")
    assert [gpu["allocated_milli"] for gpu in gpus] == [250, 0, 0] and all(gpu["celsius"] for gpu in gpus)
    assert f"pid {pid}" in cantle.cli("top", "--once").stdout

    # A server that is named has to answer: this machine is no substitute for it.
    assert "no keys for http://127.0.0.1:9" in cantle.cli("gpus", "--server", "http://127.0.0.1:9", code=4).stderr
    over.touch()
    wait_until(lambda: cantle.json("ps") == [], 60, "the end of the slice")


def test_other_users_of_the_machine_find_its_server(cantle, home_of_nobody):
    def as_nobody(*words):
        env = {"PATH": cantle.env["PATH"], "HOME": str(home_of_nobody)}
        return cantle.program(CANTLE, *words, user=NOBODY, env=env)

    assert "no server: none ran" in as_nobody("tasks").stderr
    child = cantle.up()
    url = cantle.log().split("cantle is up: ")[1].split()[0]
    told = as_nobody("tasks")
    assert told.returncode == 4 and told.stderr.startswith(f"cantle: no keys for {url}\n"), told.stderr
    assert "cantle users add NAME" in told.stderr
    (keys,) = json.loads(cantle.cli("-o", "json", "users", "add", "stu", "--role", "viewer").stdout)["items"]
    env = {"PATH": cantle.env["PATH"], "HOME": str(home_of_nobody)}
    env |= {"CLEARML_API_ACCESS_KEY": keys["access_key"], "CLEARML_API_SECRET_KEY": keys["secret_key"]}
    assert cantle.program(CANTLE, "tasks", user=NOBODY, env=env).returncode == 0
    # It is not found any more once it has ended.
    child.terminate()
    child.wait(60)
    assert "no server: none ran" in as_nobody("tasks").stderr
