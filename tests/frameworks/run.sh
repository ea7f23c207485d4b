#!/bin/sh
# The suite `frameworks`: PyTorch, numba, cuda-bindings and NVML's tools in slices of simulated GPUs. Makes .venv-frameworks
# if it is not there (3.2 GB to download, 6 GB on disk); `--setup` does only that. Words that follow go to pytest.
set -eu
cd "$(dirname "$0")/../.."
# Wheels of this size are not kept a second time; what is imported is compiled to bytecode then.
if ! tests/venv.sh .venv-frameworks tests/frameworks/requirements.txt --no-cache-dir --no-compile; then
    echo "skipped: PyTorch and the other frameworks cannot be installed here"
    exit 77
fi
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
exec .venv-frameworks/bin/python -m pytest -q tests/frameworks "$@"
