#!/bin/sh
# Prints a directory with the disk, the kernel and the initial RAM disk of a Debian 12 as its installer leaves it: systemd, control groups of
# version 2, AppArmor; with Docker, Podman and an SSH server. Made once: 500 MB of packages, two minutes. Exit 77 with a reason where it can't be.
set -eu
skip() {
    echo "skipped: no virtual machine here: $1" >&2
    exit 77
}
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${CANTLE_TEST_CACHE:-$root/.cache}/vm
[ "$(id -u)" = 0 ] || skip "its disk is made by root"
if ! { command -v qemu-system-x86_64 && command -v debootstrap; } >/dev/null; then
    apt-get install -y --no-install-recommends qemu-system-x86 debootstrap openssh-client >/dev/null 2>&1 || skip "qemu cannot be installed"
fi
if [ ! -s "$cache/disk.img" ]; then
    mkdir -p "$cache"
    work=$(mktemp -d -p "$cache")
    trap 'rm -rf "$work"' EXIT
    tree=$work/tree
    packages=linux-image-cloud-amd64,systemd-sysv,libpam-systemd,dbus,udev,kmod,procps,apparmor,initramfs-tools,iproute2,iptables,ca-certificates
    debootstrap --variant=minbase --include="$packages,python3,openssh-server" bookworm "$tree" >"$cache/log" 2>&1
    # Nothing of them starts here.
    printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
    chmod +x "$tree/usr/sbin/policy-rc.d"
    mount -t proc proc "$tree/proc"
    DEBIAN_FRONTEND=noninteractive chroot "$tree" apt-get install -y --no-install-recommends docker.io podman crun >>"$cache/log" 2>&1 ||
        { umount "$tree/proc"; tail -n 5 "$cache/log" >&2; exit 1; }
    umount "$tree/proc"
    rm "$tree/usr/sbin/policy-rc.d" "$tree"/var/cache/apt/archives/*.deb
    echo '/dev/vda / ext4 defaults 0 1' >"$tree/etc/fstab"
    echo box >"$tree/etc/hostname"
    echo '127.0.0.1 localhost box' >"$tree/etc/hosts"
    printf '[Match]\nName=en*\n[Network]\nDHCP=yes\n' >"$tree/etc/systemd/network/80-dhcp.network"
    chroot "$tree" systemctl enable systemd-networkd ssh >>"$cache/log" 2>&1
    rm -f "$cache/key" "$cache/key.pub"
    ssh-keygen -q -t ed25519 -N '' -f "$cache/key"
    mkdir -p -m 700 "$tree/root/.ssh"
    cp "$cache/key.pub" "$tree/root/.ssh/authorized_keys"
    cp "$tree"/boot/vmlinuz-* "$cache/kernel"
    cp "$tree"/boot/initrd.img-* "$cache/initrd"
    truncate -s 12G "$work/disk.img"
    mkfs.ext4 -q -d "$tree" "$work/disk.img"
    mv "$work/disk.img" "$cache/disk.img"
fi
echo "$cache"
