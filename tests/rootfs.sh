#!/bin/sh
# Prints the archive of a Debian with Python and the certificates of authorities that test containers are made of; made once with debootstrap, which needs root.
set -eu
cache=${CANTLE_TEST_CACHE:-$(cd "$(dirname "$0")/.." && pwd)/.cache/docker}
rootfs=$cache/bookworm-minbase-certificates.tar
if [ ! -s "$rootfs" ]; then
    mkdir -p "$cache"
    tree=$(mktemp -d)
    debootstrap --variant=minbase --include=python3,ca-certificates bookworm "$tree" >"$cache/debootstrap.log" 2>&1
    tar -C "$tree" -c . >"$rootfs.part"
    mv "$rootfs.part" "$rootfs"
    rm -rf "$tree"
fi
echo "$rootfs"
