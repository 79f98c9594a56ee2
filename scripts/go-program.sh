#!/usr/bin/env bash
# Prints the path of a program that is pinned as a Go module in testing/e2e/go: coredns, dashboards, descheduler, helm3,
# helm4, karpenter (with the cloud provider kwok), kueue or kustomize. It is built when it is needed for the first time,
# and kept; other pins lead to another folder.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 set=""
case $name in
coredns) module=coredns package=. ;;
dashboards) module=dashboards package=. ;;
descheduler) module=descheduler package=sigs.k8s.io/descheduler/cmd/descheduler ;;
helm3)
    module=helm/v3 package=helm.sh/helm/v3/cmd/helm
    # A released Helm 3 is linked with the release of Kubernetes that its client is of, and takes that where it asks no
    # cluster.
    minor=$(sed -n 's/.*k8s.io\/client-go v0\.\([0-9]*\)\..*/\1/p' testing/e2e/go/helm/v3/go.mod)
    for where in chartutil lint/rules; do set+=" -X helm.sh/helm/v3/pkg/$where.k8sVersionMinor=$minor"; done
    ;;
helm4) module=helm/v4 package=helm.sh/helm/v4/cmd/helm ;;
karpenter) module=karpenter package=sigs.k8s.io/karpenter/kwok ;;
kueue) module=kueue package=sigs.k8s.io/kueue/cmd/kueue ;;
kustomize) module=kustomize package=sigs.k8s.io/kustomize/kustomize/v5 ;;
*) echo "$0: no program is named $name" >&2; exit 1 ;;
esac
folder=testing/e2e/go/$module
kept=${PLIMSOLL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll}/go/$name/$(cat "$folder"/* - <<<"$set" | sha256sum | cut -c 1-16)
if [ ! -x "$kept/$name" ]; then
    command -v go >/dev/null || { echo "$name is built with Go: install Go 1.26 or newer" >&2; exit 1; }
    echo "building $name with Go (once; a few minutes)" >&2
    mkdir -p "$kept"
    (cd "$folder" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false nice go build -trimpath -ldflags "-s -w$set" \
        -o "$kept/$name.$$" "$package") >&2
    mv "$kept/$name.$$" "$kept/$name"
fi
echo "$kept/$name"
