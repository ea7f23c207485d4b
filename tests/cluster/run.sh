#!/bin/sh
# The suite `k8s`: a real cluster, from etcd to kubelet, with simulated GPUs. Exit 77 with a reason where there can be none.
# Builds the cluster's programs if they are not there; `--setup` does only that.
# Another version of Kubernetes: KUBEBUILDER_ASSETS has its programs, CANTLE_TEST_FEATURE_GATES turns on what is off there.
set -eu
cd "$(dirname "$0")/../.."
assets=$(tests/cluster/assets/build.sh)
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
tests/setup-venv.sh
set -- env "KUBEBUILDER_ASSETS=$assets" .venv/bin/python -m pytest -q tests/cluster "$@"

# A node's fixed folders and addresses are the cluster's own: nothing of the machine's is touched, and all is gone at the end.
if [ "$(id -u)" = 0 ] && unshare --net --mount ip link add cable0 type veth peer name cable1 2>/dev/null; then
    mkdir -p /var/lib/kubelet /var/lib/cantle /opt/cantle
    exec unshare --net --mount sh -eu -c '
        for folder in /run /opt/cantle /var/lib/kubelet /var/lib/cantle; do mount -t tmpfs tmpfs $folder; done
        ip link set lo up
        ip address add 10.96.0.1/32 dev lo
        CANTLE_TEST_OWN_NODE=yes exec "$@"' sh "$@"
fi
exec "$@"
