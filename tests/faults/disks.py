"""Disks that are full or lose what was written, clocks that jump, files of another version."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

from place import CANTLE, FILL, GIB, HERE, ROOT, Program, check, compiled, installation, killed, own_port, until

HALF = ("--gpu", "0.5")


def power_loss(cuts=60):
    """The write-ahead log of a server at work, cut off at random bytes or with a page of garbage: what it had not synced."""
    with installation() as cantle, tempfile.TemporaryDirectory() as folder:
        number = own_port()
        server = cantle.up("--queue", "half=0.5", port=number)
        names = [f"t{n:03}" for n in range(12)]
        for name in names:
            cantle.cli("submit", "--queue", "half", "--name", name, "--", "true")
        state = cantle.machine.path("/var/lib/cantle/server")
        killed(server)
        copy, dice, found = pathlib.Path(folder), random.Random(7), []
        for cut in range(cuts):
            for file in ("cantle.db", "cantle.db-wal"):
                shutil.copy(state / file, copy / file)
            (copy / "cantle.db-shm").unlink(missing_ok=True)
            wal = copy / "cantle.db-wal"
            at = dice.randrange(wal.stat().st_size)
            with wal.open("r+b") as log:
                if cut % 2:
                    log.truncate(at)
                else:
                    log.seek(at)
                    log.write(dice.randbytes(4096))
            with contextlib.closing(sqlite3.connect(copy / "cantle.db")) as database:
                check(database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"cut at byte {at}: not intact")
                tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                rows = database.execute("SELECT name FROM tasks ORDER BY created_us").fetchall() if "tasks" in tables else []
            left = [row[0] for row in rows]
            check(left == names[: len(left)], f"cut at byte {at}: {left}")
            found.append(len(left))
        # A server starts from what is left of half of it.
        with (state / "cantle.db-wal").open("r+b") as log:
            log.truncate((state / "cantle.db-wal").stat().st_size // 2)
        (state / "cantle.db-shm").unlink(missing_ok=True)
        cantle.up("--queue", "half=0.5", port=number)
        task = cantle.submit("half", "true")
        until(lambda: cantle.task(task)["state"] == "completed", lambda: cantle.task(task))
        spread = f"between {min(found)} and {max(found)} of {len(names)} tasks"
        return f"{cuts} cuts and tears: each time an intact database with the first tasks in order ({spread}); the server goes on"


def clock_jumps():
    with installation() as cantle:
        library, offset = compiled(HERE / "clock.c", cantle.home), cantle.home / "offset"
        offset.write_text("0")
        cantle.env |= {"LD_PRELOAD": str(library), "CANTLE_TEST_CLOCK": str(offset)}
        cantle.up("--queue", "half=0.5")
        running = cantle.submit("half", "sleep", "3600")
        until(lambda: cantle.task(running)["state"] == "in_progress", lambda: cantle.task(running))
        done = []
        for jump in ("3600", "-3600", "86400", "0"):
            offset.write_text(jump)
            done.append(cantle.submit("half", "true"))
            until(lambda: cantle.task(done[-1])["state"] == "completed", lambda: f"jump of {jump} s: {cantle.task(done[-1])}")
            check(cantle.task(running)["state"] == "in_progress", f"jump of {jump} s: {cantle.task(running)}")
        cantle.cli("stop", running)
        until(lambda: cantle.task(running)["state"] in ("stopped", "aborted"), lambda: cantle.task(running))
        return f"jumps of +1 h, -2 h, +25 h, -24 h: the running task stays, {len(done)} new ones complete, a stop is obeyed"


def skewed_clocks():
    """The agent's clock is an hour ahead of its server's."""
    with installation() as cantle:
        library, offset = compiled(HERE / "clock.c", cantle.home), cantle.home / "offset"
        offset.write_text("3600")
        cantle.start("server", "--listen", "127.0.0.1:0", log="server.log")
        until(lambda: re.search(r"http://127.0.0.1:\d+", cantle.log("server.log")), lambda: cantle.log("server.log"))
        cantle.env |= {"LD_PRELOAD": str(library), "CANTLE_TEST_CLOCK": str(offset)}
        cantle.start("daemon", "--dynamic-gpus", "--gpus", "0", "--queue", "half=0.5", "--create-queue", log="daemon.log")
        until(lambda: "serving" in cantle.log("daemon.log"), lambda: cantle.log("daemon.log"))
        del cantle.env["LD_PRELOAD"]
        tasks = [cantle.submit("half", "sleep", "3") for _ in range(4)]
        until(lambda: all(cantle.task(task)["state"] == "completed" for task in tasks), lambda: [cantle.task(task)["state"] for task in tasks])
        starts = [event for event in cantle.json("events") if event["kind"] == "start"]
        check(len(starts) == len(tasks), starts)
        return f"agent one hour ahead: {len(tasks)} tasks run once each, none is given back or taken twice"


def full_disk():
    """The node's directory is on a disk that is full."""
    with installation() as cantle:
        cantle.program("sh", "-c", "mkdir -p /run/cantle/node && mount -t tmpfs -o size=3m tmpfs /run/cantle/node", check=True)
        running = Program(cantle, "--gpu", "0.25")
        cantle.program("sh", "-c", "cat /dev/zero >/run/cantle/node/filler")
        refused = cantle.cli("run", *HALF, "--", "true", code=None)
        first = refused.stderr.splitlines()[0] if refused.stderr else "nothing"
        check(0 < refused.returncode < 128, f"exit code {refused.returncode}, {first}")
        check(running.ask("take 1024") == "0" and cantle.used()[0] > GIB, "the task that runs is refused")
        cantle.program("sh", "-c", "rm /run/cantle/node/filler", check=True)
        cantle.cli("run", *HALF, "--", "true")
        left = cantle.program("sh", "-c", "ls /run/cantle/node/leases /run/cantle/node/slices").stdout
        check(".new" not in left, left)
        running.end()
        return f"exit code {refused.returncode}: {first.removeprefix('cantle: ')}; what runs goes on, and with room again all is well"


def other_version():
    """cantle is replaced while a task runs: its libraries by those of an unknown version."""
    with installation() as cantle:
        copy = cantle.home / "c"
        cantle.program("sh", "-c", f"mkdir {copy} && cp -r {ROOT}/dist/bin {ROOT}/dist/lib {copy}/", check=True)
        own = copy / "bin/cantle"
        command = cantle.machine.command(own, "-q", "run", "--gpu-memory", "4Gi", "--", sys.executable, Program.SCRIPT)
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, env=cantle.env, stdin=pipe, stdout=pipe, text=True)
        child.stdout.readline()
        script = f"for f in $(find {copy}/lib/cantle/shim -name '*.so*' -type f); do echo broken >$f.new; mv $f.new $f; done"
        cantle.program("sh", "-c", script, check=True)
        refused = cantle.program(own, "run", *HALF, "--", *FILL)
        check(refused.returncode != 0 and cantle.used()[0] < GIB, f"{refused.stdout} {refused.stderr}")
        answers = []
        for size in ("2048", "4096"):
            print("take", size, file=child.stdin, flush=True)
            answers.append(child.stdout.readline().strip())
        check(answers == ["0", "2"], answers)
        child.kill()
        child.communicate()
        return f"what runs keeps its limit (2 GiB given, 4 GiB refused); a new task does not run: exit code {refused.returncode}"
