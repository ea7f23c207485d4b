#!/bin/sh
# Makes .venv, the Python environment of the test suites, from tests/requirements.txt. Quick if it is up to date.
set -eu
cd "$(dirname "$0")/.."
# Tests run programs as an ordinary user too, who can't reach an interpreter in root's home.
where=$(python3 -c 'import sys; print(sys.executable)')
if [ "$(id -u)" = 0 ] && [ -x /usr/bin/python3 ] && ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$where"; then
    export PYTHON=/usr/bin/python3
fi
exec tests/venv.sh .venv tests/requirements.txt
