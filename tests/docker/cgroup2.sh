#!/bin/sh
# Runs a command where /sys/fs/cgroup is a cgroup v2 hierarchy, so that engines which it starts work the way of cgroup v2.
#
#   cgroup2.sh COMMAND...
#
# A machine that has cgroup v2 there is left as it is. Elsewhere the command gets a group of its own in the machine's v2
# hierarchy, seen as its root, in a private mount and cgroup namespace; the v1 hierarchies stay the machine's and are out of
# sight. At the end everything that is still in the group is killed, the command's daemons too, and the group is removed.
# The first line on stderr names the controllers. Exit 77 with a reason where none of this can be.
set -eu

skip() {
    echo "skipped: no cgroup v2 here: $1" >&2
    exit 77
}

if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
    echo "cgroup v2: the machine's own; controllers: $(cat /sys/fs/cgroup/cgroup.controllers)" >&2
    exec "$@"
fi
[ "$(id -u)" = 0 ] || skip "it needs root"
grep -q cgroup2 /proc/filesystems || skip "the kernel has none"

# The hierarchy may be mounted anywhere or nowhere; here it is mounted once more, for this script alone.
if [ -z "${CANTLE_CGROUP2:-}" ]; then
    place=$(mktemp -d)
    CANTLE_CGROUP2=$place exec unshare --mount --propagation private sh "$0" "$@"
fi
tree=$CANTLE_CGROUP2
unset CANTLE_CGROUP2
mount -t cgroup2 cgroup2 "$tree" || { rmdir "$tree"; skip "it cannot be mounted"; }
group=$tree/cantle-$$

finish() {
    # A process that was killed while forking leaves nobody behind: the kernel kills the group as a whole.
    echo 1 >"$group/cgroup.kill" || true
    # Groups within groups, the inner ones first; a dying process keeps its group for a moment.
    for _ in $(seq 100); do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -d "$group" ] || break
        sleep 0.1
    done
    for controller in $handed; do
        echo "-$controller" >"$tree/cgroup.subtree_control" 2>/dev/null || true
    done
    umount -l "$tree"
    rmdir "$tree"
}
handed=
mkdir "$group" || { umount "$tree"; rmdir "$tree"; skip "the hierarchy takes no group"; }
trap 'exit 143' INT TERM
trap finish EXIT
[ -e "$group/cgroup.kill" ] || skip "the kernel is older than 5.14"

# A group may have a limit only where its parent hands the controller down; the machine hands down what it had not bound to v1.
for controller in $(cat "$tree/cgroup.controllers"); do
    grep -qw "$controller" "$tree/cgroup.subtree_control" && continue
    if echo "+$controller" >"$tree/cgroup.subtree_control" 2>/dev/null; then handed="$handed $controller"; fi
done
inner='
    umount -l "$1"
    shift
    umount -R -l /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # Groups with limits hold no processes next to their groups.
    mkdir /sys/fs/cgroup/command
    echo 0 >/sys/fs/cgroup/command/cgroup.procs
    controllers=$(cat /sys/fs/cgroup/cgroup.controllers)
    for controller in $controllers; do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
    bound=$(awk "/^[a-z]/ && \$2 > 0 { printf \" %s\", \$1 }" /proc/cgroups)
    echo "cgroup v2: a group of its own; controllers: ${controllers:-none}; bound to v1:${bound:- none}" >&2
    # A shell lets what it starts in the background ignore these.
    exec env --default-signal=INT,QUIT "$@"'
outer='echo 0 >"$1/cgroup.procs"; inner=$2; shift 2; exec unshare --cgroup --mount --propagation private sh -euc "$inner" sh "$@"'
code=0
exec 3<&0
sh -euc "$outer" sh "$group" "$inner" "$tree" "$@" <&3 3<&- &
wait $! || code=$?
exit $code
