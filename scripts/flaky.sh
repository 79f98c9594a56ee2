#!/usr/bin/env bash
# Runs the tests of a set N times on one cluster while stress-ng keeps every processor busy, and prints how often each failed.
# E2E_SET=smoke is the default set; TEST limits it to the tests whose name has that text. The exit status is 0 where none failed.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${N:-20} cargo=${CARGO:-cargo}
export E2E_SET=${E2E_SET:-smoke} E2E_PROFILE=${E2E_PROFILE:-test}
if ! command -v stress-ng >/dev/null; then
    [ "$(id -u)" = 0 ] || { echo "stress-ng is missing: install it" >&2; exit 1; }
    apt-get update -qq && apt-get install -y -qq --no-install-recommends stress-ng >/dev/null
fi
"$cargo" run --locked --package plimsoll-e2e --bin plimsoll-cluster -- up --install=tested
logs=$(mktemp -d)
# One worker a processor, some memory traffic and some writes: what a busy host does to tests.
stress-ng --quiet --cpu 0 --cpu-load 80 --vm 1 --vm-bytes 256M --hdd 1 --hdd-bytes 64M --temp-path "$logs" &
stress=$!
trap 'kill "$stress" 2>/dev/null || true' EXIT
failed=0
for run in $(seq "$runs"); do
    start=$SECONDS outcome=passed
    "$cargo" test --locked --workspace --test e2e -- ${TEST:+"$TEST"} >"$logs/run-$run" 2>&1 || { outcome=FAILED failed=$((failed + 1)); }
    printf 'run %d of %d: %s after %d s\n' "$run" "$runs" "$outcome" $((SECONDS - start))
    [ "$outcome" = passed ] || grep -E '\.\.\. FAILED$|^error' "$logs/run-$run" || tail -n 5 "$logs/run-$run"
done
printf '%d of %d runs failed; the output of each lies in %s\n' "$failed" "$runs" "$logs"
sed -n 's/^test \(.*[^ ]\) *\.\.\. FAILED$/\1/p' "$logs"/run-* | sort | uniq -c
[ "$failed" = 0 ]
