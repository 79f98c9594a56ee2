#!/usr/bin/env bash
# The tests of deploy/chart and deploy/manifests: Helm 3 and Helm 4 render, and kustomize takes what they rendered.
# Dashboards are checked by Grafana's schema.
set -euo pipefail
cd "$(dirname "$0")/.."
KUSTOMIZE=$(scripts/go-program.sh kustomize)
HELM3=$(scripts/go-program.sh helm3)
HELM4=$(scripts/go-program.sh helm4)
DASHBOARDS=$(scripts/go-program.sh dashboards)
export KUSTOMIZE HELM3 HELM4 DASHBOARDS
"${CARGO:-cargo}" test --locked --workspace --test it -- --ignored --nocapture chart
