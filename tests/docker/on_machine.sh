#!/bin/sh
# Runs a command on a machine with GPUs, with /run and /var/lib/cantle as on a fresh one: `on_machine.sh GPUS COMMAND...`.
# What the command starts finds an installed driver; engines that it starts are on the same machine. The driver is one for CUDA 12.4,
# so that images can be newer (test_forward.py). Its files are where $CANTLE_TEST_LAYOUT has them, as on Debian by default.
set -e
cantle=$(realpath "$(dirname "$0")/../../dist/bin/cantle")
gpus=$1
shift
export CANTLE_TEST_MACHINE=here
# shellcheck disable=SC2016  # the inner shell's own variables
exec unshare --mount --propagation private sh -ec '
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run
    mkdir -p /run/lock && chmod 1777 /run/lock
    mkdir -p /var/lib/cantle
    mount -t tmpfs -o mode=755 tmpfs /var/lib/cantle
    exec "$@"
' sh "$cantle" sim machine --layout "${CANTLE_TEST_LAYOUT:-debian}" --gpus "$gpus" --driver "${CANTLE_TEST_DRIVER:-550.163.01}" -- "$@"
