#!/bin/sh
# Makes a Python environment: `venv.sh DIRECTORY REQUIREMENTS [OPTION OF PIP...]`. Quick if it is up to date. Suites that run
# in parallel wait for the one that makes it. $PYTHON is the interpreter, otherwise python3.
set -eu
venv=$1 requirements=$2
shift 2
stamp=$venv/requirements.installed
cmp -s "$requirements" "$stamp" && exit 0
exec 9<"$requirements"
flock 9
cmp -s "$requirements" "$stamp" && exit 0
python=${PYTHON:-python3}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || { rm -rf "$venv" && python3 -m venv "$venv"; }
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" -r "$requirements"
cp "$requirements" "$stamp"
