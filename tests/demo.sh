#!/usr/bin/env bash
# The documented example on simulated GPUs: `demo.sh [BINARY]`, by default dist/bin/cantle. GPUS=real: on this machine's own (see
# examples/demo.py).
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 examples/demo.py "$@"
