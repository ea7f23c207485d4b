#!/bin/sh
# Holds a machine with GPUs for as long as its input is open: `machine.sh DRIVER_FILES --gpus SPEC …`, with the options of
# `cantle sim machine`; without any, a machine that has no GPU. A test that is killed leaves none behind.
# Says "ready" as soon as others may enter its mount namespace. /run and /var/lib/cantle are as on a fresh machine. The driver's
# files are laid out in the directory DRIVER_FILES, which many machines can share.
set -e
cantle=$(realpath "$(dirname "$0")/../dist/bin/cantle")
files=$1
shift
[ $# = 0 ] || set -- "$cantle" sim machine "$@" --
# shellcheck disable=SC2016  # the inner shell's own variables
exec unshare --mount --propagation private sh -ec '
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run
    mkdir -p /run/lock && chmod 1777 /run/lock
    mkdir -p /var/lib/cantle
    mount -t tmpfs -o mode=755 tmpfs /var/lib/cantle
    mkdir -p /var/lib/cantle/sim/driver
    mount --bind "$0" /var/lib/cantle/sim/driver
    exec "$@"
' "$files" "$@" sh -c 'echo ready; exec cat >/dev/null'
