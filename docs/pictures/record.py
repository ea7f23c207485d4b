#!/usr/bin/env python3
"""Records the terminal session that the README shows: `docs/pictures/record.py`, as root, with dist/ built.

It runs the commands below in one shell, on simulated GPUs, in namespaces of its own, and keeps what they print, with the times, in session.json.
The pictures session-light.svg and session-dark.svg have nothing but that. tests/style/test_pictures.py compares them with the record, and
tests/e2e/test_session.py runs the commands again and compares what they print."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
from draw import PALETTES  # noqa: E402

FILL = "python3 examples/fill_slice.py --hold 60"
# Each command with what the shell waits for after it: a line of its output, for one in the background, or its end.
COMMANDS = [
    ("cantle up --sim-gpus 2xA100-40GB --queue half=0.5 whole=1 --quiet &", "secret key"),
    (f"cantle submit --queue half --name train -- {FILL}", None),
    (f"cantle submit --queue half --name tune -- {FILL}", None),
    (f"cantle submit --queue whole --name big -- {FILL}", None),
    (f"cantle submit --queue whole --name next -- {FILL}", None),
    ("sleep 5", None),
    ("cantle gpus", None),
    ("cantle tasks", None),
]
# Before the looks, and not shown: on a busy machine five seconds are not enough for three tasks to start and to fill their slices.
SETTLED = (
    "for each in $(seq 300); do [ $(cantle gpus | grep -c '40 GiB / 40 GiB / 40 GiB') = 2 ] && cantle tasks | grep -q 'nothing free (2 of 2 in use)' && break;"
    " sleep 0.2; done; echo END-OF-COMMAND"
)
# The keys of a server are not shown, even if it is gone. A terminal, which this is not, would show the secret one.
KEYS = re.compile(r"(access key|secret key) (not shown: .*|[0-9A-Za-z]+)")
# A machine called box, whose network is loopback only, and without any files of cantle.
NAMESPACES = ["unshare", "--uts", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
FRESH = 'hostname box; ip link set lo up; mkdir -p /var/lib/cantle; for d in /run /var/lib/cantle; do mount -t tmpfs tmpfs $d; done; mount -t proc proc /proc; exec "$@"'


def run():
    """The session: a list of (seconds since the start, line), commands and what they printed."""
    with tempfile.TemporaryDirectory(prefix="cantle-session-") as home:
        env = {"PATH": f"{ROOT / 'dist/bin'}:{os.environ['PATH']}", "HOME": home, "PYTHONUNBUFFERED": "1"}
        shell = subprocess.Popen([*NAMESPACES, FRESH, "sh", "bash", "--norc"], cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        began, session = time.monotonic(), []
        for command, awaited in COMMANDS:
            if command == "cantle gpus":
                print(SETTLED, file=shell.stdin, flush=True)
                assert "END-OF-COMMAND\n" in iter(shell.stdout.readline, "")
            session.append((time.monotonic() - began, f"$ {command}"))
            print(command, "" if awaited else "; echo END-OF-COMMAND", sep="\n" if awaited else "", file=shell.stdin, flush=True)
            for line in shell.stdout:
                if line == "END-OF-COMMAND\n":
                    break
                session.append((time.monotonic() - began, line.rstrip()))
                if awaited and awaited in line:
                    break
            assert shell.poll() is None, session
        shell.kill()
        shell.wait()
    return [(round(seconds, 1), KEYS.sub(r"\1 …", line)) for seconds, line in session]


# Pixels, and seconds for each line.
SIZE, WIDTH, STEP, READING = 13, 7.83, 19, 0.4


def svg(session, colors):
    """One line after the other, not faster than they came. Where nothing moves, all of them."""
    columns = max(len(line) for _, line in session)
    width, height = round(columns * WIDTH) + 40, len(session) * STEP + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{SIZE}">',
        "<title>A terminal session: four tasks share two simulated GPUs, and one waits</title>",
        "<style>text{white-space:pre}@media(prefers-reduced-motion:no-preference){text{animation:shown .1s both}}@keyframes shown{from{opacity:0}}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{colors["box"]}" stroke="{colors["line"]}"/>',
        *(f'<circle cx="{x}" cy="20" r="5" fill="{colors["line"]}"/>' for x in (20, 36, 52)),
    ]
    shown = 0.0
    for at, (seconds, line) in enumerate(session):
        shown = round(max(shown + READING, seconds), 1)
        color, weight = (colors["text"], "bold") if line.startswith("$ ") else (colors["quiet"], "normal")
        lines.append(f'<text x="20" y="{52 + at * STEP}" fill="{color}" font-weight="{weight}" style="animation-delay:{shown}s">{escape(line, quote=False)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def pictures(session):
    return {f"session-{theme}.svg": svg(session, colors) for theme, colors in PALETTES.items()}


def recorded():
    return [tuple(entry) for entry in json.loads((HERE / "session.json").read_text())]


if __name__ == "__main__":
    session = run()
    (HERE / "session.json").write_text("[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in session) + "\n]\n")
    for name, content in pictures(session).items():
        (HERE / name).write_text(content)
