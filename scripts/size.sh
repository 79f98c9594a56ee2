#!/usr/bin/env bash
# Prints how large the project is, each figure beside its limit of scripts/size.limits. With --check it fails where one
# is over its limit: the commit that needs more raises the limit and says what that buys.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
product='^(scheduler-extender|annotator|node-exporter-plus|gpushare-device-plugin|cli|crates/[^/]+)/(src/|build\.rs)'
generated='^crates/kubelet-api/src/(dra_health|dra_v1|dra_v1beta1|plugin_registration|podresources|v1beta1)\.rs$'

# Lines of Rust files, whose names are read, without empty lines and comments. With `product` as the first argument
# without tests too: what follows `#[cfg(test)]` and is a module.
code_lines() {
    xargs awk -v part="$1" '
        FNR == 1 { tests = 0; marked = 0 }
        tests { next }
        part == "product" && /^#\[cfg\(test\)\]/ { marked = 1; next }
        marked { marked = 0; if (/^mod [a-z_]+ \{/) { tests = 1; next } if (/^(pub\(crate\) )?mod /) next }
        !/^[[:space:]]*(\/\/.*)?$/ { lines++ }
        END { print lines + 0 }' | awk '{ sum += $1 } END { print sum }'
}
rust() { git ls-files -- '*.rs' | grep -vE "$generated"; }
# The modules of the product that `#[cfg(test)]` declares, each as the path of its file without the ending.
test_modules() {
    rust | grep -E "$product" | xargs awk '
        /^#\[cfg\(test\)\]/ { marked = 1; next }
        marked && match($0, /mod [a-z_]+;/) {
            folder = FILENAME
            if (!sub(/(mod|lib|main)\.rs$/, "", folder)) sub(/\.rs$/, "/", folder)
            print folder substr($0, RSTART + 4, RLENGTH - 5)
        }
        { marked = 0 }'
}
# The product's files without those of tests, for scripts/shape.sh too.
product_files() { rust | grep -E "$product" | grep -vE "^($(test_modules | paste -sd '|'))(\.rs$|/)"; }
if [ "${1:-}" = --files ]; then product_files; exit; fi
all=$(rust | code_lines all)
code=$(product_files | code_lines product)
command=$(product_files | grep '^cli/src/' | code_lines product)
rows() { grep -cE "$1" "$2"; }

declare -A size=(
    [product-lines]=$code
    [test-and-laboratory-lines]=$((all - code))
    [command-lines]=$command
    [deploy-yaml-lines]=$(git ls-files -- 'deploy/*.yaml' 'deploy/*.tpl' ':!deploy/tests' ':!deploy/manifests' | xargs cat | wc -l)
    [words-of-documents]=$(git ls-files -- '*.md' | xargs cat | wc -w)
    [pages-of-docs]=$(git ls-files -- 'docs/*.md' ':!docs/decisions' | wc -l)
    [decisions]=$(git ls-files -- 'docs/decisions/*.md' | wc -l)
    [flags]=$(rows '^\| `--' docs/configuration.md)
    [metrics]=$(rows '^\| `(plimsoll|process|node)_' docs/metrics.md)
    [chart-values]=$(rows '^ *[A-Za-z]+:( [^ ]|$)' deploy/chart/values.yaml)
    [locked-crates]=$(rows '^name = ' Cargo.lock)
)
over=0
while read -r name limit; do
    printf '%-26s %8d  of %8d\n' "$name" "${size[$name]:?scripts/size.limits names what is not counted}" "$limit"
    [ "${size[$name]}" -le "$limit" ] || { echo "  $name is over its limit in scripts/size.limits"; over=1; }
done <scripts/size.limits
[ "${1:-}" != --check ] || exit "$over"
