#!/usr/bin/env python3
"""Enforcement on a real GPU: each check has NVML as a witness outside the slice, and the program alone as negative control.

The result is written after each check, and the most informative checks come first: the results stay if the suite ends early.
"""

import argparse
import datetime
import json
import pathlib
import signal
import sys
import tempfile
import time
import traceback

import access
import containers
import memory
import report
import suspend
import tenants
from bench import Bench, Skip
from cards import each_card_has_its_own_slices, whole_cards_are_all_there_is
from checks import (
    a_context_alone_is_no_offense,
    a_driver_opened_past_the_slice_is_ended,
    a_reset_gives_everything_back,
    a_slice_is_all_there_is,
    each_context_is_charged,
    every_path_is_held,
    forks_and_ipc_work_as_outside,
    free_memory_after_a_sibling_ended,
    functions_looked_up_are_hooked,
    kill_gives_everything_back,
    limits_says_enforced,
    no_capture_is_disturbed,
    nvidia_smi_shows_the_slice,
    programs_can_be_linked_inside,
    the_card_is_idle,
    two_halves_both_take_all,
    without_cantle_nothing_refuses,
)
from costs import calls_of_the_driver, start_of_a_program
from frameworks import (
    ALLOCATORS,
    computes,
    fills,
    jobs_may_begin_with_a_context,
    stays,
    steps_take_as_long_in_a_slice,
    two_ranks_in_one_slice,
)
from shares import SHARES

# No check may take so long that the others do not come about.
CHECK_SECONDS = 240

# The most informative checks come first. The plans say what they tell.
CHECKS = [
    the_card_is_idle,
    a_slice_is_all_there_is,
    without_cantle_nothing_refuses,
    # What the first run found, corrected since.
    every_path_is_held,
    calls_of_the_driver,
    start_of_a_program,
    each_context_is_charged,
    no_capture_is_disturbed,
    # What has never been seen on a card.
    *memory.CHECKS,
    *suspend.CHECKS,
    tenants.a_client_of_mps_is_killed,
    steps_take_as_long_in_a_slice,
    tenants.two_servers_of_models,
    *memory.LATER,
    # What a framework needs.
    fills("torch", ALLOCATORS["torch"]),
    two_halves_both_take_all,
    free_memory_after_a_sibling_ended,
    a_context_alone_is_no_offense,
    a_driver_opened_past_the_slice_is_ended,
    two_ranks_in_one_slice,
    forks_and_ipc_work_as_outside,
    a_reset_gives_everything_back,
    kill_gives_everything_back,
    stays("graph", "graph"),
    *(computes(f"a_graph_of_{name}", "captured", env) for name, env in ALLOCATORS.items()),
    *(fills(name, env) for name, env in ALLOCATORS.items() if name != "torch"),
    # What has passed once, and seldom changes.
    jobs_may_begin_with_a_context,
    each_card_has_its_own_slices,
    whole_cards_are_all_there_is,
    programs_can_be_linked_inside,
    functions_looked_up_are_hooked,
    nvidia_smi_shows_the_slice,
    limits_says_enforced,
    stays("cupy", "cupy"),
    stays("jax", "jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    computes("triton", "triton"),
    *SHARES,
]

class Overtime(Exception):
    pass


def overtime(_signal, _frame):
    raise Overtime("the time for this check is over")


def judge(check, bench, seconds):
    began = time.monotonic()
    bench.time_left = lambda: max(1, began + seconds - time.monotonic())
    # A time limit ends a check that waits for a line that never comes.
    signal.alarm(int(seconds) + 1)
    try:
        outcome, detail = "passed", check(bench)
    except Skip as why:
        outcome, detail = "skipped", {"why": str(why)}
    except Exception as error:  # a check that breaks in any way has failed
        traceback.print_exc()
        outcome, detail = "failed", {"why": "".join(traceback.format_exception_only(error)).strip()}
    finally:
        signal.alarm(0)
        bench.end_children()
    print(f"{outcome:<8} {check.__name__} {json.dumps(detail)}", flush=True)
    return {"check": check.__name__, "outcome": outcome, "seconds": round(time.monotonic() - began, 2), **detail}


def planned(names):
    """Each check with the second at which it would begin: so the checks of a run of 3, 6 or 9 minutes are the first ones. The seconds are those of the newest
    run on a real GPU."""
    runs = sorted((access.ROOT / "docs/results").glob("[0-9]*-driver*[0-9].json"))
    guessed = {**memory.GUESSED, **memory.LATER, **tenants.GUESSED, **suspend.GUESSED, steps_take_as_long_in_a_slice: 30}
    took = {check.__name__: seconds for check, seconds in guessed.items()}
    for result in json.loads(runs[-1].read_text())["results"] if runs else []:
        took[result["check"]] = result["seconds"]
    began = 0
    for name in names:
        yield f"{name:<62} {int(began // 60)}:{int(began % 60):02}"
        began += took.get(name, 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAMES", help="these checks, joined by commas; --list names them; suspend: all about suspension")
    parser.add_argument("--list", action="store_true", help="name the checks in the order in which they run, and when each would begin")
    parser.add_argument("--minutes", type=float, default=9, help="checks that would begin later are not run [default: 9]")
    parser.add_argument("--out", type=pathlib.Path, default="docs/results", help="folder of the results [default: docs/results]")
    parser.add_argument("--containers", metavar="IMAGE", help="also check slices in containers of this image, which has Python 3")
    args = parser.parse_args()
    args.checks = CHECKS + (containers.checks(args.containers) if args.containers else [])
    names = [check.__name__ for check in args.checks]
    if args.list:
        print("\n".join(planned(names)))
        sys.exit(0)
    args.only = args.only.split(",") if args.only else names
    if "suspend" in args.only:
        args.only += [check.__name__ for check in suspend.CHECKS]
        args.only.remove("suspend")
    unknown = [name for name in args.only if name not in names]
    if unknown:
        parser.error(f"there is no check {', '.join(unknown)}; --list names them")
    return args


def main():
    args, began = arguments(), time.monotonic()
    signal.signal(signal.SIGALRM, overtime)
    chosen = [check for check in args.checks if check.__name__ in args.only]
    with tempfile.TemporaryDirectory(prefix="cantle-gpu-") as home:
        bench = Bench(home)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        version = bench.run("--version").stdout.strip()
        record = {"date": now, "simulated": bench.nvml.simulated, **bench.nvml.describe(), "cantle": version}
        record |= {"results": [], "not_run": [check.__name__ for check in chosen]}
        for check in chosen:
            left = args.minutes * 60 - (time.monotonic() - began)
            if left < 5:
                break
            record["results"].append(judge(check, bench, min(left, CHECK_SECONDS)))
            record["not_run"].remove(check.__name__)
            path = report.write(args.out, record)
    outcomes = [result["outcome"] for result in record["results"]] + ["not run"] * len(record["not_run"])
    print(f"results: {path}")
    print(", ".join(f"{outcomes.count(word)} {word}" for word in ("passed", "failed", "skipped", "not run")))
    return 1 if {"failed", "not run"} & set(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
