#!/usr/bin/env bash
# Fails where a comment of a Rust file is wider than 120 columns, and prints these lines and their number by crate.
# rustfmt wraps no comments. Generated files are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
# Columns are characters, not bytes.
export LC_ALL=C.UTF-8
generated=()
for module in dra_health dra_v1 dra_v1beta1 plugin_registration podresources v1beta1; do
    generated+=(":!crates/kubelet-api/src/$module.rs")
done
wide=$(git ls-files -z -- '*.rs' "${generated[@]}" |
    xargs -0 grep -sHnE '^.{121,}' -- | grep -E '^[^:]+:[0-9]+:[[:space:]]*//' || true)
if [ -n "$wide" ]; then
    echo "$wide"
    echo 'Comments wider than 120 columns, by crate:'
    sed -E 's,^((crates|testing|lab)/[^/]+|[^/]+)/.*,\1,' <<<"$wide" | sort | uniq -c
    exit 1
fi
