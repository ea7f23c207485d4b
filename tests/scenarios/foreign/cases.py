"""A case of a foreign table in cantle's terms, and the comparison of its expectation with what `cantle simulate` does."""

import pathlib
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field

EVENT = re.compile(r"^\s*[\d.]+  (start|stop|back|end) +(\S+)(?: on (\S+?):\S*)?")


class CannotSay(Exception):
    """A case for which cantle's scenarios have no words. The text is the reason, the same for all cases that it concerns."""


@dataclass
class Expected:
    """What the table expects of a task: `runs`, `waits`, or `stopped` (it ran, and was stopped). `node` is None if any will do.

    Tasks of one `alike` are interchangeable: the table expects a state of a number of them."""

    state: str
    node: str | None
    alike: str


@dataclass
class Case:
    """`where` is FILE:LINE. Either `cannot` says why there is no scenario, or `scenario` is its text."""

    where: str
    cannot: str = ""
    scenario: str = ""
    expected: dict[str, Expected] = field(default_factory=dict)


@dataclass
class Result:
    """`agree`, `node` (agrees about all but the node), `differ`, `refused` (the initial state is impossible) or `cannot`."""

    kind: str
    why: str = ""
    output: str = ""


def read(case, translate):
    """`translate` fills in the case, or raises CannotSay."""
    try:
        translate(case)
    except CannotSay as reason:
        case.cannot = str(reason)
    return case


def run(case, program):
    if case.cannot:
        return Result("cannot", case.cannot)
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "case.txt"
        file.write_text(case.scenario)
        done = subprocess.run([program, "simulate", file], capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    if " cannot run on " in output:
        return Result("refused", "the case begins with more on a node than fits there", output)
    if done.returncode:
        raise RuntimeError(f"{case.where}: cantle simulate refuses the scenario\n{case.scenario}\n{output}")
    return compare(case, output)


def outcome(output):
    """The nodes of the tasks that run in the end, and the tasks that were stopped."""
    runs, stopped = {}, set()
    for line in output.splitlines():
        found = EVENT.match(line)
        if not found:
            continue
        what, task, node = found.groups()
        if what == "start":
            runs[task] = node
        elif what == "stop":
            stopped.add(task)
        else:
            runs.pop(task, None)
    return runs, stopped


def compare(case, output):
    runs, stopped = outcome(output)
    want, got, nodes = Counter(), Counter(), Counter()
    for task, expected in case.expected.items():
        want[expected.alike, expected.state] += 1
        if expected.state == "runs":
            nodes[expected.alike, expected.node] += 1
        state = "runs" if task in runs else "waits"
        if task in stopped and is_stopped(case, expected, state):
            state = "stopped"
        got[expected.alike, state] += 1
        if state == "runs":
            nodes[expected.alike, runs[task]] -= 1
    if want != got:
        more = [f"{count} of {alike}: {state}" for (alike, state), count in sorted((got - want).items())]
        less = [f"{count} of {alike}: {state}" for (alike, state), count in sorted((want - got).items())]
        return Result("differ", f"expected {', '.join(less)}; cantle: {', '.join(more)}", output)
    anywhere = {alike for alike, node in nodes if node is None}
    other = [f"{alike} on {node}" for (alike, node), count in sorted(nodes.items(), key=str) if count < 0 and alike not in anywhere]
    return Result("node", f"cantle: {', '.join(other)}", output) if other else Result("agree", "", output)


def is_stopped(case, expected, state):
    """A task that was stopped counts as such where the table expects that of it, and also if it waits and is one of several alike."""
    of_alike = {other.state for other in case.expected.values() if other.alike == expected.alike}
    return expected.state == "stopped" or state == "waits" and "stopped" in of_alike
