#!/bin/sh
# Prints the archive of a Debian with Python and the certificates of authorities that test containers are made of: `rootfs.sh [RELEASE [systemd]]`, by
# default bookworm; bullseye (glibc 2.31, Python 3.9) is the oldest that Debian's servers still have. With systemd it can be booted
# (tests/packages/boot.sh). Made once with debootstrap, which needs root.
set -eu
release=${1:-bookworm}
include=python3,ca-certificates
[ "$release" = bookworm ] || include=$include,python3-venv
name=$release-minbase-certificates
if [ "${2:-}" = systemd ]; then
    include=$include,systemd,systemd-sysv,dbus
    name=$name-systemd
fi
cache=${CANTLE_TEST_CACHE:-$(cd "$(dirname "$0")/.." && pwd)/.cache/docker}
rootfs=$cache/$name.tar
if [ ! -s "$rootfs" ]; then
    mkdir -p "$cache"
    tree=$(mktemp -d)
    # The mode of the archive's root, which is for all users.
    chmod 755 "$tree"
    debootstrap --variant=minbase --include="$include" "$release" "$tree" >"$cache/debootstrap-$name.log" 2>&1
    # Packages that are installed already.
    rm -f "$tree"/var/cache/apt/archives/*.deb
    tar -C "$tree" -c . >"$rootfs.part"
    mv "$rootfs.part" "$rootfs"
    rm -rf "$tree"
fi
echo "$rootfs"
