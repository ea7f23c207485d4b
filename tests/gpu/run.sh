#!/usr/bin/env bash
# The suite for a machine with an NVIDIA GPU. Needs dist/ (made by `make build`, here or elsewhere), Python 3 and the driver;
# no network, no Docker. Uses gcc, PyTorch, CuPy and JAX if they are installed. Changes no setting of the card.
# Results: <date>-<gpu>-driver<version>.json and .md in $OUT, or in docs/results/.
# The script itself can be tried without a GPU: dist/bin/cantle sim machine --gpus 1xH100-80GB -- tests/gpu/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x dist/bin/cantle ] || { echo "dist/bin/cantle is missing; run make build first" >&2; exit 2; }
exec timeout 540 python3 tests/gpu/suite.py "${OUT:-docs/results}"
