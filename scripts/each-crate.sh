#!/usr/bin/env bash
# Checks each crate of the workspace by itself, and `daemon` with each of its features alone: as a part of the workspace
# a crate also has the features that others turn on. With names, those crates alone.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
crates=("$@")
if [ $# = 0 ]; then
    metadata=$(cargo metadata --locked --format-version 1 --no-deps)
    mapfile -t crates < <(grep -oE '"name":"[^"]+","version":"[^"]+","id"' <<<"$metadata" | cut -d '"' -f 4)
fi
for crate in "${crates[@]}"; do
    echo "== $crate"
    cargo check --locked --quiet --package "$crate"
    cargo check --locked --quiet --package "$crate" --all-targets
    [ "$crate" = plimsoll-daemon ] || continue
    for feature in '' ansi env-filter multi-thread tls; do
        echo "== $crate, no default features, ${feature:-no feature}"
        cargo check --locked --quiet --package "$crate" --no-default-features --features "$feature"
    done
done
