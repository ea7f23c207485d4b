#!/usr/bin/env python3
"""Puts the fragments of `changes/` under a new heading of CHANGELOG.md, and removes them with `git rm`: `changelog.py VERSION [DATE]`.

The date is 2026-11-30, for example; today's by default. The exit code is 2 if there is nothing to release or a fragment is wrong."""

import datetime
import pathlib
import re
import subprocess
import sys

from site_of_versions import VERSION

ROOT = pathlib.Path(__file__).resolve().parents[1]
KINDS = ["added", "changed", "fixed", "removed"]
HEADING = re.compile(r"^## +(\S+)", re.M)


class Refused(Exception):
    """A line for the user."""


def fragments(directory):
    """The files of each kind, by name."""
    found = {kind: [] for kind in KINDS}
    for path in sorted(directory.iterdir()):
        if path.name == "README.md":
            continue
        name = re.fullmatch(r"[^.].*\.([a-z]+)\.md", path.name)
        if not name or name[1] not in KINDS:
            raise Refused(f"{path.name}: a fragment is named SHORT-NAME.KIND.md, and its kind is {', '.join(KINDS)}")
        if not path.read_text().strip():
            raise Refused(f"{path.name} is empty")
        found[name[1]].append(path)
    if not any(found.values()):
        raise Refused(f"there are no fragments in {directory.name}/")
    return found


def entry(text):
    return "* " + text.strip().replace("\n", "\n  ")


def section(found, version, date):
    """The part of a version: its heading, then the entries by kind."""
    parts = [f"## {version} ({date})"]
    for kind, paths in found.items():
        if paths:
            parts += [f"### {kind.capitalize()}", "\n".join(entry(path.read_text()) for path in paths)]
    return "\n\n".join(parts)


def with_section(changelog, new):
    """The new part in front of the versions."""
    first = HEADING.search(changelog)
    head, rest = (changelog[: first.start()], changelog[first.start() :]) if first else (changelog, "")
    return "\n\n".join(part for part in [head.strip(), new, rest.strip()] if part) + "\n"


def release(root, version, date):
    """Changes nothing if it fails."""
    if not VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version; a version is written 1.2.3 or 1.2.3-rc.1")
    file = root / "CHANGELOG.md"
    changelog = file.read_text()
    if version in HEADING.findall(changelog):
        raise Refused(f"CHANGELOG.md has version {version} already")
    found = fragments(root / "changes")
    text = with_section(changelog, section(found, version, date))
    names = [path.relative_to(root) for paths in found.values() for path in paths]
    removed = subprocess.run(["git", "rm", "--quiet", "--", *names], cwd=root, capture_output=True, text=True)
    if removed.returncode:
        raise Refused(f"commit the fragments first: {removed.stderr.splitlines()[0]}")
    file.write_text(text)


def main(arguments, root=ROOT):
    try:
        if len(arguments) not in (1, 2):
            raise Refused("usage: changelog.py VERSION [DATE]")
        date = arguments[1] if len(arguments) == 2 else datetime.date.today().isoformat()
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
            raise Refused(f"{date!r} is no date; a date is written 2026-11-30")
        release(root, arguments[0], date)
    except Refused as why:
        print(f"changelog: {why}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
