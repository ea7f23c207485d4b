#!/bin/sh
# Prints the path of NVIDIA's container runtime, set up in DIR for one of its modes: `nvidia_runtime.sh DIR legacy|cdi|jit-cdi`. The runtime, its hook
# and the hooks of CDI are NVIDIA's own; nvidia-container-cli, which legacy mode calls, is a stand-in, and so is the CDI
# spec of this machine's GPUs: nvidia-ctk takes character devices only, and simulated GPUs are none.
set -eu
dir=$1 mode=$2
here=$(cd "$(dirname "$0")" && pwd)
# The mode in which it writes a spec for each container came with 1.18.
version=1.17.8
[ "$mode" != jit-cdi ] || version=1.20.1
tools=$("$here/toolkit.sh" $version | tail -n 1)
libraries=/usr/lib/x86_64-linux-gnu
mkdir -p "$dir/nvidia-container-runtime" "$dir/cdi"

cat >"$dir/nvidia-container-cli" <<'END'
#!/bin/sh
# Stand-in for nvidia-container-cli: driver libraries and nodes of all GPUs, in the mount namespace and devices cgroup of a container.
set -e
compat=
for word; do
    case $word in
    --pid=*) pid=${word#--pid=} ;;
    --cuda-compat-mode=ldconfig) compat=/usr/local/cuda/compat ;;
    esac
    rootfs=$word
done
enter() { nsenter -t "$pid" -m "$@"; }
for library in LIBRARIES/libcuda.so.1 LIBRARIES/libnvidia-ml.so.1; do
    real=$(realpath "$library")
    enter sh -ec 'mkdir -p "$(dirname "$2")"; [ -e "$2" ] || : >"$2"; mount --bind "$1" "$2"' - "$real" "$rootfs$real"
done
cgroup=$(sed -n 's/^[0-9]*:devices://p' "/proc/$pid/cgroup")
for node in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm; do
    kind=c; [ ! -b "$node" ] || kind=b
    numbers=$(stat -c '%Hr %Lr' "$node" 2>/dev/null || stat -c '0x%t 0x%T' "$node")
    # shellcheck disable=SC2086  # two words
    [ ! -b "$node" ] && [ ! -c "$node" ] || enter sh -ec '[ -e "$1" ] || mknod -m 666 "$1" "$2" "$3" "$4"' - "$rootfs$node" $kind $numbers
    [ -b "$node" ] || [ -c "$node" ] || enter sh -ec ': >"$2"; mount --bind "$1" "$2"' - "$node" "$rootfs$node"
    echo "$kind $(echo "$numbers" | awk '{ printf "%d:%d", $1, $2 }') rwm" >"/sys/fs/cgroup/devices$cgroup/devices.allow" 2>/dev/null || true
done
# A compatibility package of a newer branch comes first.
major() { sed -n 's/.*libcuda\.so\.\([0-9]*\)\..*/\1/p' | head -n 1; }
driver=$(realpath LIBRARIES/libcuda.so.1 | major)
newer=$([ -z "$compat" ] || enter chroot "$rootfs" ls $compat 2>/dev/null | major)
[ "${newer:-0}" -gt "${driver:-0}" ] || compat=
# shellcheck disable=SC2086  # a directory, or none
enter chroot "$rootfs" /sbin/ldconfig $compat
END
sed -i "s#LIBRARIES#$libraries#g" "$dir/nvidia-container-cli"

cat >"$dir/nvidia-container-runtime/config.toml" <<END
[nvidia-container-cli]
path = "$dir/nvidia-container-cli"
load-kmods = false
[nvidia-container-runtime]
mode = "$mode"
debug = "$dir/runtime.log"
runtimes = ["runc"]
[nvidia-container-runtime.modes.cdi]
spec-dirs = ["$dir/cdi"]
default-kind = "nvidia.com/gpu"
[nvidia-container-runtime.modes.jit-cdi]
# It reads /proc/driver/nvidia/params, which simulated GPUs have not.
nvcdi-disable-hooks = ["disable-device-node-modification"]
[nvidia-container-runtime-hook]
path = "$tools/nvidia-container-runtime-hook"
[nvidia-ctk]
path = "$tools/nvidia-ctk"
END

DIR=$dir TOOLS=$tools LIBRARIES=$libraries python3 - <<'END'
import glob, json, os, re
libraries, hook = os.environ["LIBRARIES"], os.environ["TOOLS"] + "/nvidia-cdi-hook"
nodes = [{"path": path} for path in [*sorted(glob.glob("/dev/nvidia[0-9]*")), "/dev/nvidiactl", "/dev/nvidia-uvm"]]
mounts, links = [], []
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    real = os.path.realpath(f"{libraries}/{name}")
    mounts.append({"hostPath": real, "containerPath": real, "options": ["ro", "nosuid", "nodev", "bind"]})
    version = re.search(r"so\.(.*)", real)[1]
    links += ["--link", f"{os.path.basename(real)}::{libraries}/{name}"]
def edit(*words):
    return {"hookName": "createContainer", "path": hook, "args": ["nvidia-cdi-hook", *words]}
spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {"deviceNodes": nodes}}],
        "containerEdits": {"mounts": mounts, "hooks": [edit("create-symlinks", *links),
        edit("enable-cuda-compat", f"--host-driver-version={version}"), edit("update-ldcache", "--folder", libraries)]}}
json.dump(spec, open(os.environ["DIR"] + "/cdi/nvidia.json", "w"))
END

cat >"$dir/runtime" <<END
#!/bin/sh
# Its settings are in /etc otherwise, which is the machine's.
XDG_CONFIG_HOME=$dir PATH=$dir:$tools:\$PATH exec $tools/nvidia-container-runtime "\$@"
END
chmod +x "$dir/nvidia-container-cli" "$dir/runtime"
echo "$dir/runtime"
