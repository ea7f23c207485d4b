#!/bin/sh
# A container engine of the tests' own: private socket, data and containerd; nothing of the machine's engine is touched.
#
#   engine.sh start DIR     starts dockerd, waits until it answers, makes the image cantle-test:base
#   engine.sh restart DIR   kill -9, then starts it again (running containers go on: --live-restore)
#   engine.sh stop DIR      stops it
set -eu

command=$1
dir=$2

dockerd_pid() { cat "$dir/docker.pid" 2>/dev/null || echo 0; }

# Docker's user for containers, with ids of its own, in this mount namespace alone: the machine's /etc stays as it is.
remapped_user() {
    mkdir "$dir/etc" "$dir/proc"
    for file in passwd group subuid subgid; do cp "/etc/$file" "$dir/etc/$file"; done
    echo "dockremap:x:57999:57999::/nonexistent:/bin/false" >>"$dir/etc/passwd"
    echo "dockremap:x:57999:" >>"$dir/etc/group"
    echo "dockremap:1890000000:65536" | tee -a "$dir/etc/subuid" >>"$dir/etc/subgid"
    for file in passwd group subuid subgid; do mount --bind "$dir/etc/$file" "/etc/$file"; done
    # A user namespace may mount /proc only where one is to be seen whole; simulated GPUs put files of theirs over a part of it.
    mount -t proc proc "$dir/proc"
}

begin() {
    mkdir -p "$dir"
    [ -z "${CANTLE_TEST_REMAP:-}" ] || [ -d "$dir/etc" ] || remapped_user
    # No bridge and no firewall rules: the tests need no network, and the machine's stays as it is.
    # $CANTLE_TEST_RUNTIME: the default runtime, called nvidia. $CANTLE_TEST_REMAP: the root of containers is an ordinary user.
    # shellcheck disable=SC2086  # words, or none
    setsid dockerd --host "unix://$dir/docker.sock" --data-root "$dir/data" --exec-root "$dir/exec" \
        --pidfile "$dir/docker.pid" --bridge none --iptables=false --ip6tables=false --live-restore \
        ${CANTLE_TEST_RUNTIME:+--add-runtime nvidia=$CANTLE_TEST_RUNTIME --default-runtime nvidia} \
        ${CANTLE_TEST_REMAP:+--userns-remap=default} \
        >>"$dir/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 900); do
        if docker --host "unix://$dir/docker.sock" version >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "dockerd did not start; the end of its log:" >&2
    tail -5 "$dir/dockerd.log" >&2
    return 1
}

base_image() {
    rootfs=$("$(dirname "$0")/../rootfs.sh")
    docker --host "unix://$dir/docker.sock" image inspect cantle-test:base >/dev/null 2>&1 ||
        docker --host "unix://$dir/docker.sock" import "$rootfs" cantle-test:base >/dev/null
}

wait_gone() {
    for _ in $(seq 600); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

case $command in
start)
    begin
    base_image
    ;;
restart)
    pid=$(dockerd_pid)
    containerd=$(cat "$dir/exec/containerd/containerd.pid" 2>/dev/null || echo 0)
    kill -9 "$pid"
    wait_gone "$pid"
    # Its containerd dies with it, a moment later: a program that starts in that moment takes it for one that runs.
    [ "$containerd" = 0 ] || wait_gone "$containerd" || true
    begin
    ;;
stop)
    pid=$(dockerd_pid)
    if [ "$pid" != 0 ] && kill "$pid" 2>/dev/null; then wait_gone "$pid" || true; fi
    # A containerd that outlived a killed dockerd is ours as well.
    containerd=$(cat "$dir/exec/containerd/containerd.pid" 2>/dev/null || echo 0)
    if [ "$containerd" != 0 ] && kill "$containerd" 2>/dev/null; then wait_gone "$containerd" || true; fi
    # An engine that was killed leaves its mounts, and a directory with mounts in it can't be removed.
    awk -v below="$dir/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort -r | while read -r place; do
        umount -l "$place"
    done
    ;;
*)
    echo "usage: engine.sh start|restart|stop DIR" >&2
    exit 2
    ;;
esac
