#!/usr/bin/env bash
# Prints the terms under which others' code is in the programs: of each crate its license and the files about it that it
# brings. The images have it as /usr/share/doc/plimsoll/THIRD-PARTY-NOTICES.
#
#   scripts/notices.sh "PACKAGE…" TARGET…
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
# The first file with a text, by the text's checksum: most crates bring the same ones.
declare -A first

echo "Plimsoll is under the Apache License 2.0. Its programs contain what follows, each under its own terms."
scripts/crates-in.sh "$@" | jq --raw-output '[.name, .version, .license, .repository // "", .folder] | join("\t")' |
    while IFS=$'\t' read -r name version license repository folder; do
        printf '\n%s\n%s %s, %s\n%s\n' "$(printf '=%.0s' {1..120})" "$name" "$version" "$license" "$repository"
        found=
        for file in "$folder"/*; do
            case ${file##*/} in
            [Ll][Ii][Cc][Ee][NnSs][CcSs][Ee]* | COPYING* | COPYRIGHT* | NOTICE* | UNLICENSE*) ;;
            *) continue ;;
            esac
            [ -f "$file" ] || continue
            found=1
            checksum=$(tr -d '[:space:]' <"$file" | sha256sum)
            if [ -n "${first[$checksum]:-}" ]; then
                printf -- '---- %s: as %s\n' "${file##*/}" "${first[$checksum]}"
            else
                first[$checksum]="${file##*/} of $name $version"
                printf -- '---- %s\n' "${file##*/}"
                tr -d '\r' <"$file"
            fi
        done
        [ -n "$found" ] || echo "The crate brings no text of its license; others in this file have it."
    done

# What the compiler adds.
printf '\n%s\n%s\n' "$(printf '=%.0s' {1..120})" "Rust's standard library, MIT OR Apache-2.0, https://github.com/rust-lang/rust"
terms=$(rustc --print sysroot)/share/doc/rust
for file in "$terms/COPYRIGHT-library.html" "$terms"/licenses/{MIT,Apache-2.0,BSD-2-Clause,Unicode-3.0}.txt; do
    [ -f "$file" ] || { echo "the toolchain has no $file" >&2; exit 1; }
    printf '\n---- %s\n' "${file##*/}"
    sed 's/<[^>]*>//g' "$file" | cat --squeeze-blank
done
cat <<'TERMS'

========================================================================================================================
musl, MIT, https://musl.libc.org (in node-exporter-plus)

Copyright © 2005-2020 Rich Felker, et al.

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
TERMS
