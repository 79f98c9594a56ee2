#!/usr/bin/env bash
# Builds the operators' command in two folders, and fails unless both give the same bytes.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
machine=$(uname -m)
export PLIMSOLL_GIT=${PLIMSOLL_GIT-$(scripts/commit.sh)}
for folder in one another/deeper; do
    mkdir -p "$work/$folder"
    git ls-files -z | xargs --null cp --parents --target-directory "$work/$folder"
    (
        cd "$work/$folder"
        # A target folder of its own, too.
        unset CARGO_TARGET_DIR
        . scripts/reproducible.sh
        "${CARGO:-cargo}" build --locked --release --target "$machine-unknown-linux-gnu" --package plimsoll-cli
        cp "target/$machine-unknown-linux-gnu/release/plimsoll" "$work/plimsoll-${folder%%/*}"
        rm -r target
    )
done
cmp "$work/plimsoll-one" "$work/plimsoll-another"
echo "plimsoll built in two folders: $(sha256sum <"$work/plimsoll-one" | cut -c 1-64) twice"
