#!/usr/bin/env python3
"""The table of faults: each is injected, and what is seen is compared with what is expected.

    faults.py [--short] [--only N,N…] [--jobs N] [--write FILE]

`--short`: those of the gate. `--write`: the table as a page of the documentation.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from place import CANTLE, ROOT, Lacking, installation  # noqa: E402
from table import FAULTS  # noqa: E402

# A single check; the slowest takes a few minutes on a busy machine.
CHECK_S = 900
# One thread builds, the others wait for it.
BUILDING = threading.Lock()
COMMAND = ".venv/bin/python tests/faults/faults.py"


@functools.cache
def built_tests():
    """The test programs of the workspace, by package and target, as cargo built them."""
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    programs = {}
    for message in map(json.loads, done.stdout.splitlines()):
        if message.get("executable") and message.get("profile", {}).get("test"):
            package = re.split(r"[#@/]", message["package_id"].removesuffix("#" + message["package_id"].split("#")[-1]))[-1]
            kind = "lib" if "lib" in message["target"]["kind"] else message["target"]["name"]
            folder = pathlib.Path(message["manifest_path"]).parent
            programs[f"cantle-{package}/{kind}"] = (message["executable"], folder)
    return programs


def rust_test(name):
    target, test = name.split(": ")
    with BUILDING:
        program, folder = built_tests()[target]
    # The tests of crates/node/agent/tests/node have a runner of their own, which filters by a part of the name.
    words = [program, test] if target == "cantle-agent/node" else [program, test, "--exact", "--nocapture"]
    env = os.environ | {"CARGO_MANIFEST_DIR": str(folder)}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=CHECK_S)
    said = done.stdout + done.stderr
    if done.returncode != 0 or not re.search(r"\b1 passed[;,] (0 failed)", said):
        raise AssertionError(f"{name}: {last_line(said)}")
    figures = [line for line in done.stdout.splitlines() if re.search(r"\d", line) and not line.startswith(("test ", "running", "1 passed"))]
    return figures[-1].strip() if figures else "as expected"


def pytest_test(name):
    if name.startswith("tests/cluster/"):
        path, test = name.split("::")
        command = ["tests/cluster/run.sh", "-k", test]
    else:
        command = [".venv/bin/python", "-m", "pytest", "-q", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_S)
    said = last_line(done.stdout + done.stderr)
    if done.returncode == 77 or done.returncode == 0 and " passed" not in said:
        raise Lacking(f"{name}: {said}")
    if done.returncode != 0:
        raise AssertionError(f"{name}: {said}")
    return re.sub(r" in [\d.]+s.*", "", said)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was said"


def run_check(check):
    if callable(check):
        return check()
    if check.startswith("tests/"):
        return pytest_test(check)
    return rust_test(check)


def run(fault, short):
    """Whether the line is green, and what was seen."""
    seen, began = [], time.monotonic()
    checks = [check for check in fault.checks if callable(check)] if short else fault.checks
    try:
        for check in checks:
            seen.append(run_check(check))
        green = True
    except (AssertionError, Lacking, subprocess.SubprocessError, KeyError) as error:
        green = False
        seen.append(f"{type(error).__name__}: {error}" if not isinstance(error, Lacking | AssertionError) else str(error))
    except Exception:
        green = False
        seen.append(last_line(traceback.format_exc()))
    seen = "; ".join(dict.fromkeys(seen)).replace("\n", " ")
    print(f"{fault.number:2} {'green' if green else 'RED  '} {time.monotonic() - began:6.1f} s  {fault.injected} | {fault.expected} | {seen}", flush=True)
    return green, seen


def name_of(check):
    return f"`tests/faults`: `{check.__name__}`" if callable(check) else f"`{check}`"


def page(outcomes, command):
    green = sum(green for green, _ in outcomes.values())
    today = datetime.datetime.now(datetime.UTC).date()
    rows = [
        f"| {fault.number} | {fault.injected} | {fault.expected} | {'yes' if outcomes[fault][0] else '**no**'}: {outcomes[fault][1].replace('|', '/')[:400]} "
        f"| {'<br>'.join(map(name_of, fault.checks))} |"
        for fault in outcomes
    ]
    return f"""# Faults, and what happens

This page is for operators who want to know what cantle does when something breaks. Each row is a fault that a program injects, with the
expected and the observed result. To repeat it, you need root, a built tree (`make build`), and what `tests/setup.sh` installs.

`tests/faults/faults.py` generates this page. {today}, on simulated GPUs: {green} of {len(outcomes)} as expected.

    {command}

<!-- vale off -->

| | injected | expected | seen | checked by |
|---|---|---|---|---|
{chr(10).join(rows)}

<!-- vale on -->
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if os.geteuid() != 0 or not CANTLE.exists():
        print(f"needs root and {CANTLE.relative_to(ROOT)} (make build)")
        return 77
    only = {int(number) for number in args.only.split(",") if number}
    faults = [fault for fault in FAULTS if (fault.short or not args.short) and (not only or fault.number in only)]
    # The files of the driver are laid out by the first machine; all others share them.
    with installation():
        pass
    # They wait more than they compute.
    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = dict(zip(faults, pool.map(lambda fault: run(fault, args.short), faults)))
    if args.write:
        args.write.write_text(page(outcomes, f"{COMMAND} --write {args.write}"))
    green = sum(green for green, _ in outcomes.values())
    # Once more at the end, where logs that are cut short have them.
    for fault, (is_green, seen) in outcomes.items():
        if not is_green:
            print(f"{fault.number:2} RED: {seen}")
    print(f"{green} passed, {len(outcomes) - green} failed, 0 skipped")
    return 0 if green == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
