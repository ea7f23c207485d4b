#!/bin/sh
# Boots a tree with systemd as PID 1, the way container managers do it: in namespaces and a control group of its own.
#
#   boot.sh v2|hybrid TREE DIR
#
# v2 is systemd's own layout of control groups; hybrid has the controllers in version 1 and systemd's groups in version 2.
# DIR/console gets what it prints, DIR/pid the id of its PID 1. It ends when the system is switched off or restarts; SIGTERM
# ends it at once. Exit 77 with a reason where none of this can be.
set -eu

skip() {
    echo "skipped: systemd cannot be PID 1 here: $1" >&2
    exit 77
}

# In the control group; the hierarchies' roots are the group from now on.
inside='
    mode=$1 tree=$2 dir=$3 hierarchies=$4
    # The number that this process has outside: /proc is still the outer one.
    read -r pid rest </proc/self/stat
    echo "$pid" >"$dir/pid"
    hostname box
    ip link set lo up
    mount --bind "$tree" "$tree"
    cd "$tree"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    if [ "$mode" = v2 ]; then
        mount -t cgroup2 cgroup2 sys/fs/cgroup
    else
        mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
        for each in $hierarchies systemd unified; do mkdir "sys/fs/cgroup/$each"; done
        for each in $hierarchies; do mount -t cgroup -o "$each" cgroup "sys/fs/cgroup/$each"; done
        mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
        mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    fi
    mount -t tmpfs tmpfs run
    mount -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/pts dev/shm
    for each in null zero full random urandom tty; do touch "dev/$each"; mount --bind "/dev/$each" "dev/$each"; done
    touch dev/console
    mount --bind "$dir/console" dev/console
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs tmpfs dev/shm
    pivot_root . .
    umount -l .
    cd /
    exec env -i container=cantle-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console'
enter='
    for each in $1; do echo 0 >"$each/cgroup.procs"; done
    shift
    exec unshare --mount --propagation private --pid --net --uts --ipc --cgroup --fork --kill-child sh -euc "$@"'

if [ "$1" = --inside ]; then shift; elif [ "$1" = v2 ]; then exec "$(dirname "$0")/../docker/cgroup2.sh" "$0" --inside "$@"; fi
mode=$1 tree=$2 dir=$3
[ "$(id -u)" = 0 ] || skip "it needs root"
[ -x "$tree/lib/systemd/systemd" ] || skip "$tree has no systemd"
mkdir -p "$dir"
: >"$dir/console"
hierarchies=
if [ "$mode" = v2 ]; then
    places=/sys/fs/cgroup
else
    [ "$(stat -fc %T /sys/fs/cgroup/unified 2>/dev/null)" = cgroup2fs ] || skip "this machine's control groups are not hybrid"
    hierarchies=$(cut -d: -f2 /proc/self/cgroup | grep -v = | grep . || true)
    places=/sys/fs/cgroup/unified
    for each in $hierarchies systemd; do places="$places /sys/fs/cgroup/$each"; done
fi
groups=
finish() {
    for group in $groups; do
        for _ in $(seq 300); do
            find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
            [ -d "$group" ] || break
            sleep 0.1
        done
    done
}
trap finish EXIT
for place in $places; do
    group=$place/cantle-boot-$$
    mkdir "$group" || skip "$place takes no group"
    groups="$groups $group"
    # A new group of this hierarchy may use no processor and no memory until somebody says which.
    [ ! -e "$group/cpuset.cpus" ] || for each in cpus mems; do cat "$place/cpuset.$each" >"$group/cpuset.$each" || true; done
done
sh -euc "$enter" sh "$groups" "$inside" sh "$mode" "$tree" "$dir" "$hierarchies" >"$dir/log" 2>&1 </dev/null &
child=$!
# unshare ignores the others; its end ends PID 1.
trap 'kill -9 $child' INT TERM
# The second time, if a signal has ended the first.
wait $child || wait $child || true
