#!/bin/sh
# Holds a machine with GPUs for as long as its input is open: `machine.sh DRIVER_FILES --gpus SPEC …`, with the options of
# `cantle sim machine`; without any, a machine that has no GPU. A test that is killed leaves none behind.
# Says "ready" as soon as others may enter its mount namespace. /run and /var/lib/cantle are as on a fresh machine. The driver's
# files are laid out in the directory DRIVER_FILES, which many machines can share.
set -e
tests=$(cd "$(dirname "$0")" && pwd)
files=$1
shift
[ $# = 0 ] || set -- "$(realpath "$tests/../dist/bin/cantle")" sim machine "$@" --
# Tests start programs as other users, too. A repository in a home that is closed to them is there, on this machine, without that home.
closed=
path=
IFS=/
for part in ${tests#/}; do
    path=$path/$part
    setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$path" || { closed=$path; break; }
done
unset IFS
# shellcheck disable=SC2016  # the inner shell's own variables
exec unshare --mount --propagation private sh -ec '
    tests=$1 closed=$2
    shift 2
    [ -z "$closed" ] || "$tests/cover.sh" "$closed" mode=755
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run
    mkdir -p /run/lock && chmod 1777 /run/lock
    mkdir -p /var/lib/cantle
    mount -t tmpfs -o mode=755 tmpfs /var/lib/cantle
    mkdir -p /var/lib/cantle/sim/driver
    mount --bind "$0" /var/lib/cantle/sim/driver
    exec "$@"
' "$files" "$tests" "$closed" "$@" sh -c 'echo ready; exec cat >/dev/null'
