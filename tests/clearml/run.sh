#!/bin/sh
# The suite `clearml`: ClearML's real clients against our server and our agent. Makes .venv-clearml if it is not there; `--setup`
# does only that.
set -eu
cd "$(dirname "$0")/../.."
if ! tests/venv.sh .venv-clearml tests/clearml/requirements.txt; then
    echo "skipped: ClearML's clients cannot be installed here"
    exit 77
fi
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
exec .venv-clearml/bin/python -m pytest -q tests/clearml "$@"
