#!/bin/sh
# The suite `docker`: real engines, tasks in real containers, all of it on a machine with GPUs. Exit 77 with a reason where there can be
# no engine. Debian's engines do everything here; what the others do of it is in matrix.sh.
set -eu
cd "$(dirname "$0")/../.."

if [ "$(id -u)" != 0 ]; then
    echo "skipped: a private container engine needs root"
    exit 77
fi
has() { command -v "$1" >/dev/null; }
install() { apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1; }

if [ -z "${CANTLE_TEST_MACHINE:-}" ]; then
    # `--setup` installs what is needed and does nothing else.
    if ! { has dockerd && has debootstrap; } && ! install docker.io debootstrap; then
        echo "skipped: docker.io and debootstrap cannot be installed here"
        exit 77
    fi
    # Tests that need Podman say so and are skipped where there is none.
    has podman || install podman || true
    tests/setup-venv.sh
    tests/rootfs.sh >/dev/null
    [ "${1:-}" != --setup ] || exit 0
    # What one of the tests starts; cargo builds it by itself only where it runs all tests of a package. The whole workspace, because
    # fewer packages mean other features, and with them all dependencies once more.
    cargo build --workspace --locked --example start
    # Three for the documented example; one whose instances are asked for.
    log=$(mktemp)
    trap 'rm -f "$log" "$log.code"' EXIT
    { tests/docker/on_machine.sh 3xA100-40GB,1xA100-40GB:mig tests/docker/run.sh "$@" 2>&1 || echo $? >"$log.code"; } | tee "$log"
    code=$(cat "$log.code" 2>/dev/null || echo 0)
    [ -z "${CANTLE_TEST_RECORD:-}" ] || tests/docker/modes.py record docker "$code" "$log"
    [ "$code" = 0 ] || exit "$code"
    # `make docker-matrix` runs all of them.
    cells="docker-v2 driver-615 driver-615-v2 nvidia-legacy nvidia-jit-cdi on-rhel"
    if [ "${CANTLE_TEST_MOBY:-}" = 1 ] || [ -d "${CANTLE_TEST_CACHE:-.cache/docker}/moby-28.5.2" ]; then
        cells="$cells moby moby-v2"
    else
        echo "skipped: Docker 28, which takes ten minutes to build, and rootless engines: make docker-matrix has both"
        echo "0 passed, 0 failed, 3 skipped"
    fi
    # shellcheck disable=SC2086  # they are words
    tests/docker/matrix.sh $cells
    exit
fi

dir=$(mktemp -d)
# A shell that is ended by a signal skips what is to be done at its exit, unless it ends itself.
trap 'exit 143' INT TERM
trap 'tests/docker/podman.sh stop "$dir/podman"; tests/docker/engine.sh stop "$dir"; rm -rf "$dir"' EXIT
tests/docker/engine.sh start "$dir"
export CANTLE_TEST_ENGINE="$dir" CANTLE_TEST_IMAGE=cantle-test:base
if has podman; then
    tests/docker/podman.sh start "$dir/podman"
    export CANTLE_TEST_PODMAN="$dir/podman"
fi
cargo test --workspace --locked --test container --test container_slice -- --test-threads=1 "$@"
.venv/bin/python -m pytest -q tests/docker --ignore=tests/docker/test_rootless.py
# 77: ClearML's clients can't be installed here; it has said so.
tests/clearml/run.sh -k real_containers || [ $? = 77 ]
