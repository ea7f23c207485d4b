#!/bin/sh
# Prints a directory with NVIDIA's container runtime, its hook, nvidia-ctk and nvidia-cdi-hook: `toolkit.sh [VERSION]`. Not among them is
# nvidia-container-cli, a C program that drives a real driver. Built with Go, once, into a cache; the source comes as Go modules. Exit 77
# with a reason where that can't be.
set -eu
version=${1:-1.17.8}
module=github.com/NVIDIA/nvidia-container-toolkit
case $version in
1.17.8) sum=h1:ndE23TKvQBicsZT88mzZudygn6JNOe6+UsIgqk6gGvw= ;;
1.20.1) sum=h1:DsE0Pnu2XAl7IC00W2tmld7i/GerwnZGzRbmChj295Q= ;;
*)
    echo "toolkit.sh: what must $version be? Only 1.17.8 and 1.20.1 are known here" >&2
    exit 2
    ;;
esac
cache=${CANTLE_TEST_CACHE:-$(cd "$(dirname "$0")/../.." && pwd)/.cache/docker}/nvidia-container-toolkit-$version

skip() {
    echo "skipped: no NVIDIA container toolkit $version: $1" >&2
    exit 77
}

if [ -x "$cache/nvidia-container-runtime" ]; then
    echo "$cache"
    exit 0
fi
command -v go >/dev/null || skip "there is no Go to build it"
command -v gcc >/dev/null || skip "there is no C compiler to build it"
work=$(mktemp -d)
trap 'exit 143' INT TERM
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
# It opens NVML when it runs: the names are not resolved when it is linked.
export CGO_ENABLED=1 CGO_LDFLAGS="-Wl,--unresolved-symbols=ignore-in-object-files"
export GO111MODULE=on GOFLAGS=-mod=readonly GOWORK=off GOCACHE="${CANTLE_GO_CACHE:-$work/cache}" GOMODCACHE="$work/modules"
echo "building NVIDIA's container toolkit $version once, into $cache: two minutes" >&2
(cd "$work" && go mod download -json "$module@v$version") >"$work/download" || {
    cat "$work/download" >&2
    skip "Go could not fetch its source"
}
grep -qF "\"Sum\": \"$sum\"" "$work/download" || { echo "$module $version is not what it was" >&2; exit 1; }
cp -r "$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' "$work/download")" "$work/tree"
chmod -R u+w "$work/tree"
rm -rf "$work/tree/vendor"
(cd "$work/tree" && go build -trimpath -ldflags "-s -w" -o "$work/out/" ./cmd/nvidia-ctk ./cmd/nvidia-container-runtime \
    ./cmd/nvidia-container-runtime-hook ./cmd/nvidia-cdi-hook) >"$work/log" 2>&1 || {
    tail -5 "$work/log" >&2
    skip "it could not be built"
}
# All of them or none: a later run would not notice a half-filled cache.
mkdir -p "$(dirname "$cache")"
rm -rf "$cache" "$cache.part"
mv "$work/out" "$cache.part"
mv "$cache.part" "$cache"
echo "$cache"
