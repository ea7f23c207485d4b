"""The card, the witness outside of every slice, and cantle as it is without any setting."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

from nvml import Nvml

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
CANTLE = str(ROOT / "dist/bin/cantle")
FILL = [sys.executable, str(ROOT / "examples/fill_slice.py")]
MIB = 1 << 20
GIB = 1 << 30
NOT_INSTALLED = 3


class Skip(Exception):
    """The check can't run here; the text says why."""


class Bench:
    def __init__(self, home):
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("CANTLE_")} | {"HOME": home}
        self.nvml = Nvml()
        self.total = self.nvml.usable()
        # Programs of the check that runs; the ones that are left at its end are killed.
        self.children = []
        self.time_left = lambda: 120

    def part(self, fraction):
        return int(self.total * fraction) // (2 * MIB) * 2 * MIB

    def half(self):
        return self.part(0.5)

    def run(self, *words, code=0, **env):
        """Runs cantle to its end; its exit code has to be `code`."""
        child = self.start(*words, **env)
        out, errors = child.communicate(timeout=self.time_left())
        assert child.returncode == code, f"{words}: exit {child.returncode}: {errors[-2000:]}"
        return subprocess.CompletedProcess(words, code, out, errors)

    def start(self, *words, **env):
        return self.alone(CANTLE, *words, **env)

    def alone(self, *command, **env):
        """Starts a command without a slice: the negative control."""
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, env={**self.env, **env}, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.children.append(child)
        return child

    def job(self, name, *words, part=0.5, **env):
        """Starts a program of jobs.py in a part of the card, or (None) alone."""
        command = [sys.executable, str(HERE / "jobs.py"), name, *words]
        return self.alone(*command, **env) if part is None else self.start("run", "--quiet", "--gpu", str(part), "--", *command, **env)

    def last_record(self, child):
        """Lets it go on to its end, and gives the last thing that it said."""
        out, errors = child.communicate(timeout=self.time_left())
        if child.returncode == NOT_INSTALLED:
            raise Skip(errors.strip().splitlines()[-1])
        assert child.returncode == 0, f"exit {child.returncode}: {errors[-2000:]}"
        return json.loads(out.splitlines()[-1])

    def record(self, child):
        """The next thing it says; it waits for a line then."""
        line = child.stdout.readline()
        return json.loads(line) if line else self.last_record(child)

    def go_on(self, child):
        child.stdin.write("\n")
        child.stdin.flush()

    def end_children(self):
        """A task outlives a killed `cantle run`, with its slice: it is asked to stop first."""
        running = [child for child in self.children if child.poll() is None]
        for child in running:
            child.terminate()
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=15)
                continue
            child.kill()
            child.wait()
        self.children.clear()

    def used(self):
        """On all cards: a slice may be on any."""
        return sum(self.nvml.used())

    def settle(self, base):
        """Waits until no more than `base` is in use on the card."""
        deadline = time.monotonic() + 30
        while self.used() > base and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.used()

    @contextlib.contextmanager
    def watched(self):
        """Samples what is in use on the card at 50 Hz; gives a list whose maximum counts."""
        base, samples, stop = self.used(), [0], threading.Event()

        def sample():
            while not stop.wait(0.02):
                samples.append(self.used() - base)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            stop.set()
            thread.join()
