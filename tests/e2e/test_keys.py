"""The keys of an agent are replaced while it works: docs/guide/tls-and-login.md, line by line. Nothing stops, and the old pair ends."""

import json
import re

from conftest import CANTLE, wait_until


def write(file, url, keys):
    file.touch(mode=0o600)
    file.write_text(json.dumps({"url": url, "access_key": keys["access_key"], "secret_key": keys["secret_key"]}))


def test_the_keys_of_an_agent_are_replaced_while_it_works(cantle, tmp_path):
    cantle.start("server", "--listen", "127.0.0.1:0", log="server.log")
    wait_until(lambda: "server is up" in cantle.log("server.log"), 120, lambda: cantle.log("server.log"))
    url = re.search(r"http://127\.0\.0\.1:\d+", cantle.log("server.log"))[0]
    (first,) = cantle.json("users", "add", "gpu2", "--role", "agent", "--node", "gpu2")
    file = tmp_path / "agent.json"
    write(file, url, first)
    words = ["--worker-name", "gpu2", "--gpus", "0", "--dynamic-gpus", "--create-queue", "--queue", "q=0.25"]
    agent = cantle.start("daemon", "--keys", file, "--state", tmp_path / "agent", *words, log="agent.log")
    wait_until(lambda: "serving" in cantle.log("agent.log"), 120, lambda: cantle.log("agent.log"))
    over = tmp_path / "over"
    script = f'n=0; until [ -e {over} ]; do n=$((n + 1)); echo "line $n"; sleep 0.2; done; echo "lines: $n"'
    task = cantle.submit("q", "sh", "-c", script)
    cantle.wait_state(task, "in_progress")

    (second,) = cantle.json("users", "key", "add", "gpu2")
    write(file, url, second)
    wait_until(lambda: "new keys are in use" in cantle.log("agent.log"), 60, lambda: cantle.log("agent.log"))
    used = lambda: {key["access_key"]: key["last_used"] for key in cantle.json("users", "key", "list", "gpu2")}  # noqa: E731
    wait_until(lambda: used()[second["access_key"]], 60, used)
    cantle.cli("users", "key", "revoke", first["access_key"])
    lines = lambda: cantle.output(task).count("\n")  # noqa: E731
    before = lines()
    wait_until(lambda: lines() > before + 10, 60, lines)
    later = cantle.submit("q", "echo", "after the old pair")
    cantle.wait_state(later, "completed")
    over.touch()
    cantle.wait_state(task, "completed")
    last = cantle.output(task).split()[-1]
    assert cantle.output(task).count("line ") == int(last), "no line is lost"
    assert agent.poll() is None and "refused" not in cantle.log("agent.log"), cantle.log("agent.log")
    # The negative control: the old pair is no longer good.
    env = {"CLEARML_API_ACCESS_KEY": first["access_key"], "CLEARML_API_SECRET_KEY": first["secret_key"], "CANTLE_SERVER": url}
    assert cantle.program(CANTLE, "tasks", env=cantle.env | env).returncode == 4
