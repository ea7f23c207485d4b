#!/bin/sh
# Prints the folder with the programs of a Kubernetes cluster: $KUBEBUILDER_ASSETS, or a cache outside the tree, which is filled by
# building them with Go from the modules beside this file. Exit 77 with a reason where that can't be.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/kubernetes/go.mod")
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
if complete "$cache" && [ -x "$cache/containerd" ]; then
    echo "$cache"
    exit 0
fi
command -v go >/dev/null || { echo "no Kubernetes programs here, and no Go to build them; set KUBEBUILDER_ASSETS" >&2; exit 77; }
echo "building Kubernetes $version once, into $cache: twelve minutes of one core" >&2

# A build of its own: what it compiles is some gigabytes that nobody needs again.
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOCACHE="$work/cache" GOMODCACHE="$work/modules"
mkdir -p "$work/out"
base=k8s.io/component-base/version
minor=$(echo "$version" | cut -d. -f2)
named="-X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=$minor -X $base.gitTreeState=clean"
for module in kubernetes containerd; do
    (cd "$here/$module" && go mod download) >&2 || { echo "no Kubernetes programs here, and Go could not fetch their source; set KUBEBUILDER_ASSETS" >&2; exit 77; }
done
(cd "$here/kubernetes" && go build -trimpath -ldflags "-s -w $named" -o "$work/out/" tool) >&2
mv "$work/out/server" "$work/out/etcd"
(cd "$here/containerd" && go build -trimpath -ldflags "-s -w" -tags no_btrfs,no_zfs,no_devmapper -o "$work/out/" tool) >&2
# All of them or none: whoever comes after a half-filled cache would not notice.
mkdir -p "$(dirname "$cache")"
rm -rf "$cache" "$cache.part"
mv "$work/out" "$cache.part"
mv "$cache.part" "$cache"
echo "$cache"
