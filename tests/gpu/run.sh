#!/usr/bin/env bash
# The suite for a machine with an NVIDIA GPU. Needs dist/ (made by `make build`, here or elsewhere), Python 3 and the driver;
# no network, no Docker. Uses gcc, PyTorch, CuPy and JAX if $PYTHON (default: python3) has them. Changes no setting of the card.
# Results, written after each check: <date>-<gpu>-driver<version>.json and .md in $OUT, or in docs/results/. Takes at most nine minutes;
# `--list` names the checks by what they tell, with the minute at which each would begin: a run of `--minutes 3`, 6 or 9 makes the first ones.
# `--only NAMES`, `--list`, `--minutes` and `--containers IMAGE` (slices in containers of the machine's engine) are passed on (`make gpu-test ONLY=NAMES` does the first).
# The script itself can be tried without a GPU, where checks that need kernels are skipped:
#   dist/bin/cantle sim machine --gpus 1xH100-80GB --driver 615.10 -- tests/gpu/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x dist/bin/cantle ] || { echo "dist/bin/cantle is missing; run make build first" >&2; exit 2; }
exec timeout --kill-after=10 600 "${PYTHON:-python3}" tests/gpu/suite.py --out "${OUT:-docs/results}" "$@"
