#!/usr/bin/env bash
# Every test on the newest pinned release of Kubernetes, with a chaos of 300 pods, and the smoke set on each of the others.
# Plimsoll's programs are those of a release. Goes on after a failure; the last line has all counts.
set -euo pipefail
cd "$(dirname "$0")/.."
export E2E_PROFILE=release CHAOS_PODS=${CHAOS_PODS:-300}
cluster=${CARGO_TARGET_DIR:-target}/debug/plimsoll-cluster
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mapfile -t releases < <(ls testing/e2e/go/releases | sort --version-sort --reverse)
summary="" failed=0
for release in "${releases[@]}"; do
    tests=smoke
    [ "$release" != "${releases[0]}" ] || tests=all
    printf '\n== %s: %s\n' "$release" "$tests"
    outcome=passed
    KUBERNETES=$release E2E_SET=$tests make e2e 2>&1 | tee "$log" || { outcome=FAILED failed=1; }
    counts=$(grep '^{"kubernetes"' "$log" | tail -n 1)
    summary+="${summary:+ }$tests $outcome ${counts:-(no counts)}"
    # A cluster where a test failed stays up, and the next release needs its place.
    "$cluster" down >/dev/null 2>&1 || true
done
printf '\ne2e-all: %s\n' "$summary"
exit "$failed"
