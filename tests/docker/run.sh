#!/bin/sh
# The suite `docker`: real engines, tasks in real containers. Exit 77 with a reason where there can be no engine.
set -eu
cd "$(dirname "$0")/../.."

if [ "$(id -u)" != 0 ]; then
    echo "skipped: a private container engine needs root"
    exit 77
fi
has() { command -v "$1" >/dev/null; }
install() { apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1; }
if ! { has dockerd && has debootstrap; } && ! install docker.io debootstrap; then
    echo "skipped: docker.io and debootstrap cannot be installed here"
    exit 77
fi

dir=$(mktemp -d)
# A shell that is ended by a signal skips what is to be done at its exit, unless it ends itself.
trap 'exit 143' INT TERM
trap 'tests/docker/podman.sh stop "$dir/podman"; tests/docker/engine.sh stop "$dir"; rm -rf "$dir"' EXIT
tests/docker/engine.sh start "$dir"
export CANTLE_TEST_ENGINE="$dir" CANTLE_TEST_IMAGE=cantle-test:base
# Tests that need Podman say so and are skipped where there is none.
if has podman || install podman; then
    tests/docker/podman.sh start "$dir/podman"
    export CANTLE_TEST_PODMAN="$dir/podman"
fi
cargo test --release --locked -p cantle-runtime --test container --test container_slice -- --test-threads=1 "$@"
tests/setup-venv.sh
.venv/bin/python -m pytest -q tests/docker
# 77: ClearML's clients can't be installed here; it has said so.
tests/clearml/run.sh -k real_containers || [ $? = 77 ]
