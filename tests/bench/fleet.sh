#!/usr/bin/env bash
# A server's tasks per second and its answers with a long history, on SQLite and on a PostgreSQL of its own
# (crates/service/server/examples/fleet.rs and many_tasks.rs). CANTLE_BENCH_CYCLES tasks are handed out, next to
# CANTLE_BENCH_TASKS ended ones. CANTLE_BENCH_PROFILE=dev takes an unoptimized build, whose figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
profile="${CANTLE_BENCH_PROFILE:-release}"
cargo build --profile "$profile" --locked -q -p cantle-server --examples
programs="target/${profile/dev/debug}/examples"
cycles="${CANTLE_BENCH_CYCLES:-20000}" tasks="${CANTLE_BENCH_TASKS:-100000}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for name in a b c d; do mkdir "$dir/$name"; done
broken=0
"$programs/fleet" "$dir/a" "$cycles" || broken=1
[ "$tasks" -le 100000 ] || "$programs/many_tasks" "$dir/b" "$tasks" || broken=1
on_postgres() {
    tests/postgres/with-server.sh bash -c "\"$programs/$1\" \"$2\" \"$3\" \"\$CANTLE_TEST_POSTGRES/postgres\"" || [ $? = 77 ]
}
on_postgres fleet "$dir/c" "$cycles" || broken=1
on_postgres many_tasks "$dir/d" "$tasks" || broken=1
exit "$broken"
