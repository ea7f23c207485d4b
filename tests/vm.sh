#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's kernel, as most nodes have it: control groups of version 2, AppArmor, modules.
#
#   tests/vm.sh COMMAND…    in this directory, as root; exits as the command does
#
# Its files are this machine's. What it writes stays in its memory, and is gone with it. It has no network but its own.
# Where /dev/kvm does not start its kernel, the processor is emulated, about ten times slower. CANTLE_TEST_VM_MEMORY is its memory
# [default: 12G]. Exit 77 with a reason where there can be none.
set -euo pipefail
memory=${CANTLE_TEST_VM_MEMORY:-12G}
skip() { echo "vm.sh: skipped: $*" >&2; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"

# Container engines need apparmor_parser where there is AppArmor.
installed() {
    for program in qemu-system-x86_64 /usr/lib/qemu/virtiofsd busybox cpio depmod apparmor_parser; do command -v "$program" || return 1; done
}
if ! installed >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 busybox-static cpio kmod apparmor >/dev/null 2>&1 || true
    installed >/dev/null || skip "needs Debian's qemu-system-x86, busybox-static, cpio, kmod and apparmor"
fi

# The kernel is unpacked, not installed: the machine's own boot is left alone.
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p' | head -1)
[ -n "$package" ] || skip "no package of a kernel"
release=${package#linux-image-}
kernel=${XDG_CACHE_HOME:-$HOME/.cache}/cantle/$package
if [ ! -e "$kernel/boot/vmlinuz-$release" ]; then
    made=$(mktemp -d)
    (cd "$made" && apt-get download -qq "$package" 2>/dev/null) || skip "$package cannot be downloaded"
    rm -rf "$kernel" && mkdir -p "$kernel"
    dpkg -x "$made"/*.deb "$kernel"
    depmod -b "$kernel" "$release"
    rm -r "$made"
fi

dir=$(mktemp -d)
trap 'kill $files 2>/dev/null || true; rm -rf "$dir"' EXIT
files=

# The first programs: they mount the machine's files, and start the second part there.
root=$dir/root
mkdir -p "$root/bin" "$root/lib/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
for module in virtio_pci virtiofs overlay; do
    modprobe -d "$kernel" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$root/modules"
while read -r file; do cp "$file" "$root/lib/modules/"; done <"$root/modules"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
set -e
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /own /all
mount -t proc proc /proc
! grep -qw probe /proc/cmdline || reboot -f
while read -r file; do insmod "/lib/modules/${file##*/}"; done </modules
mount -t virtiofs -o ro host /host
mount -t tmpfs -o mode=755 own /own
mkdir /own/upper /own/work
mount -t overlay -o lowerdir=/host,upperdir=/own/upper,workdir=/own/work files /all
umount /proc
mkdir -p /all/cantle-vm
cp /second /command /all/cantle-vm/
exec switch_root /all /bin/bash /cantle-vm/second
INIT
cat >"$root/second" <<SECOND
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t securityfs securityfs /sys/kernel/security
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# An overlay can't be the upper part of another one, as container engines need it.
for folder in /run /tmp /dev/shm /var/lib/docker /var/lib/containerd /var/lib/kubelet /var/lib/cantle; do
    mkdir -p \$folder
    mount -t tmpfs -o mode=1777,size=80% tmpfs \$folder
done
mkdir -p /lib/modules/$release
mount --bind "$kernel/lib/modules/$release" /lib/modules/$release
ip link set lo up
hostname cantle-vm
export HOME=$(printf %q "$HOME") PATH=$(printf %q "$PATH") TERM=dumb
# Simulated GPUs have device nodes by it.
modprobe loop
echo "vm: Linux $release; control groups of version 2: \$(cat /sys/fs/cgroup/cgroup.controllers); \$(cat /sys/kernel/security/lsm)"
cd $(printf %q "$PWD")
bash /cantle-vm/command
echo \$? >/dev/ttyS1
sync
echo b >/proc/sysrq-trigger
SECOND
# The command, with the settings of the tests.
{ export -p | grep -E '^declare -x (CANTLE_|CARGO_|KUBEBUILDER_|PYTEST_)' || true; printf '%q ' "$@"; echo; } >"$root/command"
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$dir/initrd"

# boot SECONDS ACCELERATOR PROCESSOR WORDS…: with words for the kernel; 0 s: without a limit.
boot() {
    rm -f "$dir/files.sock"
    # It ends with the machine that it serves.
    /usr/lib/qemu/virtiofsd --socket-path="$dir/files.sock" -o source=/ -o cache=always -o sandbox=chroot >"$dir/files.log" 2>&1 &
    files=$!
    for _ in $(seq 100); do [ -S "$dir/files.sock" ] && break; sleep 0.1; done
    timeout "$1" qemu-system-x86_64 -machine "q35,accel=$2,memory-backend=memory" -cpu "$3" -smp "$(nproc)" -m "$memory" \
        -object "memory-backend-memfd,id=memory,size=$memory,share=on" \
        -chardev "socket,id=files,path=$dir/files.sock" -device vhost-user-fs-pci,chardev=files,tag=host \
        -kernel "$kernel/boot/vmlinuz-$release" -initrd "$dir/initrd" -append "console=ttyS0 quiet panic=-1 ${*:4}" \
        -display none -nodefaults -no-reboot -serial stdio -serial "file:$dir/exit" </dev/null
}
# Inside a virtual machine, /dev/kvm may be there and start no kernel but its own. Nor can the processor's list of its flaws
# be read everywhere.
processor=(tcg max)
kvm=(kvm host,-arch-capabilities)
if [ -w /dev/kvm ] && boot 20 "${kvm[@]}" probe >"$dir/probe.log" 2>&1; then processor=("${kvm[@]}"); fi
boot 0 "${processor[@]}"
code=$(tr -dc 0-9 <"$dir/exit")
[ -n "$code" ] || { echo "vm.sh: the machine ended before the command did" >&2; exit 1; }
exit "$code"
