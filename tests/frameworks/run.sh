#!/bin/sh
# The suite `frameworks`: PyTorch, Triton, JAX, numba, cuda-bindings and NVML's tools in slices of simulated GPUs. Makes
# .venv-frameworks (3.2 GB to download, 6 GB on disk) and .venv-frameworks-jax (0.3 GB, 1.1 GB on disk) if they are not there;
# `--setup` does only that. With CANTLE_TEST_ALL=yes also CuPy, in .venv-frameworks-cupy (0.9 GB, 1.7 GB on disk), PyTorch for CUDA 12, in
# .venv-frameworks-torch12 (6.4 GB on disk), and what takes long.
# Words that follow go to pytest.
set -eu
cd "$(dirname "$0")/../.."
# Wheels of this size are not kept a second time; what is imported is compiled to bytecode then.
for name in "" -jax ${CANTLE_TEST_ALL:+-cupy -torch12}; do
    if ! tests/venv.sh ".venv-frameworks$name" "tests/frameworks/requirements$name.txt" --no-cache-dir --no-compile; then
        echo "skipped: PyTorch and the other frameworks cannot be installed here"
        exit 77
    fi
done
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
.venv-frameworks/bin/python -m pytest -q tests/frameworks "$@"
# PyTorch as a task of root and of another user, in the sandbox of the agent.
.venv/bin/python -m pytest -q tests/e2e/test_programs.py tests/e2e/test_task_user.py -k "PyTorch or every_day"
