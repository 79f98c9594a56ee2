#!/usr/bin/env bash
# Builds the documents as a site, target/site, and checks that each of its links leads somewhere. mdBook is pinned
# here, and installed into target/ once.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.5.4
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
mdbook=$target/mdbook/bin/mdbook
if [ "$("$mdbook" --version 2>/dev/null)" != "mdbook v$version" ]; then
    echo "installing mdbook $version into $target/mdbook (once; some minutes)"
    # Optimized little, since a site is built in seconds either way; without the server that it can have.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols \
        cargo install --quiet --locked "mdbook@$version" --no-default-features --features search \
        --root "$target/mdbook" --target-dir "$target/mdbook/build"
    rm -rf "$target/mdbook/build"
fi
cargo build --quiet --locked --package plimsoll-deploy --bin book
book=$target/debug/book
mkdir -p "$target/book"
cp docs/site/book.toml docs/site/site.css "$target/book/"
"$book" write . "$target/book/src"
said=$("$mdbook" build "$target/book" 2>&1) || { echo "$said" >&2; exit 1; }
# What mdBook warns of is a fault in a page, such as <NODE> outside of code, which it and the Git host take for HTML.
if grep -E '^ *(WARN|ERROR)' <<<"$said" >&2; then exit 1; fi
"$book" check "$target/site"
echo "$target/site/index.html"
