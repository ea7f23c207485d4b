"""Machines of a page in one network: each has a root, processes, a network and a state directory of its own (tests/e2e/box.py). They find each
other by name in 10.9.8.0/24."""

import contextlib
import os
import subprocess
import sys

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/e2e"), str(ROOT / "tests/cluster")]
from box import Box  # noqa: E402


class Machines(contextlib.ExitStack):
    """`machines["db"]` is a Box; a name of several machines' addresses can be moved (`point`)."""

    def __init__(self, *names):
        super().__init__()
        self.boxes, self.hosts = {}, {}
        # Holds the network between them; it ends with its machines.
        self.hub = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link add br0 type bridge && ip link set br0 up && echo up && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.callback(self.hub.kill)
        assert self.hub.stdout.readline() == b"up\n"
        for name in names:
            self.add(name)

    def __getitem__(self, name):
        return self.boxes[name]

    def add(self, name):
        box = self.boxes[name] = Box(name=name)
        self.callback(box.end)
        address = f"10.9.8.{len(self.hosts) + 1}"
        port = f"v{len(self.hosts)}"
        add = f"ip link add {port} type veth peer name eth0 netns {box.shell.pid} && ip link set {port} master br0 up"
        subprocess.run(["nsenter", f"--target={self.hub.pid}", "--net", "sh", "-ec", add], check=True)
        box.run(f"ip address add {address}/24 dev eth0 && ip link set eth0 up")
        self.point(name, address)

    def point(self, name, address):
        """All machines find `name` at this address, or where another name leads."""
        self.hosts[name] = self.hosts.get(address, address)
        lines = "\n".join(["127.0.0.1 localhost", *(f"{at} {name}" for name, at in self.hosts.items())])
        for each in self.boxes.values():
            each.run(f"printf '{lines}\n' >/etc/hosts")

    def lose(self, name):
        """The machine is gone: nothing answers for it any more."""
        self.boxes.pop(name).end()
