"""`cantle forward` and `cantle notebook`: programs in tasks that are reached through the server, or on this machine."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from conftest import CANTLE, NOBODY, wait_until

QUEUE = ("--queue", "eighth=0.125", "none=none")
# Answers each connection with what it sent, in capitals; at a Unix socket of the task's, and at a port.
ECHO = """
import pathlib, socket, sys, threading
def serve(door):
    while True:
        guest, _ = door.accept()
        threading.Thread(target=talk, args=(guest,)).start()
def talk(guest):
    while piece := guest.recv(1 << 16):
        guest.sendall(piece.upper())
    guest.close()
unix = socket.socket(socket.AF_UNIX)
unix.bind(sys.argv[1]); unix.listen()
tcp = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(unix,)).start()
print("port", tcp.getsockname()[1], flush=True)
serve(tcp)
"""


def echo(cantle, queue="eighth"):
    """A task that listens, its id and the two places."""
    # The machine's own directory.
    path = "/run/echo.sock"
    task = cantle.submit(queue, sys.executable, "-c", ECHO, path, flags=("--name", "echo"))
    wait_until(lambda: "port" in cantle.output(task), 60, lambda: cantle.output(task))
    port = int(re.search(r"port (\d+)", cantle.output(task))[1])
    return task, port, path


def forwarded(cantle, *words, log="forward.log"):
    """The running command, and the ports of this machine that it opened."""
    child = cantle.start("forward", *words, log=log)
    count = len(words) - 1
    ports = lambda: re.findall(r"127\.0\.0\.1:(\d+) leads to", cantle.log(log))  # noqa: E731
    wait_until(lambda: len(ports()) == count or child.poll() is not None, 30, lambda: cantle.log(log))
    assert child.poll() is None, cantle.log(log)
    return child, [int(port) for port in ports()]


def send(client, text):
    with contextlib.suppress(OSError):
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)


def asked(cantle, port, text):
    """What a client on this machine gets; the machine's network is that of the test."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        # A client that only sends would wait for an answer that nobody takes.
        sender = threading.Thread(target=send, args=(client, text))
        sender.start()
        pieces = []
        # One that is refused may be reset: it has sent what nobody took.
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                pieces.append(piece)
        sender.join()
        return b"".join(pieces)


@pytest.mark.parametrize("queue", ["eighth", "none"])
def test_a_port_and_a_socket_of_a_task_are_reached(cantle, queue):
    cantle.up(*QUEUE)
    task, port, path = echo(cantle, queue)
    child, ports = forwarded(cantle, "echo", f"0:{port}", f"0:{path}")
    for local in ports:
        assert asked(cantle, local, b"hello") == b"HELLO"
        # Large pieces, both ways at the same time, and nothing is lost.
        many = bytes(range(97, 123)) * 400_000
        assert asked(cantle, local, many) == many.upper()
    # Beside each other.
    clients = [socket.create_connection(("127.0.0.1", ports[0]), timeout=60) for _ in range(12)]
    for number, client in enumerate(clients):
        client.sendall(b"n%d" % number)
    assert [client.recv(100) for client in clients] == [b"N%d" % number for number in range(12)]
    for client in clients:
        client.close()
    # It ends by itself when the task has ended.
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped")
    with socket.create_connection(("127.0.0.1", ports[0]), timeout=60) as client:
        client.recv(1)
    assert child.wait(timeout=60) == 8, cantle.log("forward.log")


def test_without_the_server_a_task_of_this_machine_is_reached_as_well(cantle):
    path = "/run/echo.sock"
    cantle.start("run", "--gpu", "0.25", "--", sys.executable, "-c", ECHO, path, log="echo.log")
    wait_until(lambda: "port" in cantle.log("echo.log"), 60, lambda: cantle.log("echo.log"))
    (task,) = cantle.json("ps")
    _, (local,) = forwarded(cantle, task["task"], f"0:{path}")
    assert asked(cantle, local, b"hello") == b"HELLO"


def test_where_nothing_listens_is_said_and_the_next_one_works(cantle):
    cantle.up(*QUEUE)
    _, port, path = echo(cantle)
    child, (wrong, right) = forwarded(cantle, "echo", f"0:{path}.not", f"0:{port}")
    assert asked(cantle, wrong, b"hello") == b""
    wait_until(lambda: f"cannot connect to {path}.not in the task: No such file" in cantle.log("forward.log"), 30, lambda: cantle.log("forward.log"))
    assert asked(cantle, right, b"hello") == b"HELLO"
    assert child.poll() is None


def test_what_cannot_be_forwarded_is_refused_in_one_line(cantle):
    cantle.up(*QUEUE)
    task, port, _ = echo(cantle, "none")
    for words, code, text in [
        (("echo", "0:0"), 2, "0 is not a port of the task"),
        (("echo", "host:80"), 2, '"host" is not a port'),
        (("nobody", "0:80"), 3, "there is no task nobody"),
        (("echo", f"{port}:{port}"), 8, f"cannot listen at 127.0.0.1:{port}"),
    ]:
        refused = cantle.cli("forward", *words, code=code)
        assert text in refused.stderr, refused.stderr


def test_a_viewer_reaches_no_task(cantle):
    """As with `cantle exec`: a viewer sees a task and does not enter it."""
    cantle.up(*QUEUE)
    _, port, _ = echo(cantle)
    keys = cantle.home / "viewer.json"
    keys.write_text(cantle.cli("-o", "json", "users", "add", "vera", "--role", "viewer").stdout)
    item = json.loads(keys.read_text())["items"][0]
    server = re.search(r"http://127\.0\.0\.1:\d+", cantle.log("up.log"))[0]
    env = cantle.env | {"CLEARML_API_ACCESS_KEY": item["access_key"], "CLEARML_API_SECRET_KEY": item["secret_key"], "CANTLE_SERVER": server}
    # Another user of the machine: for root, a task of its own is one of this machine.
    child = subprocess.Popen(cantle.machine.command(CANTLE, "forward", "echo", f"0:{port}", user=NOBODY), env=env, stderr=subprocess.PIPE, text=True)
    local = int(re.search(r":(\d+) leads to", child.stderr.readline())[1])
    assert asked(cantle, local, b"hello") == b""
    assert child.wait(timeout=60) == 4
    assert "vera" in child.stderr.read()


def notebook(cantle, *words, log="notebook.log"):
    child = cantle.start("notebook", "--port", "0", "--jupyter", shutil.which("jupyter"), *words, log=log)
    url = lambda: re.search(r"http://127\.0\.0\.1:(\d+)/(\w+)/lab\?token=(\w+)", cantle.log(log))  # noqa: E731
    wait_until(lambda: url() or child.poll() is not None, 180, lambda: cantle.log(log))
    assert child.poll() is None, cantle.log(log)
    return child, (int(url()[1]), url()[2]), url()[3]


def api(at, path, token, method="GET"):
    port, base = at
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request(method, f"/{base}/api/{path}", headers={"Authorization": f"token {token}"})
    answer = client.getresponse()
    return answer.status, json.loads(answer.read() or "{}")


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("jupyter"), reason="no jupyter in the PATH")
def test_a_notebook_is_a_task_with_an_address_here(cantle):
    cantle.up(*QUEUE)
    child, at, token = notebook(cantle, "--queue", "eighth", "--keep")
    assert api(at, "status", token)[0] == 200
    assert api(at, "contents", "wrong")[0] == 403
    (task,) = cantle.json("tasks")
    assert (task["name"], task["state"]) == ("notebook", "in_progress")
    # Neither the log nor the command line of the task has the token.
    assert token not in cantle.output(task["id"]) and token not in json.dumps(task)
    # A kernel runs in the slice.
    status, kernel = api(at, "kernels", token, "POST")
    assert status == 201
    wait_until(lambda: len(cantle.json("ps")) == 1, 30, lambda: cantle.json("ps"))
    child.send_signal(signal.SIGINT)
    child.wait(timeout=60)
    assert cantle.task(task["id"])["state"] == "in_progress"
    child, at, again = notebook(cantle, "--attach", "notebook", log="again.log")
    assert again == token and [one["id"] for one in api(at, "kernels", token)[1]] == [kernel["id"]]
    cantle.cli("stop", "notebook")
    assert child.wait(timeout=60) == 1 and "cantle logs" in cantle.log("again.log")


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("jupyter"), reason="no jupyter in the PATH")
def test_a_notebook_ends_with_its_command(cantle):
    cantle.up(*QUEUE)
    child, _, _ = notebook(cantle, "--queue", "eighth")
    (task,) = cantle.json("tasks")
    child.kill()
    cantle.wait_state(task["id"], "stopped")


def test_a_notebook_without_jupyter_says_so(cantle):
    cantle.up(*QUEUE)
    failed = cantle.cli("notebook", "--port", "0", "--queue", "eighth", "--jupyter", "/nowhere/jupyter", code=1)
    assert "there is no notebook in task" in failed.stderr and "--jupyter names the program on the node" in failed.stderr
    (task,) = cantle.json("tasks")
    assert cantle.wait_state(task["id"], "failed", "stopped")
