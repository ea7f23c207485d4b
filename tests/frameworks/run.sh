#!/bin/sh
# The suite `frameworks`: PyTorch, numba, cuda-bindings and NVML's tools in slices of simulated GPUs. Makes .venv-frameworks
# if it is not there (3.2 GB to download, 6 GB on disk); `--setup` does only that. Words that follow go to pytest.
set -eu
cd "$(dirname "$0")/../.."
stamp=.venv-frameworks/requirements.installed
if ! cmp -s tests/frameworks/requirements.txt "$stamp"; then
    exec 9<tests/frameworks/requirements.txt
    flock 9
fi
if ! cmp -s tests/frameworks/requirements.txt "$stamp"; then
    [ -x .venv-frameworks/bin/python ] || python3 -m venv .venv-frameworks
    # Wheels of this size are not kept a second time; what is imported is compiled to bytecode then.
    if ! .venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
        -r tests/frameworks/requirements.txt; then
        echo "skipped: PyTorch and the other frameworks cannot be installed here"
        exit 77
    fi
    cp tests/frameworks/requirements.txt "$stamp"
fi
exec 9>&-
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
exec .venv-frameworks/bin/python -m pytest -q tests/frameworks "$@"
