#!/bin/sh
# Puts the real nvidia-smi of drivers 535, 550, 555, 580 and 595, and nvtop, into a private directory, for tests against the simulated driver.
#
#   tests/setup-nvidia-smi.sh [DIRECTORY]     default: .cache/nvidia-smi in the repository
#
# The programs are packages of Debian, from 580 on of Ubuntu, unpacked, never installed: DIR/535/nvidia-smi, …, DIR/nvtop/nvtop.
# Package lists live in the same directory, so the machine's own apt is left alone. Quick if all is there already.
# Exit code 77: this machine can't get them, and the last line says why. Without those from 555 on and nvtop it goes on: Debian's
# experimental suite may drop the one, another archive may be out of reach, and the tests that need them skip.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/.cache/nvidia-smi}

skip() {
    echo "nvidia-smi not available: $1" >&2
    exit 77
}

# The Debian archive this machine uses, from either of apt's two source formats.
archive() {
    cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list 2>/dev/null |
        sed -n -e 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p' \
            -e 's/^deb[[:space:]]\(\[[^]]*\][[:space:]]*\)\{0,1\}\([^[:space:]]*\).*/\2/p' |
        grep '/debian/\{0,1\}$' | head -n 1
}

# fetch FILE VERSION SUITE AREA NAME PACKAGE: unpacks the suite's package, if it is of that version, and keeps this file of it as
# DIR/NAME/FILE. The archive is $mirror, signed with $keys.
fetch() {
    file=$1 version=$2 suite=$3 area=$4 target=$folder/$5 package=$6
    [ -e "$target/$file" ] && return 0
    work=$folder/apt-$suite-$area
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$target"
    echo "deb [signed-by=$keys] $mirror $suite $area" >"$work/sources.list"
    set -- -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=
    apt-get "$@" update || skip "apt can't read $suite $area"
    exact=$(apt-cache "$@" madison "$package" | awk -v v="$version" '$3 ~ "^" v "\\." { print $3; exit }')
    [ -n "$exact" ] || skip "$suite has no $package $version"
    (cd "$work" && apt-get "$@" download "$package=$exact") || skip "download of $package $exact failed"
    dpkg-deb -x "$work"/"$package"_"$version".*.deb "$work/unpacked"
    # Only where programs and keys lie: /usr/share/lintian/overrides/nvidia-smi has the program's name too.
    found=$(cd "$work/unpacked/usr" && find bin lib share/keyrings -type f -name "$file" 2>/dev/null | head -n 1)
    [ -n "$found" ] || skip "$package $exact holds no $file"
    mv "$work/unpacked/usr/$found" "$target/$file"
    rm -rf "$work"
}

has_all() {
    for name in "$@"; do
        [ -x "$folder/$name" ] || return 1
    done
}

keys=/usr/share/keyrings/debian-archive-keyring.gpg
if ! has_all 535/nvidia-smi 550/nvidia-smi 555/nvidia-smi 580/nvidia-smi 595/nvidia-smi nvtop/nvtop; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "this is not a Debian system"
    [ "$(dpkg --print-architecture)" = amd64 ] || skip "the simulated driver is for amd64"
    mirror=$(archive)
    [ -n "$mirror" ] || skip "no Debian archive among apt's sources"
    fetch nvidia-smi 535 bookworm non-free 535 nvidia-smi
    fetch nvidia-smi 550 trixie non-free 550 nvidia-smi
    (fetch nvidia-smi 555 experimental non-free 555 nvidia-smi) || true
    (fetch nvtop 3 bookworm contrib nvtop nvtop) || true
    # Debian vouches for the keys of the other archive.
    if (fetch ubuntu-archive-keyring.gpg 2023 trixie main keys ubuntu-keyring); then
        keys=$folder/keys/ubuntu-archive-keyring.gpg mirror=http://archive.ubuntu.com/ubuntu
        (fetch nvidia-smi 580 noble-updates restricted 580 nvidia-utils-580) || true
        (fetch nvidia-smi 595 noble-updates restricted 595 nvidia-utils-595) || true
    fi
fi
echo "$folder"
