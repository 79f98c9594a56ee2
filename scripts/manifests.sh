#!/usr/bin/env bash
# Writes anew what Helm renders from deploy/chart: the plain manifests of each scheduler.mode, and for tests what
# no mode has by itself. In FOLDER in place of deploy/, and by the Helm of HELM. Needs Go where Helm was not built yet.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-deploy}
HELM=${HELM:-$(scripts/go-program.sh helm4)}
render() {
    mkdir -p "$(dirname "$out/$1")"
    echo '# Helm renders this from deploy/chart: `make reference` writes it anew.' >"$out/$1"
    # The images are at a name that no server can have (RFC 6761). Helm 4 ends objects by empty lines, Helm 3 does not.
    "$HELM" template plimsoll deploy/chart --namespace plimsoll --kube-version v1.36.3 \
        --set image.registry=plimsoll.invalid,namespace.create=true "${@:2}" |
        awk '/^$/ { empty++; next } /^---$/ { empty = 0 } { for (; empty; empty--) print ""; print }' >>"$out/$1"
}
for mode in external second none; do
    render "manifests/$mode/plimsoll.yaml" --set "scheduler.mode=$mode"
done
render tests/rendered/mps-control-daemon.yaml --show-only templates/mps-control-daemon.yaml \
    --set mps.enabled=true,mps.exclusive=true,devicePlugin.env.PLIMSOLL_ISOLATION=mps
render tests/rendered/unhealthy-gpus.yaml --show-only templates/unhealthy-gpus.yaml \
    --set devicePlugin.unhealthyConfigMaps=true
render tests/rendered/claims.yaml --show-only templates/claims.yaml --set claims=true
render tests/rendered/node-bands.yaml --show-only templates/admission-node-bands.yaml \
    --set scheduler.mode=none,claims=true,annotator.nodeBands=true
# As a rule file of Prometheus.
render manifests/rules.yaml --show-only templates/monitoring.yaml --set monitoring.rules=true
rules=$(sed -e '2,/^spec:$/d' -e 's/^  //' "$out/manifests/rules.yaml")
echo "$rules" >"$out/manifests/rules.yaml"
