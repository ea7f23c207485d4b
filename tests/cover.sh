#!/bin/sh
# Mounts an empty file system over a directory, in the mount namespace of the caller: `cover.sh DIRECTORY OPTIONS`. If the repository lies in
# the directory, it stays where it is.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
# From now on, this descriptor is the only way to it.
exec 9<"$root"
mount -t tmpfs -o "$2" tmpfs "$1"
case $root in
"$1"/*)
    mkdir -p "$root"
    mount --no-canonicalize --bind /proc/self/fd/9 "$root"
    ;;
esac
