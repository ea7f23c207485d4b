#!/bin/sh
# Builds images with their own GPU memory limit (docs/images.md).
#
#   images/build.sh                builds the whole matrix
#   images/build.sh --list         prints the matrix: TAG BASE LIMIT
#   images/build.sh --base IMAGE --limit 6GiB [--context 512MiB] --tag NAME[:TAG]
#
# --base     any image with glibc 2.17 or newer
# --limit    for all processes of a container together, on each GPU that it sees
# --context  memory to charge for the CUDA context of each process: at least what a context takes on your largest GPU
#
# Needs docker and the result of `make build`. CANTLE names the program of another installation.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cantle=${CANTLE:-$here/../dist/bin/cantle}
hooks=${CANTLE_LIB_DIR:-$(dirname "$cantle")/../lib/cantle}/shim/libcantle-image.so

# NVIDIA has no CUDA 11 on Ubuntu 24.04 and no CUDA 13 on Ubuntu 20.04.
matrix() {
    while read -r system base; do
        for gib in 2 4 8 12; do
            echo "cantle/fractional-gpu:$system-${gib}gb $base ${gib}GiB"
        done
    done <<'BASES'
u20-cuda11 nvidia/cuda:11.8.0-runtime-ubuntu20.04
u20-cuda12 nvidia/cuda:12.6.3-runtime-ubuntu20.04
u22-cuda11 nvidia/cuda:11.8.0-runtime-ubuntu22.04
u22-cuda12 nvidia/cuda:12.6.3-runtime-ubuntu22.04
u22-cuda13 nvidia/cuda:13.0.1-runtime-ubuntu22.04
u24-cuda12 nvidia/cuda:12.6.3-runtime-ubuntu24.04
u24-cuda13 nvidia/cuda:13.0.1-runtime-ubuntu24.04
BASES
}

build() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -m 755 "$work/lib" "$work/slice"
    bytes=$("$cantle" image-slice --limit "$3" --context "$context" "$work/slice")
    cp "$hooks" "$work/lib/"
    echo "/opt/cantle/lib/$(basename "$hooks")" >"$work/ld.so.preload"
    chmod 644 "$work/lib"/* "$work/ld.so.preload"
    docker build --file "$here/Dockerfile" --build-arg "BASE=$2" --build-arg "LIMIT_BYTES=$bytes" --tag "$1" "$work"
    rm -rf "$work"
}

base='' limit='' tag='' context=512MiB all=yes
while [ $# -gt 0 ]; do
    case $1 in
    --list) matrix && exit ;;
    --base | --limit | --tag | --context)
        [ $# -gt 1 ] || { echo "build.sh: $1 needs a value" >&2 && exit 2; }
        [ "$1" = --context ] || all=no
        eval "${1#--}=\$2"
        shift 2
        ;;
    *) echo "build.sh: $1 is not known; the comment at the top of the script lists the options" >&2 && exit 2 ;;
    esac
done
if [ $all = yes ]; then
    matrix | while read -r tag base limit; do build "$tag" "$base" "$limit"; done
elif [ -n "$base" ] && [ -n "$limit" ] && [ -n "$tag" ]; then
    build "$tag" "$base" "$limit"
else
    echo "build.sh: --base, --limit and --tag go together" >&2
    exit 2
fi
