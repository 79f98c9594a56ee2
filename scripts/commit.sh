#!/usr/bin/env bash
# Prints the commit of the working tree, with `-dirty` where a file of it has changed since.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
dirty=$(git status --porcelain --untracked-files=no)
echo "$(git rev-parse --short=12 HEAD)${dirty:+-dirty}"
