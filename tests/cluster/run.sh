#!/bin/sh
# The suite `k8s`: a real cluster, from etcd to kubelet, with simulated GPUs. Exit 77 with a reason where there can be none.
set -eu
cd "$(dirname "$0")/../.."
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
assets=$(tests/cluster/assets/build.sh)
tests/setup-venv.sh
KUBEBUILDER_ASSETS=$assets exec .venv/bin/python -m pytest -q tests/cluster "$@"
