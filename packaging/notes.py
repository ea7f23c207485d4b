#!/usr/bin/env python3
"""Prints the notes of a release: its part of CHANGELOG.md. Fails if VERSION is not that of the workspace, or if CHANGELOG.md has no part for it.
A heading is the version alone, or with its date: “0.2.0 (2026-12-24)”. “(unreleased)” is no date: remove it first."""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def notes(changelog, version):
    """The lines below the heading that is that version, with or without a date, or None."""
    parts = re.split(r"^## +(.*\S)\s*$", changelog, flags=re.M)
    heading = re.compile(re.escape(version) + r"( +\(\d{4}-\d\d-\d\d\))?")
    return next((text.strip() for name, text in zip(parts[1::2], parts[2::2]) if heading.fullmatch(name) and text.strip()), None)


def main(version):
    own = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    if version != own:
        sys.exit(f"notes: the tag says {version}, Cargo.toml says {own}")
    found = notes((ROOT / "CHANGELOG.md").read_text(), version)
    if found is None:
        sys.exit(f"notes: CHANGELOG.md has no entries below “## {version}”")
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
