#!/usr/bin/env bash
# Fails unless REGISTRY is a host and maybe a path. A first part that is no host would be an account on Docker Hub.
set -euo pipefail
is=${REGISTRY:-}
host=${is%%/*}
if [[ ! $is =~ ^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$ || ($host != *[.:]* && $host != localhost) ]]; then
    echo "REGISTRY is ${is:-not set}. It has to be a host and maybe a path in lower case, without https:// before it and" \
        "without / or a tag behind it: REGISTRY=registry.example.com/plimsoll" >&2
    exit 1
fi
