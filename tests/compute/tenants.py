"""Tenants that compete for a simulated GPU with time; the simulated driver's own count of GPU time is the witness.

A simulated GPU is a stand-in: it has queues, kernels that take time, and contexts in turns as the driver has them, and no caches."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import machine as machines  # noqa: E402
from machine import CANTLE, DIST, own_port  # noqa: E402, F401  the port for test_agent.py

STUB = DIST / "lib/cantle/sim/libcuda.so.1"
GATE = DIST / "lib/cantle/shim/gate/libcuda.so.1"


@contextlib.contextmanager
def load_program():
    """The program of load.c, where any user of a machine may run it."""
    with tempfile.TemporaryDirectory(prefix="cantle-load-") as folder:
        os.chmod(folder, 0o755)
        program = pathlib.Path(folder) / "load"
        done = subprocess.run(
            ["gcc", "-O2", "-Wall", "-Wextra", "-o", program, HERE / "load.c", STUB, "-lpthread"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        yield program


class Tenant:
    """`cantle run` with one slice, in which several copies of one program run."""

    def __init__(self, box, options, words, copies=1, under=()):
        self.box = box
        script = " & ".join([" ".join(map(str, words))] * copies) + " & wait"
        command = [CANTLE, "run", *options, "--", "sh", "-c", script] if options is not None else ["sh", "-c", script]
        self.process = subprocess.Popen(
            box.command(*under, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines = []
        for _ in range(copies):
            line = self.process.stdout.readline()
            assert line == "ready\n", line + self.process.stderr.read()

    def pids(self):
        """Its programs, by the pid that the simulated driver knows them by."""
        found, tree = [], [self.process.pid]
        while tree:
            pid = tree.pop()
            children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
            tree += children
            found += children
        return {int(pid) for pid in found}

    def result(self):
        out, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def end(self):
        if self.process.poll() is None:
            subprocess.run(["pkill", "-KILL", "-s", str(self.process.pid)])
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class Box:
    """A machine with one GPU or several, and the tenants on it."""

    def __init__(self, load, gpus="1xA100-40GB"):
        self.machine = machines.Machine(gpus)
        self.command, self.load, self.tenants = self.machine.command, load, []

    def tenant(self, gpu, mode, us, seconds=600, number=1, compute="fair", copies=1, more=(), words=(), repeat=1, forever=None, under=()):
        # What a killed tenant had is free a moment after its end.
        options = ["--gpu", gpu, "--compute", compute, "--timeout", "60", *more] if gpu else None
        command = [self.load, mode, us, seconds, number, *words]
        if repeat > 1:
            command = [f"for each in $(seq {repeat}); do", *command, "|| exit 1; done"]
        if forever:
            # From the moment in which this file exists. A tenant that is killed comes back at once.
            command = [f"echo ready; until [ -e {forever} ]; do sleep 0.5; done; while :; do", *command, "; done"]
        self.tenants.append(Tenant(self, options, command, copies, under))
        return self.tenants[-1]

    def had(self, tenants, seconds):
        """GPU time of each tenant in that time, in seconds, and how much time really passed: by the driver's count."""
        pids = [tenant.pids() for tenant in tenants]

        def look():
            asked, processes = time.monotonic(), self.machine.truth()[0]["processes"]
            # The driver was asked in between.
            at = (asked + time.monotonic()) / 2
            return at, [sum(p["gpu_time_us"] for p in processes if p["pid"] in of) / 1e6 for of in pids]

        began, before = look()
        time.sleep(seconds)
        ended, after = look()
        return [there - here for here, there in zip(before, after)], ended - began

    def shares(self, tenants, seconds):
        """Each tenant's part of the time that they had together, and the part of all time that this was."""
        had, passed = self.had(tenants, seconds)
        assert sum(had) > 0
        return [each / sum(had) for each in had], sum(had) / passed

    def eventually(self, holds, tenants, seconds=3, tries=12):
        """Measures again while it does not hold: where all processors are busy, threads wake up late. What the controls show is far
        beyond what that explains."""
        for _ in range(tries):
            shares, busy = self.shares(tenants, seconds)
            if holds(shares, busy):
                return
        raise AssertionError(f"shares {shares}, busy {busy}")

    def end(self):
        for tenant in self.tenants:
            tenant.end()
        self.machine.stop()
