#!/bin/sh
# Rootless Docker and rootless Podman of an ordinary user, who exists in a private mount namespace alone: the machine's /etc stays as it is.
#
#   rootless.sh start DIR [OPTION OF DOCKERD]...   the user and the engines: DIR/docker.sock, DIR/podman.sock, each with the image cantle-test:base
#   rootless.sh as DIR COMMAND...                  runs a command as the user, where the engines are, with HOME and the engines' variables
#   rootless.sh stop DIR                           ends all of it
# The first dockerd in PATH is the one that starts. On cgroup v1 rootless engines give containers no cgroups; where cgroup2.sh made a
# cgroup v2, the user has a part of it, and each container gets a group there, without limits on Docker's side (it wants systemd for them).
# Exit 77 with a reason where that can't be.
set -eu

command=$1
dir=$2
shift 2
cache=${CANTLE_TEST_CACHE:-$(cd "$(dirname "$0")/../.." && pwd)/.cache/docker}
name=cantle-test
# Numbers of its own for every DIR, far from those that useradd gives: the processes that have them were started here.
id=$(cat "$dir/id" 2>/dev/null || echo $((58000 + $$ % 2000)))
below=$((1900000000 + (id - 58000) * 65536))

skip() {
    echo "skipped: no rootless engines: $1" >&2
    exit 77
}

# Everything that the engines and their user need of the machine, as an ordinary machine has it. The namespace lasts as long as its
# first process, which sleeps.
prepare() {
    mkdir -p "$dir/etc" "$dir/home" "$dir/run"
    echo "$id" >"$dir/id"
    for file in passwd group subuid subgid; do cp "/etc/$file" "$dir/etc/$file"; done
    echo "$name:x:$id:$id::$dir/home:/bin/sh" >>"$dir/etc/passwd"
    echo "$name:x:$id:" >>"$dir/etc/group"
    echo "$name:$below:65536" >>"$dir/etc/subuid"
    echo "$name:$below:65536" >>"$dir/etc/subgid"
    mknod -m 666 "$dir/etc/tun" c 10 200
    cat >"$dir/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
CONF
    cat >"$dir/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$dir/podman"
runroot = "$dir/run/containers"
CONF
    chown -R "$id:$id" "$dir/home" "$dir/run" "$dir/containers.conf" "$dir/storage.conf"
    chown "$id:$id" "$dir"
    chmod 755 "$dir"
    chmod 700 "$dir/run"
    setsid unshare --mount --propagation private sh -euc '
        mount --make-rshared /
        for file in passwd group subuid subgid; do mount --bind "$1/etc/$file" "/etc/$file"; done
        [ ! -e /dev/net/tun ] || mount --bind "$1/etc/tun" /dev/net/tun
        # A user namespace may mount /proc only where one is to be seen whole; simulated GPUs put files of theirs over a part of it.
        mkdir "$1/etc/proc"
        mount -t proc proc "$1/etc/proc"
        # The user may divide this group: what a login session of systemd would be given.
        if [ -d /sys/fs/cgroup/command ]; then
            mkdir -p /sys/fs/cgroup/user/session
            chown -R "$2:$2" /sys/fs/cgroup/user
        fi
        echo ready >"$1/namespace"
        exec sleep infinity' sh "$dir" "$id" >"$dir/namespace.log" 2>&1 </dev/null &
    echo $! >"$dir/namespace.pid"
    for _ in $(seq 600); do
        [ ! -e "$dir/namespace" ] || return 0
        sleep 0.1
    done
    skip "$(tail -1 "$dir/namespace.log")"
}

as_user() {
    nsenter --mount --target "$(cat "$dir/namespace.pid")" sh -euc '
        dir=$1 id=$2
        shift 2
        cd "$dir/home"
        if [ -d /sys/fs/cgroup/user ]; then echo 0 >/sys/fs/cgroup/user/session/cgroup.procs; fi
        exec setpriv --reuid "$id" --regid "$id" --clear-groups --inh-caps=-all env \
            HOME="$dir/home" USER=cantle-test LOGNAME=cantle-test XDG_RUNTIME_DIR="$dir/run" DOCKER_HOST="unix://$dir/docker.sock" \
            CONTAINERS_CONF="$dir/containers.conf" CONTAINERS_STORAGE_CONF="$dir/storage.conf" "$@"' sh "$dir" "$id" "$@"
}

# Ids of the user's processes, those of its containers' users included; not of those that are dead already.
processes() {
    for each in /proc/[0-9]*; do
        owner=$(stat -c %u "$each" 2>/dev/null) && [ -n "$(readlink "$each/exe" 2>/dev/null)" ] || continue
        if [ "$owner" = "$id" ] || { [ "$owner" -ge "$below" ] && [ "$owner" -lt $((below + 65536)) ]; }; then echo "${each#/proc/}"; fi
    done
}

answers() {
    for _ in $(seq 900); do
        if docker --host "unix://$dir/$1.sock" version >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "rootless $1 did not start; the end of its log:" >&2
    tail -5 "$dir/$1.log" >&2
    return 1
}

start_docker() {
    script=$(dirname "$(command -v dockerd)")/dockerd-rootless.sh
    [ -x "$script" ] || script=/usr/share/docker.io/contrib/dockerd-rootless.sh
    [ -x "$script" ] || skip "there is no dockerd-rootless.sh"
    as_user setsid "$script" --host "unix://$dir/docker.sock" --data-root "$dir/docker" --exec-root "$dir/run/docker" \
        --pidfile "$dir/run/docker.pid" --bridge none --iptables=false --ip6tables=false "$@" >>"$dir/docker.log" 2>&1 </dev/null &
    answers docker
    docker --host "unix://$dir/docker.sock" import - cantle-test:base >/dev/null <"$rootfs"
}

start_podman() {
    as_user podman import -q - cantle-test:base >>"$dir/podman.log" 2>&1 <"$rootfs"
    as_user setsid podman system service --time 0 "unix://$dir/podman.sock" >>"$dir/podman.log" 2>&1 </dev/null &
    answers podman
}

case $command in
start)
    [ "$(id -u)" = 0 ] || skip "to make a user needs root"
    for program in dockerd podman rootlesskit newuidmap slirp4netns runc; do
        command -v "$program" >/dev/null || skip "there is no $program"
    done
    rootfs=$("$(dirname "$0")/../rootfs.sh")
    prepare
    start_docker "$@"
    start_podman
    ;;
as)
    as_user "$@"
    ;;
stop)
    pid=$(cat "$dir/namespace.pid" 2>/dev/null || echo 0)
    if kill -0 "$pid" 2>/dev/null; then
        # Containers first: they outlive their engines.
        for engine in docker podman; do
            docker --host "unix://$dir/$engine.sock" ps --all --quiet 2>/dev/null |
                xargs -r docker --host "unix://$dir/$engine.sock" rm --force >/dev/null 2>&1 || true
        done
        for signal in TERM KILL; do
            for _ in $(seq 50); do
                left=$(processes)
                [ -n "$left" ] || break 2
                kill "-$signal" $left 2>/dev/null || true
                sleep 0.1
            done
        done
        kill "$pid"
    fi
    ;;
*)
    echo "usage: rootless.sh start|stop DIR, rootless.sh as DIR COMMAND..." >&2
    exit 2
    ;;
esac
