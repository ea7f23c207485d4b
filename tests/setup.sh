#!/usr/bin/env bash
# Installs what suites need: `setup.sh [WORD]...`, without words for all of them. Quick when done before.
#
#   gate      the Python environment of all suites, .venv. Nothing else is needed by `make test`
#   sdk       ClearML's own programs, in .venv-clearml
#   common    gate; the web page; the real nvidia-smi 535, 550, 555, 580 and 595 and nvtop, in .cache; a compiler for musl, sudo and strace
#   SUITE     common, and what the suite installs itself (`run.sh --setup`): style, docker, clearml, k8s, login, ui, frameworks, packages,
#             files, postgres
#
# What can't be had here is no error: the suite says so and is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a suite that can't run here has said is enough.
allowed() { "$@" || [ $? -eq 77 ]; }

common() {
    tests/setup-venv.sh
    cargo xtask page
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # A fresh machine has no package lists yet.
        if [ -z "$(ls /var/lib/apt/lists/*_Packages* 2>/dev/null)" ]; then
            apt-get update -qq
        fi
        if ! { command -v musl-gcc && command -v sudo && command -v strace; } >/dev/null; then
            apt-get install -y -qq musl-tools sudo strace >/dev/null || echo "no musl-tools, sudo and strace here; the tests that need them skip or fail, and say so"
        fi
    fi
    allowed tests/setup-nvidia-smi.sh
    # A machine with simulated GPUs has the driver's own program too (tests/machine.py); no package of ours does. dist/ may be built
    # at the same time.
    if [ -x .cache/nvidia-smi/550/nvidia-smi ]; then
        mkdir -p dist/lib/cantle/sim
        cp .cache/nvidia-smi/550/nvidia-smi dist/lib/cantle/sim/nvidia-smi
    fi
}

# What is built with Go compiles Go's own library and much else alike: once for all of them. Nobody needs it afterwards.
if [ -z "${CANTLE_GO_CACHE:-}" ]; then
    CANTLE_GO_CACHE=$(mktemp -d)
    export CANTLE_GO_CACHE
    trap 'exit 143' INT TERM
    trap 'rm -rf "$CANTLE_GO_CACHE"' EXIT
fi
[ $# != 0 ] || set -- style docker clearml k8s login ui frameworks packages files postgres
is_common=
for word in "$@"; do
    case $word in
    gate) tests/setup-venv.sh ; continue ;;
    sdk) allowed tests/clearml/run.sh --setup ; continue ;;
    esac
    [ -n "$is_common" ] || common
    is_common=yes
    # Their containers run in Docker's engine, or are made of the same archive.
    case $word in
    clearml | k8s | packages) allowed tests/docker/run.sh --setup ;;
    esac
    case $word in
    common) ;;
    style | docker | clearml | login | ui | frameworks | packages | files | postgres) allowed tests/"$word"/run.sh --setup ;;
    k8s) allowed tests/cluster/run.sh --setup ;;
    *)
        echo "setup.sh: there is nothing to install for \"$word\"; the words are at the top of this file" >&2
        exit 2
        ;;
    esac
done
