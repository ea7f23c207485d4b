#!/usr/bin/env python3
"""Adds a version of the documentation to its site: `site_of_versions.py BOOK SITE VERSION`.

Each version has a directory of its own. The first page of the site lists them, the newest first."""

import html
import pathlib
import re
import shutil
import sys

VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?")
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>cantle documentation</title>
<style>:root {{ color-scheme: light dark; font-family: sans-serif }}</style>
<h1>cantle documentation</h1>
<ul>
{rows}
</ul>
</html>
"""


def numbers(version):
    """`0.10.0` is newer than `0.9.1`, and a release newer than its candidates (`0.9.0-rc.1`)."""
    release, _, candidate = version.partition("-")
    return [int(part) for part in release.split(".")], candidate == "", candidate


def add(book, site, version):
    if not VERSION.fullmatch(version):
        sys.exit(f"site_of_versions.py: {version!r} is no version; a version is written 1.2.3 or 1.2.3-rc.1")
    site.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(book, site / version)
    versions = sorted((entry.name for entry in site.iterdir() if VERSION.fullmatch(entry.name)), key=numbers, reverse=True)
    rows = "\n".join(f'<li><a href="{html.escape(each)}/">{html.escape(each)}</a>' for each in versions)
    (site / "index.html").write_text(PAGE.format(rows=rows))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: site_of_versions.py BOOK SITE VERSION")
    add(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3])
