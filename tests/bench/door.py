#!/usr/bin/env python3
"""The cost of clients without keys for a server: 20,000 idle connections, 2,000 half requests, 30 bodies of 60 MiB, 2,100 connections from each of two
networks that send a byte now and then, all without keys; and of one member's lists over 60 large tasks. Prints the growth of its
memory and how long requests of others take meanwhile; fails above 50 MiB. Needs root, for the machine. `door.py [CONNECTIONS]`
"""

import base64
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import re
import resource
import socket
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from conftest import Cantle, wait_until  # noqa: E402

LIMIT_MIB, SLOW_S = 50, 2
HALF = b"POST /tasks.create HTTP/1.1\r\nHost: x\r\nContent-Le"
LARGE = 60 << 20
# Both networks have all that one may have. Closed connections are opened again.
NETWORKS, OF_EACH, DRIP_S = ("127.0.0.1", "127.0.1.1"), 2100, 40
# The longest documents that a server takes (an older one took 15 MB), and what others wait for at most.
TASKS, COMMENTS, LISTS_S, MEANWHILE_S = 60, (15_000_000, 4_000_000), 20, 1


def resident_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


class Peak:
    """The most that a process holds while this lasts."""

    def __init__(self, pid):
        self.pid, self.most, self.over = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.over.is_set():
            self.most = max(self.most, resident_mib(self.pid))
            time.sleep(0.02)

    def end(self):
        self.over.set()
        self.thread.join()
        return self.most


def connect(address, send=b""):
    """A connection without a reader: a full server lets it wait, or closes it."""
    stream = socket.socket()
    stream.setblocking(False)
    stream.connect_ex(address)
    if send:
        with contextlib.suppress(OSError):
            stream.settimeout(0.2)
            stream.sendall(send)
    return stream


def send_large(address):
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=20) as stream:
        stream.sendall(b"POST /tasks.create HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LARGE)
        for _ in range(LARGE >> 20):
            stream.sendall(b"x" * (1 << 20))


def request(address, source="127.0.0.2"):
    began = time.monotonic()
    # A user at another address.
    user = http.client.HTTPConnection(*address, timeout=30, source_address=(source, 0))
    user.request("GET", "/healthz")
    user.getresponse().read()
    user.close()
    return time.monotonic() - began


def slowest_request(address, times=20):
    return max(request(address) for _ in range(times))


def drip(address, over):
    """Keeps connections of two networks, on each of which a head is never finished."""
    held = {}
    while not over.is_set():
        for key in ((source, n) for source in NETWORKS for n in range(OF_EACH)):
            if over.is_set():
                break
            try:
                if key not in held:
                    held[key] = socket.socket()
                    held[key].bind((key[0], 0))
                    held[key].settimeout(1)
                    held[key].connect(address)
                    held[key].sendall(HALF)
                else:
                    held[key].sendall(b"x")
            except OSError:
                held.pop(key).close()
        over.wait(1)
    for stream in held.values():
        stream.close()


def dripping(address):
    """How long a user of a third network waits meanwhile at most."""
    # A process of its own, so that only the server is shared with the user.
    over, took = multiprocessing.Event(), []
    attacker = multiprocessing.Process(target=drip, args=(address, over))
    attacker.start()
    end = time.monotonic() + DRIP_S
    while time.monotonic() < end:
        took.append(request(address, "127.0.2.1"))
        time.sleep(0.2)
    over.set()
    attacker.join()
    print(f"door: {len(NETWORKS)} networks with {OF_EACH} connections each that drip for {DRIP_S} s: a user's slowest of {len(took)} requests {max(took) * 1000:.0f} ms")
    return max(took) <= SLOW_S


class Keys:
    """A user's key pair, as calls of the API."""

    def __init__(self, address, pair):
        self.address = address
        self.headers = {"Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode()}

    def call(self, endpoint, **body):
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", f"/{endpoint}", json.dumps(body), self.headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def timed(self, endpoint, **body):
        began = time.monotonic()
        status, _ = self.call(endpoint, **body)
        return time.monotonic() - began, status


def make_large(member):
    """Tasks with comments as long as the server takes them."""
    for length in COMMENTS:
        body = {"type": "training", "comment": "x" * length}
        if member.call("tasks.create", name="first", **body)[0] == 200:
            for n in range(TASKS - 1):
                member.call("tasks.create", name=f"large {n}", **body)
            return length
    raise SystemExit("door: the server takes no large task")


def lists(address, pid, admin):
    """One member's lists that read all of its large tasks: how long a stranger and a viewer wait meanwhile at most."""
    people = {}
    for name, role in (("door-member", "member"), ("door-viewer", "viewer")):
        _, made = admin.call("cantle.add_user", name=name, role=role)
        people[name] = Keys(address, (made["data"]["access_key"], made["data"]["secret_key"]))
    member, viewer = people["door-member"], people["door-viewer"]
    length = make_large(member)
    one = viewer.call("tasks.get_all_ex", page_size=1, only_fields=["name"])[1]["data"]["tasks"][0]["id"]
    over, took, peak = threading.Event(), [], Peak(pid)
    before = resident_mib(pid)

    def attack(body):
        while not over.is_set():
            took.append(member.timed("tasks.get_all_ex", **body))

    pattern = {"_any_": {"pattern": "(?:.*q){9}z", "fields": ["comment"]}}
    threads = [threading.Thread(target=attack, args=(body,)) for body in (pattern, pattern, {}, {"search_text": "zzz"})]
    for thread in threads:
        thread.start()
    stranger, listed, end = [], [], time.monotonic() + LISTS_S
    while time.monotonic() < end:
        stranger.append(request(address, "127.0.0.2"))
        waited, status = viewer.timed("tasks.get_all_ex", id=[one], only_fields=["name"])
        assert status == 200, status
        listed.append(waited)
        time.sleep(0.1)
    over.set()
    for thread in threads:
        thread.join()
    slowest = max(stranger), max(listed)
    print(f"door: {len(threads)} lists of one member at a time over {TASKS} tasks of {length / 1e6:.0f} MB: {len(took)} answers in {LISTS_S} s, the slowest "
          f"after {max(wait for wait, _ in took):.1f} s, {peak.end() - before:.0f} MiB more at most; meanwhile a stranger's slowest of {len(stranger)} requests "
          f"{slowest[0] * 1000:.0f} ms, a viewer's slowest of {len(listed)} lists {slowest[1] * 1000:.0f} ms")
    return max(slowest) <= MEANWHILE_S


def measure(name, pid, address, attack):
    before, peak = resident_mib(pid), Peak(pid)
    held = attack()
    slowest = slowest_request(address)
    most = peak.end() - before
    for stream in held:
        stream.close()
    time.sleep(3)
    kept = resident_mib(pid) - before
    print(f"door: {name}: {most:.0f} MiB more at most, {kept:.0f} MiB 3 s after their end; a user's slowest request {slowest * 1000:.0f} ms")
    return most <= LIMIT_MIB and slowest <= SLOW_S


def large_bodies(address):
    threads = [threading.Thread(target=send_large, args=(address,)) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return []


def main():
    if os.geteuid() != 0:
        print("door: skipped, it needs root")
        return True
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as home:
        cantle = Cantle(pathlib.Path(home), None)
        try:
            cantle.start("server", "--listen", "127.0.0.1:0", log="server.log")
            wait_until(lambda: re.search(r"127.0.0.1:\d+", cantle.log("server.log")), 60, lambda: cantle.log("server.log"))
            # nsenter has become the server.
            pid = cantle.background[0].pid
            address = ("127.0.0.1", int(re.search(r"127.0.0.1:(\d+)", cantle.log("server.log"))[1]))
            slowest_request(address)
            (keys,) = cantle.json("credentials")
            pair = keys["access_key"], keys["secret_key"]
            count = min(int(sys.argv[1]) if sys.argv[1:] else 20_000, most - 200)
            done = [
                measure(f"{count} idle connections", pid, address, lambda: [connect(address) for _ in range(count)]),
                measure("2,000 half requests", pid, address, lambda: [connect(address, HALF) for _ in range(2000)]),
                measure("30 bodies of 60 MiB", pid, address, lambda: large_bodies(address)),
                dripping(address),
                lists(address, pid, Keys(address, pair)),
            ]
        finally:
            cantle.stop()
    print(f"door: at most {LIMIT_MIB} MiB and {SLOW_S} s promised; load {os.getloadavg()[0]:.0f}")
    return all(done)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
