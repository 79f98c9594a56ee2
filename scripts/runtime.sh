#!/usr/bin/env bash
# What the images' programs run on, from Debian's packages that deploy/runtime.lock names by version and checksum.
#
#   scripts/runtime.sh amd64|arm64 FOLDER   puts the files of the packages that a program needs into the folder
#   scripts/runtime.sh --update             writes the lock anew, with the newest versions that Debian has signed
#   scripts/runtime.sh --check              fails where Debian has newer ones
#
# DEBIAN_ARCHIVE is the address of an archive that has debian/ and debian-security/; on Debian it is the machine's own.
# What comes from there is compared with the checksums. Packages are kept in the cache.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
lock=deploy/runtime.lock
# tzdata is for --time-zone, ca-certificates for https to a server that no flag names a CA for, base-files for
# /etc/os-release, by which scanners tell whose packages these are, and gcc-14-base for the terms of libgcc-s1.
packages=(libc6 libgcc-s1 gcc-14-base tzdata ca-certificates base-files)
release=trixie
kept=${PLIMSOLL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll}/debian

# What a run needs for itself alone.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive() {
    local site=${DEBIAN_ARCHIVE:-}
    if [ -z "$site" ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2016 # it is apt that fills this in
        site=$(apt-get indextargets --format '$(REPO_URI)' | sed -n 's|/debian/$||p' | sort --unique --reverse | tail -n 1)
    fi
    [ -n "$site" ] || {
        echo "set DEBIAN_ARCHIVE to the address of an archive of Debian, without /debian: apt on this machine has none" >&2
        exit 1
    }
    echo "$site"
}

# Prints the lock as it would be now, from lists that apt has fetched, with their signatures checked, into a folder of its own.
newest() {
    local site arch suite options apt=$work
    site=$(archive)
    sed -n '/^#/p' "$lock" >"$apt/lock"
    for arch in amd64 arm64; do
        mkdir -p "$apt/$arch"/{lists,archives}/partial
        touch "$apt/$arch/status"
        for suite in "debian $release" "debian $release-updates" "debian-security $release-security"; do
            echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site/$suite main"
        done >"$apt/$arch/sources"
        options=(-qq -o "Dir::State=$apt/$arch" -o "Dir::State::status=$apt/$arch/status" -o "Dir::Cache=$apt/$arch"
            -o "Dir::Etc::sourcelist=$apt/$arch/sources" -o Dir::Etc::sourceparts=/dev/null -o Acquire::Languages=none
            -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o APT::Sandbox::User=root)
        apt-get "${options[@]}" update
        apt-get "${options[@]}" download --print-uris "${packages[@]}" |
            sed "s|^'$site/|$arch |; s|' [^ ]* [0-9]* SHA256:| |" | sort >>"$apt/lock"
    done
    cat "$apt/lock"
}

# Prints where a package of the lock is kept, and fetches it before.
package() { # path in the archive, checksum
    local file=$kept/$2.deb site
    if [ ! -f "$file" ]; then
        mkdir -p "$kept"
        site=$(archive)
        curl --fail --silent --show-error --location --retry 3 --output "$file.$$" "$site/$1" || {
            echo "The archive no longer has $1: scripts/runtime.sh --update takes what it has now." >&2
            exit 1
        }
        echo "$2  $file.$$" | sha256sum --check --quiet >&2 || {
            rm "$file.$$"
            echo "$1 is not what $lock says" >&2
            exit 1
        }
        mv "$file.$$" "$file"
    fi
    echo "$file"
}

extract() { # architecture, folder
    local root=$2 arch path checksum file all=$work name
    rm -rf "$root"
    mkdir -p "$root"/usr/{bin,lib,sbin} "$root"/{etc/ssl/certs,var/lib/dpkg/status.d}
    for name in bin lib sbin; do ln -s "usr/$name" "$root/$name"; done
    while read -r arch path checksum; do
        [ "$arch" = "$1" ] || continue
        file=$(package "$path" "$checksum")
        dpkg-deb --extract "$file" "$all"
        # As scanners look for it: a file for each package.
        dpkg-deb --field "$file" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$file" Package)"
    done <"$lock"
    # Shared libraries without the converters of character sets, and the loader.
    (cd "$all" && find usr/lib* -name '*.so*' -not -path '*/gconv/*' -not -path '*/audit/*' |
        tar --create --files-from=-) | tar --extract --directory "$root"
    [ ! -d "$root/usr/lib64" ] || ln -s usr/lib64 "$root/lib64"
    (cd "$all" && { find usr/share/zoneinfo usr/lib/os-release usr/share/doc/libgcc-s1; find usr/share/doc -name copyright; } |
        tar --create --no-recursion --files-from=-) | tar --extract --directory "$root"
    ln -s ../usr/lib/os-release "$root/etc/os-release"
    cp "$all/etc/debian_version" "$root/etc/"
    echo "hosts: files dns" >"$root/etc/nsswitch.conf"
    find "$all/usr/share/ca-certificates" -name '*.crt' | LC_ALL=C sort | xargs cat >"$root/etc/ssl/certs/ca-certificates.crt"
    chmod -R u=rwX,go=rX "$root"
}

case ${1:-} in
--update)
    new=$(newest)
    echo "$new" >"$lock"
    ;;
--check) newest | diff "$lock" - >&2 || { echo "$lock is behind Debian: scripts/runtime.sh --update" >&2; exit 1; } ;;
amd64 | arm64) extract "$1" "${2:?a folder}" ;;
*) sed -n '4,6s/^# *//p' "$0" >&2; exit 1 ;;
esac
