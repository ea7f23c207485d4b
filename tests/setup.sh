#!/usr/bin/env bash
# Installs what the suites need: a Python environment in .venv, the real nvidia-smi 535 and 550 in .cache, a compiler for musl
# and sudo. Quick when done before.
set -euo pipefail
cd "$(dirname "$0")/.."
# Suites install Debian packages (an engine, a browser); a fresh machine has no package lists yet.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "$(ls /var/lib/apt/lists/*_Packages* 2>/dev/null)" ]; then
    apt-get update -qq
fi
tests/setup-venv.sh
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v musl-gcc && command -v sudo; } >/dev/null; then
    apt-get install -y -qq musl-tools sudo >/dev/null || echo "no musl-tools and sudo here; the tests that need them skip and say so"
fi
tests/setup-nvidia-smi.sh || [ $? -eq 77 ]   # 77: can't be had here; the tests that need it skip and say so
# A machine with simulated GPUs has the driver's own program too (tests/machine.py); no package of ours does.
if [ -x .cache/nvidia-smi/550/nvidia-smi ] && [ -d dist/lib/cantle/sim ]; then
    cp .cache/nvidia-smi/550/nvidia-smi dist/lib/cantle/sim/nvidia-smi
fi
