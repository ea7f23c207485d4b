#!/usr/bin/env bash
# Installs what the suites need: `setup.sh [SUITE]...`, without names for all of them. Quick when done before.
#
# Every suite has a Python environment in .venv, the real nvidia-smi 535, 550, 555, 580 and 595 and nvtop in .cache, a compiler for musl, sudo and strace.
# What else style, docker, clearml, k8s, ui, frameworks, packages, files and postgres need they install themselves (`run.sh --setup`), here one after the other: suites that run
# side by side find it done. What can't be had here is no error: the suite says so and is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
# Suites install Debian packages (an engine, a browser); a fresh machine has no package lists yet.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "$(ls /var/lib/apt/lists/*_Packages* 2>/dev/null)" ]; then
    apt-get update -qq
fi
tests/setup-venv.sh
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v musl-gcc && command -v sudo && command -v strace; } >/dev/null; then
    apt-get install -y -qq musl-tools sudo strace >/dev/null || echo "no musl-tools, sudo and strace here; the tests that need them skip or fail, and say so"
fi
tests/setup-nvidia-smi.sh || [ $? -eq 77 ]   # 77: can't be had here; the tests that need it skip and say so
# A machine with simulated GPUs has the driver's own program too (tests/machine.py); no package of ours does. dist/ may be built
# at the same time.
if [ -x .cache/nvidia-smi/550/nvidia-smi ]; then
    mkdir -p dist/lib/cantle/sim
    cp .cache/nvidia-smi/550/nvidia-smi dist/lib/cantle/sim/nvidia-smi
fi
# What is built with Go compiles Go's own library and much else alike: once for all of them. Nobody needs it afterwards.
CANTLE_GO_CACHE=$(mktemp -d)
export CANTLE_GO_CACHE
trap 'exit 143' INT TERM
trap 'rm -rf "$CANTLE_GO_CACHE"' EXIT
[ $# != 0 ] || set -- style docker clearml k8s login ui frameworks packages files postgres
for suite in "$@"; do
    case $suite in
    style | docker | clearml | login | ui | frameworks | packages | files | postgres) tests/"$suite"/run.sh --setup || [ $? -eq 77 ] ;;
    k8s) tests/cluster/run.sh --setup || [ $? -eq 77 ] ;;
    esac
done
