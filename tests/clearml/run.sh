#!/bin/sh
# The suite `clearml`: ClearML's real clients against our server and our agent. Makes .venv-clearml if it is not there; `--setup`
# does only that.
set -eu
cd "$(dirname "$0")/../.."
stamp=.venv-clearml/requirements.installed
if ! cmp -s tests/clearml/requirements.txt "$stamp"; then
    # The suite `docker` needs it as well.
    exec 9<tests/clearml/requirements.txt
    flock 9
fi
if ! cmp -s tests/clearml/requirements.txt "$stamp"; then
    [ -x .venv-clearml/bin/python ] || python3 -m venv .venv-clearml
    if ! .venv-clearml/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clearml/requirements.txt; then
        echo "skipped: ClearML's clients cannot be installed here"
        exit 77
    fi
    cp tests/clearml/requirements.txt "$stamp"
fi
exec 9>&-
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
exec .venv-clearml/bin/python -m pytest -q tests/clearml "$@"
