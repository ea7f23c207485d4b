#!/usr/bin/env bash
# Every suite on an optimized build; then the long forms of the crash tests, and the fuzzer: some hours. `make test-all` runs the same tests in
# their short form, on a build of the profile dev.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo xtask test
cargo xtask test --full
export CANTLE_STRESS_KILLS="${CANTLE_STRESS_KILLS:-10000}"
cargo test --release --locked -p cantle-ledger --test processes
PROPTEST_CASES=100000 cargo test --release --locked -p cantle-ledger --test hostile
CANTLE_WORLD_SEEDS="${CANTLE_WORLD_SEEDS:-10000}" cargo test --workspace --locked --test world in_every_world -- --nocapture
# All of them, and the last one with a thousand kills.
CANTLE_TEST_KILLS="${CANTLE_TEST_KILLS:-1000}" .venv/bin/python tests/faults/faults.py --write docs/faults.md || echo "not all faults end as expected: docs/faults.md"
# Tokens, key pairs, cookies and answers of an identity provider: none gets in.
CANTLE_HOSTILE="${CANTLE_HOSTILE:-1000000}" cargo test --release --locked -p cantle-server --lib -- --nocapture hostile no_answer_for
# Requests with the ids of hidden things: none makes the server fail, shows them, or changes them.
CANTLE_HOSTILE="${CANTLE_HOSTILE:-1000000}" cargo test --release --locked -p cantle-server --test api -- --nocapture hostile_requests::
# A team of forty that asks for an hour: by HTTP, the command line, the SDK and the page, where a browser is.
tests/ui/run.sh --setup && CANTLE_TEST_TEAM_S="${CANTLE_TEST_TEAM_S:-3600}" .venv/bin/python -m pytest -q -s tests/e2e/test_team.py
fuzz/run.sh "${CANTLE_FUZZ_SECONDS:-600}"
CANTLE_STRESS_MIG="${CANTLE_STRESS_MIG:-100000}" cargo test --release --locked -p cantle-node --lib mig::tests::tasks_come -- --nocapture
# Each MIG call is a process here, as in production; seventeen test processes at once.
CANTLE_STRESS_MIG_PROCESSES="${CANTLE_STRESS_MIG_PROCESSES:-100000}" \
    cargo test --release --locked -p cantle-node --lib mig::tests::nor_do -- --nocapture
CANTLE_TEST_AGENTS=20 CANTLE_TEST_TASKS=1000 tests/clearml/run.sh -k many_tasks
# 32 environments at once, in eighths of four GPUs.
CANTLE_TEST_SIDE_BY_SIDE="${CANTLE_TEST_SIDE_BY_SIDE:-32}" CANTLE_TEST_GPUS="${CANTLE_TEST_GPUS:-4xA100-40GB}" \
    tests/clearml/run.sh -k environments_of_their_own
# A million ended tasks, on both databases.
CANTLE_BENCH_TASKS=1000000 tests/bench/fleet.sh
# A thousand kills of connections, and of PostgreSQL itself.
CANTLE_TEST_KILLS=1000 tests/postgres/with-server.sh cargo test --release --locked -p cantle-store --test kills -- --nocapture || [ $? = 77 ]
tests/postgres/with-server.sh cargo test --release --locked -p cantle-server --test api -- matrix:: || [ $? = 77 ]
# The same of whole servers; then faults that last a minute.
CANTLE_TEST_KILLS=1000 tests/postgres/with-server.sh .venv/bin/python -m pytest -q -s tests/postgres/test_kills.py || [ $? = 77 ]
CANTLE_TEST_KILLS=16 CANTLE_TEST_PAUSE_S=60 tests/postgres/with-server.sh .venv/bin/python -m pytest -q -s tests/postgres/test_kills.py || [ $? = 77 ]
CANTLE_TEST_WEEKS="${CANTLE_TEST_WEEKS:-10}" tests/clearml/run.sh -k week
.venv/bin/python -m pytest -q tests/bypass/test_crash.py
# The limits on a driver of CUDA 12; the default is one of CUDA 13.
CANTLE_TEST_DRIVER=550.163.01 .venv/bin/python -m pytest -q tests/bypass
# CuPy, PyTorch for CUDA 12, all of JAX's allocators, NCCL.
CANTLE_TEST_ALL=yes tests/frameworks/run.sh || [ $? = 77 ]
CANTLE_TEST_KILLS="$CANTLE_STRESS_KILLS" .venv/bin/python -m pytest -q tests/simgpu/test_processes.py
# On a real cluster: ten minutes of MIG churn, where every task that fits is placed within 5 s, and two minutes without API
# server.
CANTLE_TEST_CHURN_S=600 CANTLE_TEST_PENDING_S=5 CANTLE_TEST_AWAY_S=120 tests/cluster/run.sh -s \
    -k "nobody_waits_in_vain or without_the_api_server" || [ $? = 77 ]
CANTLE_TEST_REPLICAS=5 CANTLE_TEST_TASKS=1000 tests/cluster/run.sh -k "max_pods or many_tasks" || [ $? = 77 ]
# The same packing where there are a thousand nodes; and Kueue, which takes minutes to build.
CANTLE_TEST_NODES=1000 tests/cluster/run.sh -s -k fill_gpus || [ $? = 77 ]
CANTLE_TEST_KUEUE=yes tests/cluster/run.sh -k kueue || [ $? = 77 ]
# Older versions of Kubernetes, each built once: claims on 1.35, and the classic path on 1.34.
CANTLE_TEST_KUBERNETES=1.35.4 CANTLE_TEST_FEATURE_GATES=DRAConsumableCapacity=true,DRAPartitionableDevices=true,DRAExtendedResource=true \
    tests/cluster/run.sh -k "documented_pods or test_scheduling or test_classic" || [ $? = 77 ]
CANTLE_TEST_KUBERNETES=1.34.4 tests/cluster/run.sh -k "test_classic or test_reservation" || [ $? = 77 ]
# On a kernel with control groups of version 2 and AppArmor, in a virtual machine.
tests/vm.sh tests/cluster/run.sh -k "test_pods.py or test_compute.py" || [ $? = 77 ]
tests/vm.sh .venv/bin/python -m pytest -q tests/bypass/test_{evasion,hidden,unseen,rights,sharing}.py || [ $? = 77 ]
# Parts of the openb trace as pods, next to `cantle simulate`.
CANTLE_BENCH_SEEDS=42,43,44,45,46 tests/cluster/run.sh -s -o python_files=bench_openb.py || [ $? = 77 ]
# Artifacts in every kind of store, with an object of 2 GiB; and each way in which a node is lost.
CANTLE_TEST_FILE_MIB=2048 CANTLE_TEST_ALL=yes tests/files/run.sh || [ $? = 77 ]
CANTLE_TEST_ALL=yes .venv/bin/python -m pytest -q tests/e2e/test_lost_node.py
# The packages for aarch64 are cross-built, and run under qemu; and the Debian package on a virtual machine.
CANTLE_TEST_ALL=yes tests/packages/run.sh -k "systemd or aarch64 or virtual" || [ $? = 77 ]
# A log that a death lost once in a thousand runs.
CANTLE_TEST_ATTEMPTS=20 tests/cluster/run.sh -k killed_controller || [ $? = 77 ]
# Compute shares: two jobs over two GPUs, and 64 slices whose processes are killed for five minutes.
CANTLE_TEST_GANGS=200 CANTLE_TEST_SLICES=64 CANTLE_TEST_KILL_S=300 .venv/bin/python -m pytest -q -s tests/compute -k "two_jobs or the_dead"
# A machine that comes back late with its container.
CANTLE_TEST_ALL=yes tests/docker/run.sh || [ $? = 77 ]
