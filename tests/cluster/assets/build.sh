#!/bin/sh
# Prints the directory of the programs of a Kubernetes cluster: $KUBEBUILDER_ASSETS, or a cache outside the tree, which is filled by
# building them with Go from the modules next to this file. Exit 77 with a reason where that can't be.
# CANTLE_TEST_KUBERNETES=1.35.4 builds that version of Kubernetes in place of the default's.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
default=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/kubernetes/go.mod")
version=v${CANTLE_TEST_KUBERNETES:-${default#v}}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cantle/kubernetes-$version

complete() {
    for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet; do
        [ -x "$1/$program" ] || return 1
    done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    complete "$KUBEBUILDER_ASSETS" || { echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS lacks a program of a cluster" >&2; exit 1; }
    echo "$KUBEBUILDER_ASSETS"
    exit 0
fi
has_cluster() {
    complete "$cache" && [ -x "$cache/containerd" ]
}

# NVIDIA's device plugin is another vendor's, and C: where it can't be built, the tests next to it are skipped with a
# reason.
plugin() {
    (cd "$here/nvidia" && go mod download) >&2 || return 0
    flags='-s -w -extldflags=-Wl,-z,lazy'
    (cd "$here/nvidia" && CGO_ENABLED=1 go build -trimpath -ldflags "$flags" -o "$work/plugin" tool) >&2 || return 0
    mv "$work/plugin" "$1/plugin.part" && mv "$1/plugin.part" "$1/nvidia-device-plugin"
}

# What starts the containers: Debian's own is too old for user namespaces, whose pods need seccomp. Where it can't be built, the
# machine's serves, and the test of user namespaces is skipped with a reason.
runtime() {
    if ! pkg-config --exists libseccomp 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -qq pkg-config libseccomp-dev >&2 || return 0
    fi
    (cd "$here/runc" && go mod download) >&2 || return 0
    flags='-s -w -extldflags=-Wl,-z,lazy'
    (cd "$here/runc" && CGO_ENABLED=1 go build -trimpath -tags seccomp -ldflags "$flags" -o "$work/runc" tool) >&2 || return 0
    mv "$work/runc" "$1/runc.part" && mv "$1/runc.part" "$1/runc"
}

# What a user types the pages' commands with: the real programs, of one module. Where they can't be built, those in PATH serve.
clients() {
    (cd "$here/clients" && go mod download) >&2 || return 0
    (cd "$here/clients" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$work/clients/" tool) >&2 || return 0
    for program in helm kubectl; do
        mv "$work/clients/$program" "$1/$program.part" && mv "$1/$program.part" "$1/$program"
    done
}

# Kueue with its chart, for the soak alone. The checksum database lacks a module that it needs; Kueue's own go.sum, which the
# database's sum of Kueue covers, has that module's.
kueue() {
    (cd "$here/kueue" && go mod download) >&2 || return 0
    (cd "$here/kueue" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$work/kueue" tool) >&2 || return 0
    rm -rf "$1/kueue-chart"
    cp -R "$(cd "$here/kueue" && go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/charts/kueue" "$1/kueue-chart"
    chmod -R u+w "$1/kueue-chart"
    mv "$work/kueue" "$1/kueue.part" && mv "$1/kueue.part" "$1/kueue"
}
wants_kueue() {
    [ -n "${CANTLE_TEST_KUEUE:-}" ] && ! [ -x "$1/kueue" ]
}

is_default() {
    [ "$version" = "$default" ]
}
# The module of another version: of its own modules that version, and of all others what Kubernetes' go.mod requires. It has no
# go.sum of its own: Go asks the checksum database about what it downloads.
other_module() {
    mkdir -p "$work/kubernetes"
    awk -v from="v0.${default#v1.}" -v to="v0.${version#v1.}" '
        /^require/ { is_left_out = 1 }
        ! is_left_out { gsub(from, to); print }
        /^\)/ { is_left_out = 0 }
    ' "$here/kubernetes/go.mod" >"$work/kubernetes/go.mod"
    echo "require k8s.io/kubernetes $version" >>"$work/kubernetes/go.mod"
    (cd "$work/kubernetes" && go list -mod=mod -deps tool) >/dev/null
}

if ! is_default && has_cluster; then
    echo "$cache"
    exit 0
fi
if has_cluster && ! wants_kueue "$cache" && [ -x "$cache/nvidia-device-plugin" ] && [ -x "$cache/helm" ] &&
    [ -x "$cache/kubectl" ] && [ -x "$cache/runc" ]; then
    echo "$cache"
    exit 0
fi
if ! command -v go >/dev/null; then
    has_cluster && { echo "$cache"; exit 0; }
    echo "no Kubernetes programs here, and no Go to build them; set KUBEBUILDER_ASSETS" >&2
    exit 77
fi

others=
is_default || others=$(env -u CANTLE_TEST_KUBERNETES "$here/build.sh")

# A build of its own: what it compiles is some gigabytes that nobody needs again.
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
# Go's compiler spends a sixth of its time on collecting garbage, and a tenth on debug information that the linker drops.
export GOGC=400 GOFLAGS="-mod=readonly -gcflags=all=-dwarf=false"
export CGO_ENABLED=0 GOCACHE="${CANTLE_GO_CACHE:-$work/cache}" GOMODCACHE="$work/modules"
mkdir -p "$work/clients"
if has_cluster; then
    [ -x "$cache/nvidia-device-plugin" ] || plugin "$cache"
    [ -x "$cache/runc" ] || runtime "$cache"
    [ -x "$cache/kubectl" ] && [ -x "$cache/helm" ] || clients "$cache"
    ! wants_kueue "$cache" || kueue "$cache"
    echo "$cache"
    exit 0
fi
echo "building Kubernetes $version once, into $cache: twelve minutes of one core" >&2
mkdir -p "$work/out"
base=k8s.io/component-base/version
minor=$(echo "$version" | cut -d. -f2)
named="-X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=$minor -X $base.gitTreeState=clean"
no_source() {
    echo "no Kubernetes programs here, and Go could not fetch their source; set KUBEBUILDER_ASSETS" >&2
    exit 77
}
kubernetes() {
    (cd "$1/kubernetes" && go build -trimpath -ldflags "-s -w $named" -o "$work/out/" tool) >&2
    mv "$work/out/server" "$work/out/etcd"
}
if is_default; then
    for module in kubernetes containerd; do
        (cd "$here/$module" && go mod download) >&2 || no_source
    done
    kubernetes "$here"
    (cd "$here/containerd" && go build -trimpath -ldflags "-s -w" -tags no_btrfs,no_zfs,no_devmapper -o "$work/out/" tool) >&2
    plugin "$work/out"
    runtime "$work/out"
    clients "$work/out"
    ! wants_kueue "$work/out" || kueue "$work/out"
else
    other_module >&2 || no_source
    kubernetes "$work"
    # What is not Kubernetes' is the same.
    for file in "$others"/*; do
        [ -e "$work/out/${file##*/}" ] || cp -Rl "$file" "$work/out/"
    done
fi
# All of them or none: a later run would not notice a half-filled cache.
mkdir -p "$(dirname "$cache")"
rm -rf "$cache" "$cache.part"
mv "$work/out" "$cache.part"
mv "$cache.part" "$cache"
echo "$cache"
