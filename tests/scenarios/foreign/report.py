"""Compares cantle's decisions with the tables of other schedulers, and prints a line for each case and a summary.

    python tests/scenarios/foreign/report.py --kai CHECKOUT --kueue CHECKOUT [--cantle PROGRAM] [--show FILE:LINE]

Nothing of those projects is in this repository: the tables are read from checkouts (also $CANTLE_KAI and $CANTLE_KUEUE). The exit
code is 1 if a case differs and `judged.py` does not say why."""

import argparse
import os
import pathlib
import sys
from collections import Counter

import cases
import judged
import kai
import kueue

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROJECTS = {"kai": kai.read, "kueue": kueue.read}


def verdict(project, where, result):
    """The cause of a difference, if it is judged; else the reason of the result."""
    if result.kind in ("differ", "node"):
        return judged.DIFFERENCES[project].get(where, "")
    return result.why


def compare(project, checkout, program):
    """(case, result, verdict) of each case."""
    for case in PROJECTS[project](checkout):
        result = cases.run(case, program)
        yield case, result, verdict(project, case.where, result)


def summary(project, rows):
    """The counts as lines of text."""
    kinds = Counter(result.kind for _, result, _ in rows)
    compared = kinds["agree"] + kinds["node"] + kinds["differ"]
    yield f"{project}: {len(rows)} cases read, {compared} compared: {kinds['agree']} agree, {kinds['node']} agree but for the node, {kinds['differ']} differ"
    for kind, title in (("node", "another node"), ("differ", "differ"), ("refused", "not compared"), ("cannot", "cannot be said")):
        causes = Counter(cause or "not judged" for _, result, cause in rows if result.kind == kind)
        for cause, count in sorted(causes.items(), key=lambda cause: (-cause[1], cause[0])):
            yield f"  {title:14} {count:4}  {cause}"


def unjudged(rows):
    return [case.where for case, result, cause in rows if result.kind in ("differ", "node") and not cause]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for project in PROJECTS:
        parser.add_argument(f"--{project}", type=pathlib.Path, default=os.environ.get(f"CANTLE_{project.upper()}"))
    parser.add_argument("--cantle", default=ROOT / "dist/bin/cantle")
    parser.add_argument("--show", help="print the scenario of this case, and its result")
    options = parser.parse_args()
    missing = False
    for project in PROJECTS:
        checkout = getattr(options, project)
        if not checkout:
            print(f"{project}: skipped, no checkout given (--{project} or $CANTLE_{project.upper()})")
            continue
        rows = []
        for case, result, cause in compare(project, pathlib.Path(checkout), options.cantle):
            if options.show == case.where:
                print(case.scenario, result.output, sep="\n")
            print(f"{result.kind:7} {case.where}: {'; '.join(filter(None, (result.why, cause if cause != result.why else '')))}")
            rows.append((case, result, cause))
        print(*summary(project, rows), sep="\n")
        missing = missing or bool(unjudged(rows))
    sys.exit(missing)


if __name__ == "__main__":
    main()
