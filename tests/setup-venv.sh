#!/bin/sh
# Makes .venv, the Python environment of the test suites, from tests/requirements.txt. Quick if it is up to date. Suites that run
# side by side wait for whoever makes it.
set -eu
cd "$(dirname "$0")/.."
stamp=.venv/requirements.installed
cmp -s tests/requirements.txt "$stamp" && exit 0
exec 9<tests/requirements.txt
flock 9
cmp -s tests/requirements.txt "$stamp" && exit 0
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
cp tests/requirements.txt "$stamp"
