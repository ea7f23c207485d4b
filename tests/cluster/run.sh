#!/bin/sh
# The suite `k8s`: a real cluster, from etcd to kubelet, with simulated GPUs. Exit 77 with a reason where there can be none.
# Builds the cluster's programs if they are not there; `--setup` does only that. Without words it runs all tests, on two clusters at
# once; with words, which are pytest's, on one.
# Another version of Kubernetes: CANTLE_TEST_KUBERNETES=1.35.4 builds it, or KUBEBUILDER_ASSETS has its programs.
# CANTLE_TEST_FEATURE_GATES turns on what is off there.
set -eu
cd "$(dirname "$0")/../.."
assets=$(tests/cluster/assets/build.sh)
[ "${1:-}" != --setup ] || exit 0
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
tests/setup-venv.sh

# Tests of a cluster wait more than they compute. Each of the two takes the next file that nobody has taken (conftest.py).
if [ $# = 0 ] && [ -z "${CANTLE_TEST_TAKEN:-}" ]; then
    CANTLE_TEST_TAKEN=$(mktemp -d)
    export CANTLE_TEST_TAKEN CANTLE_TEST_CALLS="$CANTLE_TEST_TAKEN"
    # After all others, below.
    mkdir "$CANTLE_TEST_TAKEN/test_rights"
    first='' second='' first_code=0 second_code=0
    # shellcheck disable=SC2086  # none of them, one or both
    trap 'kill $first $second 2>/dev/null || true; wait; rm -rf "$CANTLE_TEST_TAKEN"' EXIT
    trap 'exit 143' INT TERM
    tests/cluster/run.sh &
    first=$!
    tests/cluster/run.sh >"$CANTLE_TEST_TAKEN/log" 2>&1 &
    second=$!
    wait "$first" || first_code=$?
    first=
    wait "$second" || second_code=$?
    second=
    cat "$CANTLE_TEST_TAKEN/log"
    [ "$first_code" = 0 ] || exit "$first_code"
    [ "$second_code" = 0 ] || exit "$second_code"
    # With both clusters' calls.
    env -u CANTLE_TEST_TAKEN .venv/bin/python -m pytest -q tests/cluster/test_rights.py
    exit
fi
set -- env "KUBEBUILDER_ASSETS=$assets" .venv/bin/python -m pytest -q tests/cluster "$@"

# A node's fixed directories and addresses are the cluster's own: nothing of the machine's is touched, and all is gone at the end.
if [ "$(id -u)" = 0 ] && unshare --net --mount ip link add cable0 type veth peer name cable1 2>/dev/null; then
    mkdir -p /var/lib/kubelet /var/lib/cantle /opt/cantle
    exec unshare --net --mount sh -eu -c '
        for folder in /run /opt/cantle /var/lib/kubelet /var/lib/cantle; do mount -t tmpfs tmpfs $folder; done
        ip link set lo up
        ip address add 10.96.0.1/32 dev lo
        CANTLE_TEST_OWN_NODE=yes exec "$@"' sh "$@"
fi
exec "$@"
