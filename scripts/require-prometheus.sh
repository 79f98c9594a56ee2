#!/usr/bin/env bash
# Installs Debian's prometheus and promtool, unless some are there.
set -euo pipefail
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "prometheus and promtool are missing: install them (Debian: apt-get install prometheus)" >&2
    exit 1
fi
echo "installing prometheus (Debian's package)"
apt-get update -qq
apt-get install -y -qq --no-install-recommends prometheus >/dev/null
