"""Processes that are killed, stopped, multiplied or take too much."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

from place import A100, CANTLE, FILL, GIB, LIMIT_S, MIB, Lacking, Program, check, installation, killed, own_port, processes_of, until

HALF = ("--gpu", "0.5")
LIMIT = 4 * GIB


def killed_between_start_and_record():
    """The agent dies as soon as the task's first line runs: its lease may not name the first process yet."""
    with installation() as cantle:
        runs, unnamed, port_of = cantle.home / "runs", 0, own_port()
        agent = cantle.up("--queue", "half=0.5", port=port_of)
        tasks = []
        for number in range(1, 4):
            tasks.append(cantle.submit("half", "sh", "-c", f"echo {number} >> {runs}; sleep 2"))
            until(lambda: runs.exists() and len(runs.read_text().split()) == number, "the task's first line")
            killed(agent)
            leases = "".join(path.read_text() for path in cantle.machine.path("/run/cantle/node/leases").glob("*.json"))
            unnamed += '"leader"' not in leases
            agent = cantle.up("--queue", "half=0.5", port=port_of)
            until(lambda: cantle.task(tasks[-1])["state"] == "completed", lambda: cantle.task(tasks[-1]))
        check(runs.read_text().split() == ["1", "2", "3"], runs.read_text())
        return f"3 kills, {unnamed} of them before the lease named the process; 3 tasks, each ran once, all completed"


def killed_task():
    with installation() as cantle:
        cantle.up("--queue", "half=0.5")
        tasks = [cantle.submit("half", *FILL, "--hold", "600") for _ in range(2)]
        until(lambda: cantle.used() == [A100], cantle.used)
        first = cantle.truth()[0]["processes"][0]["pid"]
        os.kill(first, signal.SIGKILL)
        took = until(lambda: cantle.used() == [A100 // 2], cantle.used)
        freed = until(lambda: sum(gpu["allocated_milli"] for gpu in cantle.json("gpus")) == 500, lambda: cantle.json("gpus"))
        until(lambda: sorted(cantle.task(task)["state"] for task in tasks) == ["failed", "in_progress"], lambda: cantle.json("tasks"))
        (lost,) = [cantle.task(task) for task in tasks if cantle.task(task)["state"] == "failed"]
        check(lost["exit_code"] == 137, lost)
        return f"memory back after {took:.2f} s, slice after {took + freed:.2f} s, exit code 137; the sibling holds its 20 GiB"


def stopped_in_the_middle():
    """Stopped at 200 moments while it takes and frees; its neighbor in the same slice takes and frees all the time."""
    with installation() as cantle, contextlib.ExitStack() as stack:
        home = str(cantle.home)
        both = f"{sys.executable} {Program.SCRIPT} <{home}/a >{home}/a.out & exec {sys.executable} {Program.SCRIPT}"
        os.mkfifo(f"{home}/a")
        words = cantle.machine.command(CANTLE, "-q", "run", *HALF, "--", "sh", "-c", both)
        pipe = subprocess.PIPE
        child = subprocess.Popen(words, env=cantle.env, stdin=pipe, stdout=pipe, text=True)
        stack.callback(child.communicate)
        other = stack.enter_context(open(f"{home}/a", "w"))
        peer_says = child.stdout.readline()
        check("code 0" in peer_says, peer_says)
        print("churn", file=other, flush=True)
        until(lambda: "churning" in pathlib.Path(f"{home}/a.out").read_text(), "the first process")
        pids = [found["pid"] for found in cantle.truth()[0]["processes"]]
        churner = next(pid for pid in pids if os.readlink(f"/proc/{pid}/fd/1").endswith("a.out"))
        stack.callback(os.kill, churner, signal.SIGKILL)
        (peer,) = [pid for pid in pids if pid != churner]
        slowest, in_driver = 0, 0
        for number in range(200):
            time.sleep(number * 7 % 13 / 5000)
            os.kill(churner, signal.SIGSTOP)
            began = time.monotonic()
            print("take 1\nfree", file=child.stdin, flush=True)
            where, answered = None, select.select([child.stdout], [], [], 2)[0]
            while not answered and not is_of_driver(where := waits_on(peer)) and time.monotonic() < began + LIMIT_S:
                # It may wait for nothing but a core.
                where, answered = None, select.select([child.stdout], [], [], 2)[0]
            in_driver += where is not None
            os.kill(churner, signal.SIGCONT)
            check(where is None or is_of_driver(where), f"it waits on {where}")
            check([child.stdout.readline().strip() for _ in range(2)] == ["0", "0"], f"refused in round {number}")
            slowest = slowest if where else max(slowest, time.monotonic() - began)
        stand_in = f"; {in_driver} times it was stopped inside of the simulated driver's own lock, as no kernel driver can be" if in_driver else ""
        return f"stopped 200 times while it allocated; the other was never refused, slowest pair {slowest * 1000:.0f} ms{stand_in}"


def is_of_driver(where):
    """The simulated driver's own lock."""
    return where.startswith("/dev/nvidia") or where.endswith("sim/state")


def waits_on(pid):
    """The mapped file on a word of which a process waits in the kernel; `running` if it does not wait."""
    call = pathlib.Path(f"/proc/{pid}/syscall").read_text().split()
    if call[0] == "running":
        return "running"
    address = int(call[1], 16)
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split(maxsplit=5)[-1]
    return f"call {call[0]}"


def same_pid_twice():
    """Tasks have pid namespaces of their own, so both have the same pid."""
    with installation() as cantle:
        cantle.up("--queue", "half=0.5")
        tasks = [cantle.submit("half", *FILL, "--hold", "600") for _ in range(2)]
        until(lambda: cantle.used() == [A100], cantle.used)
        until(lambda: all(found["memory_used_bytes"] == A100 // 2 for found in slices(cantle)), lambda: slices(cantle))
        inner = [process["pid"] for found in slices(cantle) for process in found["processes"]]
        check(len(inner) == 2 and len(set(inner)) == 1, f"their pids inside: {inner}")
        os.kill(cantle.truth()[0]["processes"][0]["pid"], signal.SIGKILL)
        until(lambda: len(slices(cantle)) == 1, lambda: slices(cantle))
        until(lambda: cantle.used() == [A100 // 2], cantle.used)
        until(lambda: [found["memory_used_bytes"] for found in slices(cantle)] == [A100 // 2], lambda: slices(cantle))
        check(len(tasks) == 2, tasks)
        return f"both have pid {inner[0]} inside and 20 GiB counted each; after one was killed the other's count is exact"


def slices(cantle):
    return [found for gpu in cantle.json("gpus") for found in gpu["slices"]]


def fork_after_init():
    with installation() as cantle:
        program = Program(cantle, "--gpu-memory", "4Gi")
        check(program.ask("take 1024") == "0", "1 GiB is refused")
        used, code = cantle.used(), program.ask("fork")
        check(code != "0", "the child could allocate")
        check(cantle.used() == used, f"{cantle.used()} after the fork, {used} before")
        check(program.ask("free") == "0" and program.ask("take 1024") == "0", "the parent's accounting is not intact")
        program.end()
        return f"the child's allocation returns CUDA error {code}; the driver's count is unchanged, the parent goes on"


def too_many_processes(count=1100):
    """More processes than an accounting region has slots."""
    with installation() as cantle:
        neighbor = Program(cantle, "--gpu-memory", "4Gi")
        bomb = Program(cantle, "--gpu-memory", "4Gi", argument=("bomb", str(count)))
        codes = " ".join(bomb.hello)
        check(codes.startswith("0:") and " " in codes, f"{count} processes, codes {codes}")
        check(neighbor.ask("take 1024") == "0", "the neighbor is refused")
        used = cantle.used()[0]
        check(used <= 2 * LIMIT, f"{codes}: two slices of 4 GiB hold {used / GIB:.1f} GiB")
        print(file=bomb.child.stdin, flush=True)
        until(lambda: bomb.child.poll() is not None, "the end of the many")
        after = Program(cantle, "--gpu-memory", "4Gi")
        check(after.ask("take 1024") == "0", "refused afterwards")
        for program in (neighbor, after):
            program.end()
        return f"{count} processes in one slice: code and count {codes}, {used / GIB:.1f} GiB of two slices of 4 GiB held; nobody was ended"


def out_of_memory():
    """The kernel ends a task for main memory."""
    group = memory_group()
    if group is None:
        raise Lacking("no memory cgroup can be made here")
    try:
        with installation() as cantle:
            sibling = Program(cantle, "--gpu", "0.25")
            before = ("sh", "-c", f"echo $$ > {group}/cgroup.procs; exec \"$@\"", "sh")
            program = Program(cantle, "--gpu", "0.25", before=before)
            check(program.ask("take 1024") == "0", "1 GiB is refused")
            used = cantle.used()
            program.child.stdin.write("eat 512\n")
            program.child.stdin.flush()
            code = program.child.wait(120)
            took = until(lambda: cantle.used()[0] < used[0] - GIB + MIB, cantle.used)
            check(code == 137, f"exit code {code}: {program.child.stderr.read()}")
            check(sibling.ask("take 1024") == "0", "the sibling is refused")
            sibling.end()
            return f"exit code 137, its GPU memory back {took:.2f} s later, the sibling goes on"
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def memory_group():
    """A group for main memory below the test's own, of cgroup v1; None where there is none."""
    lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for _, controllers, path in lines if controllers == "memory"), None)
    if own is None:
        return None
    group = pathlib.Path(f"/sys/fs/cgroup/memory{own}/cantle-faults-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(256 * MIB))
    except OSError:
        return None
    return group


def lost_gpu():
    """One GPU of two is lost while a task runs on the other."""
    with installation("2xA100-40GB") as cantle:
        cantle.up("--queue", "one=1")
        first = cantle.submit("one", *FILL, "--hold", "600")
        until(lambda: max(cantle.used()) == A100, cantle.used)
        lost = cantle.used().index(0)
        cantle.machine.faults(f"* gpu={lost} error=15\n")
        time.sleep(1)
        waiting = cantle.submit("one", "true")
        time.sleep(2)
        check(cantle.task(first)["state"] == "in_progress" and max(cantle.used()) == A100, "the task on the other GPU")
        state = cantle.task(waiting)["state"]
        check(state == "queued", f"a task was given the lost GPU: {state}")
        cantle.machine.faults("")
        until(lambda: cantle.task(waiting)["state"] == "completed", lambda: cantle.task(waiting))
        return "the task on the other GPU goes on, none is given the lost one; it serves again when it answers"


def no_driver():
    with installation(None) as cantle:
        done = cantle.cli("up", "--listen", "127.0.0.1:0", "--queue", "half=0.5", code=None)
        check(done.returncode == 7 and "no NVIDIA driver found" in done.stderr, f"{done.returncode} {done.stderr}")
        return f"exit code 7: {done.stderr.splitlines()[0].removeprefix('cantle: ')}"


def hardware_xid():
    with installation() as cantle:
        cantle.up("--queue", "half=0.5")
        running = cantle.submit("half", "sleep", "600")
        cantle.wait_state(running, "in_progress", seconds=60)
        cantle.machine.faults("xid gpu=0 code=13 once\n")
        until(lambda: not xids_left(cantle), "the driver's report is read")
        ended = cantle.submit("half", "true")
        cantle.wait_state(ended, "completed", seconds=60)
        cantle.machine.faults("xid gpu=0 code=79 once\n")
        until(lambda: not xids_left(cantle), "the driver's report is read")
        waits = cantle.submit("half", "true")
        time.sleep(3)
        check(cantle.task(waits)["state"] == "queued", cantle.task(waits))
        check(cantle.task(running)["state"] == "in_progress", cantle.task(running))
        told = [event["message"] for event in cantle.json("events") if "Xid" in event["message"]]
        check(len(told) == 2 and all("Xid 79 (GPU has fallen off the bus)" in line for line in told), told)
        check("Xid 79" in cantle.json("gpus")[0]["fault"], cantle.json("gpus"))
        cantle.cli("stop", running)
        cantle.wait_state(running, "stopped", seconds=60)
        released = cantle.cli("daemon", "--release-gpus").stdout
        os.kill(int(re.search(r"kill -USR1 (\d+)", released)[1]), signal.SIGUSR1)
        cantle.wait_state(waits, "completed", seconds=60)
        check("fault" not in cantle.json("gpus")[0], cantle.json("gpus"))
        return "after Xid 13 a task runs; after Xid 79 none starts, and the one that runs, the events and `cantle gpus` say why; released and taken again, the GPU serves"


def xids_left(cantle):
    return "xid" in cantle.machine.path("/var/lib/cantle/sim/faults").read_text()


def leaders(cantle):
    """The first process of each task; all others of a task's pid namespace end with it."""
    leases = [json.loads(path.read_text()) for path in cantle.machine.path("/run/cantle/node/leases").glob("*.json")]
    return [lease["leader"]["pid"] for lease in leases if lease.get("leader")]


def reboot():
    """All processes die at once, `/run` is empty, the boot has another id; the database is left."""
    with installation() as cantle:
        number = own_port()
        agent = cantle.up("--queue", "half=0.5", port=number)
        runs = cantle.home / "runs"
        running = cantle.submit("half", "sh", "-c", f"echo x >> {runs}; sleep 600")
        until(runs.exists, "the task's first line")
        until(lambda: leaders(cantle), "its lease names the first process")
        doomed = leaders(cantle)
        agent.kill()
        for pid in doomed + processes_of(cantle, "cantle"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()
        cantle.program("sh", "-c", "rm -rf /run/cantle/node; ls -A /run/cantle", check=True)
        cantle.up("--queue", "half=0.5", port=number)
        until(lambda: cantle.task(running)["state"] != "in_progress", lambda: cantle.task(running))
        lost, after = cantle.task(running), cantle.submit("half", "true")
        until(lambda: cantle.task(after)["state"] == "completed", lambda: cantle.task(after))
        until(lambda: slices(cantle) == [], lambda: slices(cantle))
        check(lost["state"] in ("failed", "queued"), lost)
        return f"the task that ran is {lost['state']} ({lost['reason']}), nothing is held, a new one completes"
