#!/usr/bin/env bash
# The tests of deploy/chart: Helm 3, Helm 4 and kustomize render, and what they say is compared. The three are built
# from the Go modules pinned in testing/e2e/go when they are needed for the first time, and kept.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${PLIMSOLL_CACHE:-$HOME/.cache/plimsoll}

# Prints the path of a pinned program: its name, the folder of its module, its package, and what the linker sets in it.
program() {
    local name=$1 module=testing/e2e/go/$2 package=$3 set=${4:-} kept
    kept=$cache/$2/$(cat "$module/go.mod" "$module/go.sum" - <<<"$set" | sha256sum | cut -c 1-16)
    if [ ! -x "$kept/$name" ]; then
        command -v go >/dev/null || { echo "make chart builds $name with Go: install Go 1.26 or newer" >&2; exit 1; }
        echo "building $package with Go (once; a few minutes)" >&2
        mkdir -p "$kept"
        (cd "$module" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false nice go build -trimpath -ldflags "-s -w $set" \
            -o "$kept/$name.$$" "$package") >&2
        mv "$kept/$name.$$" "$kept/$name"
    fi
    echo "$kept/$name"
}

# A released Helm 3 is linked with the release of Kubernetes that its client is of, and takes that where it asks no
# cluster.
minor=$(sed -n 's/.*k8s.io\/client-go v0\.\([0-9]*\)\..*/\1/p' testing/e2e/go/helm/v3/go.mod)
release="-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$minor -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=$minor"

KUSTOMIZE=$(program kustomize kustomize sigs.k8s.io/kustomize/kustomize/v5)
HELM3=$(program helm helm/v3 helm.sh/helm/v3/cmd/helm "$release")
HELM4=$(program helm helm/v4 helm.sh/helm/v4/cmd/helm)
export KUSTOMIZE HELM3 HELM4
"${CARGO:-cargo}" test --locked --workspace --test it -- --ignored --nocapture chart
