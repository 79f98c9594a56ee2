#!/usr/bin/env bash
# Prints the foreign crates that are compiled into packages of ours, for targets of the compiler, as lines of JSON:
# name, version, license, folder, repository. Not those that only build them: procedural macros, build scripts, tests.
#
#   scripts/crates-in.sh "PACKAGE…" TARGET…
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
packages=() targets=()
for package in $1; do packages+=(--package "$package"); done
for target in "${@:2}"; do targets+=(--target "$target"); done
"$cargo" tree --locked --quiet "${packages[@]}" "${targets[@]}" --edges normal,no-proc-macro --no-dedupe --prefix none \
    --format '{p}' | awk 'NF { print $1 "@" substr($2, 2) }' | LC_ALL=C sort --unique |
    jq --raw-input --compact-output --slurpfile metadata <("$cargo" metadata --locked --quiet --format-version 1 |
        jq '[.packages[] | select(.source != null) | {key: "\(.name)@\(.version)", value:
            {name, version, license, folder: (.manifest_path | rtrimstr("/Cargo.toml")), repository}}] | from_entries') \
        '$metadata[0][.] // empty'
