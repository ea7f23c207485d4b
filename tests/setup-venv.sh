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
# Tests run programs as an ordinary user too, who can't reach an interpreter in root's home.
python=python3
where=$(python3 -c 'import sys; print(sys.executable)')
if [ "$(id -u)" = 0 ] && [ -x /usr/bin/python3 ] && ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$where"; then
    python=/usr/bin/python3
fi
[ -x .venv/bin/python ] || $python -m venv .venv || { rm -rf .venv && python3 -m venv .venv; }
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
cp tests/requirements.txt "$stamp"
