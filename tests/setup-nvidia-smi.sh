#!/bin/sh
# Puts the real nvidia-smi of drivers 535 and 550 into a private folder, for tests against the simulated driver.
#
#   tests/setup-nvidia-smi.sh [FOLDER]     default: .cache/nvidia-smi in the repository
#
# The programs are Debian packages (non-free), unpacked, never installed: FOLDER/535/nvidia-smi, FOLDER/550/nvidia-smi.
# Package lists live in the same folder, so the machine's own apt is left alone. Quick if all is there already.
# Exit code 77: this machine can't get them, and the last line says why.
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

# fetch VERSION SUITE: unpacks the suite's nvidia-smi if it belongs to that driver branch.
fetch() {
    version=$1 suite=$2 target=$folder/$1
    [ -x "$target/nvidia-smi" ] && return 0
    work=$folder/apt-$suite
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$target"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite non-free" >"$work/sources.list"
    set -- -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=
    apt-get "$@" update || skip "apt can't read $suite non-free"
    package=$(apt-cache "$@" madison nvidia-smi | awk -v v="$version" '$3 ~ "^" v "\\." { print $3; exit }')
    [ -n "$package" ] || skip "$suite has no nvidia-smi $version"
    (cd "$work" && apt-get "$@" download "nvidia-smi=$package") || skip "download of nvidia-smi $package failed"
    dpkg-deb -x "$work"/nvidia-smi_"$version".*.deb "$work/unpacked"
    # The package holds links into a folder named after the driver; the program is the only ELF file among them.
    program=$(find "$work/unpacked" -type f -name nvidia-smi -perm -u+x | head -n 1)
    [ -n "$program" ] || skip "nvidia-smi $package holds no program"
    mv "$program" "$target/nvidia-smi"
    rm -rf "$work"
}

if ! { [ -x "$folder/535/nvidia-smi" ] && [ -x "$folder/550/nvidia-smi" ]; }; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "this is not a Debian system"
    [ "$(dpkg --print-architecture)" = amd64 ] || skip "the simulated driver is for amd64"
    mirror=$(archive)
    [ -n "$mirror" ] || skip "no Debian archive among apt's sources"
    fetch 535 bookworm
    fetch 550 trixie
fi
echo "$folder"
