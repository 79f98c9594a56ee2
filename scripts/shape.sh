#!/usr/bin/env bash
# Counts what makes sources hard to follow, by crate, each figure beside its limit of scripts/shape.limits. With --check
# it fails where one is over its limit, and prints the places. With crates as arguments it prints the places in these.
#   rebindings         `let x = …; let x = x.…`
#   lazy-iterators     iterators bound by `let`, to be consumed later
#   shared-type-names  names that stand for several types of one crate
#   uses-in-circles    uses of a module that uses this one too, directly or by others; a module and its parents apart
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
found=$(scripts/size.sh --files | xargs awk -f scripts/shape.awk | sort -V)
places() { awk -F'\t' -v which="$1" '$1 == which || $2 == which { print "  " $3 ": " $1 ", " $4 }' <<<"$found"; }
over=0
while read -r name limit; do
    count=$(places "$name" | grep -c . || true)
    by_crate=$(awk -F'\t' -v name="$name" '$1 == name { print $2 }' <<<"$found" | uniq -c |
        awk '{ printf " %s %s", $2, $1 }')
    printf '%-18s %4d  of %4d %s\n' "$name" "$count" "$limit" "$by_crate"
    [ "$count" -le "$limit" ] || { over=1; [ "${1:-}" != --check ] || places "$name"; }
done <scripts/shape.limits
if [ "${1:-}" = --check ]; then exit "$over"; fi
for crate; do places "$crate"; done
