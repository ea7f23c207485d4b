#!/bin/sh
# Podman as the tests need it: private storage and socket; nothing of the machine's Podman is touched.
#
#   podman.sh start DIR     makes the image cantle-test:base, starts the service, waits until it answers
#   podman.sh stop DIR      stops it
# With CONTAINERS_CONF=DIR/containers.conf CONTAINERS_STORAGE_CONF=DIR/storage.conf, Podman's own client means the same storage.
set -eu

command=$1
dir=$2
cache=${CANTLE_TEST_CACHE:-$(cd "$(dirname "$0")/../.." && pwd)/.cache/docker}
export CONTAINERS_CONF="$dir/containers.conf" CONTAINERS_STORAGE_CONF="$dir/storage.conf"

configure() {
    mkdir -p "$dir"
    # Where the controller of processes is bound to v1, Podman's own limit would keep every container from starting.
    pids=
    if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] && ! grep -qw pids /sys/fs/cgroup/cgroup.controllers; then pids="pids_limit = 0"; fi
    # Limits that need no privilege, no network, cgroups without systemd; runc takes cgroups v1 and v2, and both at once.
    cat >"$CONTAINERS_CONF" <<CONF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
$pids
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
CONF
    cat >"$CONTAINERS_STORAGE_CONF" <<CONF
[storage]
driver = "overlay"
graphroot = "$dir/data"
runroot = "$dir/run"
CONF
}

failed() {
    echo "podman did not $1; the end of its log:" >&2
    tail -5 "$dir/podman.log" >&2
    exit 1
}

case $command in
start)
    configure
    podman import -q "$cache/bookworm-minbase-certificates.tar" cantle-test:base >>"$dir/podman.log" 2>&1 || failed "take the image"
    setsid podman system service --time 0 "unix://$dir/podman.sock" >>"$dir/podman.log" 2>&1 </dev/null &
    echo $! >"$dir/podman.pid"
    for _ in $(seq 900); do
        if docker --host "unix://$dir/podman.sock" version >/dev/null 2>&1; then exit 0; fi
        sleep 0.1
    done
    failed start
    ;;
stop)
    pid=$(cat "$dir/podman.pid" 2>/dev/null || echo 0)
    [ "$pid" = 0 ] || kill "$pid" 2>/dev/null || true
    [ ! -e "$CONTAINERS_CONF" ] || podman rm --all --force --time 0 >/dev/null 2>&1 || true
    awk -v below="$dir/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort -r | while read -r place; do
        umount -l "$place"
    done
    ;;
*)
    echo "usage: podman.sh start|stop DIR" >&2
    exit 2
    ;;
esac
