#!/bin/sh
# Slices in containers of further engines, each on a machine of its own: `matrix.sh [CELL]...`, without one all of them.
#
#   docker-v2     Debian's Docker and Podman on cgroup v2
#   moby          Docker 28, which gets slices as CDI devices; the machine's cgroups
#   moby-v2       the same on cgroup v2
#   nvidia-legacy Debian's Docker with NVIDIA's container runtime as its default, in legacy mode
#   nvidia-cdi    the same in CDI mode
#   nvidia-jit-cdi the same in the default mode of its newer versions, which writes a CDI spec for each container
#   driver-615    Debian's Docker with a driver that has limits and suspension of its own; the machine's cgroups
#   driver-615-v2 the same on cgroup v2
#   userns-remap  Debian's Docker with --userns-remap: the root of containers is an ordinary user of the machine
#   rootless      rootless Docker and rootless Podman of an ordinary user; the machine's cgroups
#   rootless-v2   the same on cgroup v2
#   rootless-moby rootless Docker 28
#   on-rhel, on-driver-container, on-wsl, on-flatcar, on-cos, on-nixos
#                 Debian's Docker on a machine whose driver's files are there
#
# A cell that can't be run here says why and counts as skipped. With $CANTLE_TEST_RECORD the results go into the table of
# docs/containers.md.
set -eu
cd "$(dirname "$0")/../.."
has() { command -v "$1" >/dev/null; }
install() { apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1; }

# In the machine: starts the cell's engines and runs its tests.
inside() {
    dir=$(mktemp -d)
    trap 'exit 143' INT TERM
    case $1 in
    rootless*)
        # The user must reach what is in it.
        chmod 755 "$dir"
        trap 'tests/docker/rootless.sh stop "$dir/engines"; rm -rf "$dir"' EXIT
        mkdir "$dir/engines"
        tests/docker/rootless.sh start "$dir/engines"
        export CANTLE_TEST_ROOTLESS="$dir/engines"
        .venv/bin/python -m pytest -q tests/docker/test_rootless.py
        ;;
    *)
        trap 'tests/docker/podman.sh stop "$dir/podman"; tests/docker/engine.sh stop "$dir"; rm -rf "$dir"' EXIT
        tests=tests/docker/test_ways.py
        case $1 in
        nvidia-*)
            runtime=$(tests/docker/nvidia_runtime.sh "$dir/nvidia" "${1#nvidia-}")
            export CANTLE_TEST_RUNTIME="$runtime"
            [ "$1" != nvidia-jit-cdi ] || export CANTLE_TEST_NODES=1
            tests="$tests tests/docker/test_toolkit.py tests/docker/test_forward.py"
            ;;
        esac
        case $1 in driver-615*) tests="tests/docker/test_driver_limit.py tests/docker/test_suspended.py" ;; esac
        if [ "$1" = userns-remap ]; then
            # The ids of containers must reach the engine's data.
            chmod 711 "$dir"
            export CANTLE_TEST_REMAP=1
        fi
        tests/docker/engine.sh start "$dir"
        export CANTLE_TEST_ENGINE="$dir"
        if [ "$1" = docker-v2 ] && has podman; then
            tests/docker/podman.sh start "$dir/podman"
            export CANTLE_TEST_PODMAN="$dir/podman"
            tests="$tests tests/docker/test_podman.py"
        fi
        # shellcheck disable=SC2086  # they are words
        .venv/bin/python -m pytest -q $tests
        ;;
    esac
}

cell() {
    echo "==> docker: $1"
    case $1 in
    docker-v2 | moby | moby-v2 | nvidia-legacy | nvidia-cdi | nvidia-jit-cdi | driver-615 | driver-615-v2 | userns-remap | rootless | rootless-v2 | rootless-moby) ;;
    on-rhel | on-driver-container | on-wsl | on-flatcar | on-cos | on-nixos) export CANTLE_TEST_LAYOUT="${1#on-}" ;;
    *)
        echo "matrix.sh: there is no cell \"$1\"" >&2
        return 2
        ;;
    esac
    case $1 in
    rootless*)
        has rootlesskit && has newuidmap && has slirp4netns && has podman && has dockerd ||
            install rootlesskit uidmap slirp4netns podman docker.io || {
            echo "skipped: the packages of rootless engines cannot be installed here"
            return 77
        }
        ;;
    esac
    case $1 in
    nvidia-jit-cdi) tests/docker/toolkit.sh 1.20.1 >/dev/null || return $? ;;
    nvidia-*) tests/docker/toolkit.sh >/dev/null || return $? ;;
    esac
    case $1 in on-*) ;; *) unset CANTLE_TEST_LAYOUT ;; esac
    path=$PATH cdi=
    case $1 in
    *moby*)
        folder=$(tests/docker/moby.sh 2>&1) || {
            code=$?
            echo "$folder"
            return $code
        }
        path=$(echo "$folder" | tail -n 1):$PATH
        ;;
    esac
    case $1 in moby*) cdi=1 ;; esac
    case $1 in driver-615*) export CANTLE_TEST_DRIVER=615.71.09 ;; *) unset CANTLE_TEST_DRIVER ;; esac
    case $1 in
    *-v2) env PATH="$path" CANTLE_TEST_CDI="$cdi" CANTLE_TEST_CGROUP=2 tests/docker/cgroup2.sh \
        tests/docker/on_machine.sh 2xA100-40GB tests/docker/matrix.sh --inside "$1" ;;
    *) env PATH="$path" CANTLE_TEST_CDI="$cdi" tests/docker/on_machine.sh 2xA100-40GB tests/docker/matrix.sh --inside "$1" ;;
    esac
}

if [ "${1:-}" = --inside ]; then
    inside "$2"
    exit
fi
if [ "$(id -u)" != 0 ]; then
    echo "skipped: container engines of the tests' own need root"
    exit 77
fi
[ $# != 0 ] || set -- docker-v2 moby moby-v2 nvidia-legacy nvidia-cdi nvidia-jit-cdi driver-615 driver-615-v2 userns-remap rootless rootless-v2 rootless-moby \
    on-rhel on-driver-container on-wsl on-flatcar on-cos on-nixos
tests/rootfs.sh >/dev/null
tests/setup-venv.sh
failed=
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for name in "$@"; do
    code=0
    cell "$name" >"$log" 2>&1 || code=$?
    cat "$log"
    [ -z "${CANTLE_TEST_RECORD:-}" ] || tests/docker/modes.py record "$name" "$code" "$log"
    case $code in
    0) ;;
    77) echo "0 passed, 0 failed, 1 skipped" ;;
    *) failed="$failed $name" ;;
    esac
done
[ -z "${CANTLE_TEST_RECORD:-}" ] || tests/docker/modes.py write
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
