"""Our agent and its tasks, as several tests need them."""

import json

from conftest import CANTLE, wait_until

NODE = {"CLEARML_WORKER_NAME": "node1"}


def daemon(server, *words, gpus="0-2", log="daemon.log", machine=None, **env):
    """`cantle daemon` with these words, once it serves."""
    argv = [CANTLE, "daemon", "--dynamic-gpus", "--gpus", gpus, *words, "--server", server.url]
    child = server.start(argv, log, machine, **NODE | env)
    pattern = "node1:dgpu*"
    workers = lambda: server.api("workers.get_all", last_seen=60, worker_pattern=pattern)["workers"]
    wait_until(lambda: workers() or child.poll() is not None, 60, "the daemon")
    assert child.poll() is None, server.text(log)
    return child


def command(server, name, *argv):
    """A task that is a plain command, as `cantle submit` makes it, by ClearML's own API."""
    param = {"section": "cantle", "name": "command", "value": json.dumps(argv), "type": "str", "description": ""}
    hyperparams = {"cantle": {"command": param}}
    return server.api("tasks.create", name=name, type="training", hyperparams=hyperparams)["id"]


def ended(server, *tasks, seconds=120):
    final = ("completed", "failed", "stopped")
    wait_until(lambda: all(server.status(task) in final for task in tasks), seconds, "the end")
    return [server.status(task) for task in tasks]
