#!/bin/sh
# Prints a directory with a Docker engine newer than Debian's: dockerd, docker-proxy, docker and dockerd-rootless.sh. Ahead in PATH it is
# what engine.sh starts. containerd and runc are the machine's (dockerd takes Debian's containerd 1.6 and runc 1.1).
# Built with Go, once, into a cache; its source comes as Go modules. Exit 77 with a reason where that can't be.
set -eu
version=28.5.2
# What the modules must be; their own lists of modules (vendor.sum) say the same of everything below them.
engine_sum=h1:DBX0Y0zAjZbSrm1uzOkdr1onVghKaftjlSWt4AFexzM=
client_sum=h1:XmG99IHcBmIAoC1PPg9eLBZPlTrNUAijsHLm8PjhBlg=
cache=${CANTLE_TEST_CACHE:-$(cd "$(dirname "$0")/../.." && pwd)/.cache/docker}/moby-$version

skip() {
    echo "skipped: no Docker engine $version: $1" >&2
    exit 77
}

if [ -x "$cache/dockerd" ]; then
    echo "$cache"
    exit 0
fi
command -v go >/dev/null || skip "there is no Go to build it"

# A build of its own: what it compiles is two gigabytes that nobody needs again.
work=$(mktemp -d)
trap 'exit 143' INT TERM
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
export CGO_ENABLED=0 GO111MODULE=on GOFLAGS=-mod=readonly GOWORK=off GOCACHE="${CANTLE_GO_CACHE:-$work/cache}" GOMODCACHE="$work/modules"

# source_of MODULE SUM PROGRAM...: puts the module's files into $work/NAME, as a module whose programs can be built.
source_of() {
    (cd "$work" && go mod download -json "$1@v$version+incompatible") >"$work/download" || {
        cat "$work/download" >&2
        skip "Go could not fetch its source"
    }
    grep -qF "\"Sum\": \"$2\"" "$work/download" || { echo "$1 $version is not what it was" >&2; exit 1; }
    tree=$work/$(basename "$1")
    cp -r "$work/modules/$1@v$version+incompatible" "$tree"
    chmod -R u+w "$tree"
    rm -rf "$tree/vendor"
    # The project keeps its list of modules under another name.
    mv "$tree/vendor.mod" "$tree/go.mod"
    mv "$tree/vendor.sum" "$tree/go.sum"
    shift 2
    (cd "$tree" && go list -deps "$@") >/dev/null 2>"$work/log" || {
        tail -5 "$work/log" >&2
        skip "Go could not fetch the modules that it needs"
    }
}
echo "building Docker $version once, into $cache: eight minutes of one core, two gigabytes in the meantime" >&2
source_of github.com/docker/docker "$engine_sum" ./cmd/dockerd ./cmd/docker-proxy
source_of github.com/docker/cli "$client_sum" ./cmd/docker
mkdir -p "$work/out"
(cd "$work/docker" && go build -trimpath -tags exclude_graphdriver_btrfs,exclude_graphdriver_zfs \
    -ldflags "-s -w -X github.com/docker/docker/dockerversion.Version=$version" -o "$work/out/" ./cmd/dockerd ./cmd/docker-proxy) >&2
(cd "$work/cli" && go build -trimpath -ldflags "-s -w -X github.com/docker/cli/cli/version.Version=$version" \
    -o "$work/out/" ./cmd/docker) >&2
install "$work/docker/contrib/dockerd-rootless.sh" "$work/out/"
# All of them or none: a later run would not notice a half-filled cache.
mkdir -p "$(dirname "$cache")"
rm -rf "$cache" "$cache.part"
mv "$work/out" "$cache.part"
mv "$cache.part" "$cache"
echo "$cache"
