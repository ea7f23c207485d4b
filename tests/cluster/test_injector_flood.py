"""Clients without any rights that open many connections to the injector and send most of a large body on each: the real program answers the
API server meanwhile, within a part of the memory that its chart gives it."""

import concurrent.futures
import pathlib
import socket
import ssl
import time

import pytest

from chart import rendered
from injector import NAME, pod
from test_injector import LABEL

CONNECTIONS = 60
MIB = 1 << 20
# Of the pod's limit.
PART = 0.5


def peak_mib(program):
    status = pathlib.Path(f"/proc/{program.child.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) >> 10


def limit_mib():
    (deployment,) = [thing for thing in rendered() if thing["kind"] == "Deployment" and thing["metadata"]["name"] == NAME]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return int(container["resources"]["limits"]["memory"].removesuffix("Mi"))


class Flood:
    """Connections from one address of this machine, which stay open as long as the injector lets them."""

    def __init__(self, port, address, announced, sent):
        self.port, self.address, self.announced, self.sent = port, address, announced, sent
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.open = []

    def connect(self, _=None):
        head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {self.announced}\r\n\r\n"
        try:
            plain = socket.create_connection(("127.0.0.1", self.port), 20, source_address=(self.address, 0))
            stream = self.context.wrap_socket(plain)
            self.open.append(stream)
            stream.sendall(head.encode())
            stream.sendall(b" " * self.sent)
        except OSError:
            # Refused, or closed for another one.
            return

    def close(self):
        for stream in self.open:
            stream.close()


@pytest.mark.parametrize("mib, missing", [(8, 100), (4, 100), (1, 1)])
def test_many_large_bodies_take_no_memory_and_no_time(injector, mib, missing):
    pid = injector.program.child.pid
    floods = [Flood(injector.port, f"127.0.0.{at}", mib * MIB - 50, mib * MIB - 50 - missing) for at in (2, 3, 4)]
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as threads:
        running = [threads.submit(flood.connect) for flood in floods for _ in range(CONNECTIONS)]
        slowest = 0
        until = time.monotonic() + 8
        while time.monotonic() < until:
            began = time.monotonic()
            made = injector.dry_run(pod({LABEL: "0.500"}))
            assert "cantle.dev/slice" in made["metadata"]["labels"]
            slowest = max(slowest, time.monotonic() - began)
        for flood in floods:
            flood.close()
        concurrent.futures.wait(running)
    assert injector.program.child.pid == pid and injector.program.child.poll() is None, injector.program.log()
    peak, limit = peak_mib(injector.program), limit_mib()
    print(f"{3 * CONNECTIONS} connections of {mib} MiB: peak {peak} MiB of {limit}, slowest creation {slowest:.2f} s")
    assert peak < PART * limit
