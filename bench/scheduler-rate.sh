#!/usr/bin/env bash
# Pods that a real kube-scheduler binds in a second with the extender's load entry, beside the same with an extender that parses and
# echoes. etcd, API server and scheduler run as bare processes; nodes are objects without kubelets. In each round
# the pods wait before the scheduler starts; the rate is that of the middle 80% of them.
#
# Usage: bench/scheduler-rate.sh FOLDER [NODES [PODS [ROUNDS]]]
# FOLDER holds etcd, kube-apiserver, kube-scheduler and kubectl, as ~/.cache/plimsoll/kubernetes/*/bin after `make cluster`.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1 nodes=${2:-1000} pods=${3:-500} rounds=${4:-3}
bench=${BENCH:-$(cargo bench --package plimsoll-bench --bench extender_http --no-run --message-format=json |
  jq -r 'select(.executable) | .executable' | tail -1)}
. bench/control-plane.sh
ours=$(port) admin=$(port)

now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
jq -nc --argjson nodes "$nodes" --arg now "$now" 'range($nodes) | {kind: "Node", apiVersion: "v1",
  metadata: {name: "ip-10-0-\(. / 256 | floor)-\(. % 256).eu-central-1.compute.internal",
    annotations: {cpu_busy_avg_5m: "0.\(10 + . * 37 % 50)000,\($now)", mem_usage_avg_5m: "0.\(10 + . * 11 % 50)000,\($now)"}},
  status: {capacity: {cpu: "64", memory: "256Gi", pods: "250"}, allocatable: {cpu: "64", memory: "256Gi", pods: "250"},
    conditions: [{type: "Ready", status: "True"}]}}' >"$work/nodes.json"
create "$work/nodes.json"

start extender "$bench" extender --listen-address "127.0.0.1:$ours" --admin-address "127.0.0.1:$admin" \
  --kubeconfig "$work/kubeconfig" --policy-file deploy/base/policy.yaml
start echo "$bench" echo
until curl -sf "http://127.0.0.1:$admin/readyz" >/dev/null && [ -s "$work/echo.log" ]; do sleep 0.2; done
declare -A address=([ours]=127.0.0.1:$ours [echo]=$(head -1 "$work/echo.log"))

rate() { # NAME ROUND
  local metrics first='' last='' bound scheduler
  metrics=$(port)
  jq -nc --argjson pods "$pods" --arg name "$1-$2" 'range($pods) | {kind: "Pod", apiVersion: "v1", metadata: {name: "\($name)-\(.)"},
    spec: {containers: [{name: "web", image: "registry.example/web:1", resources: {requests: {cpu: "100m", memory: "128Mi"}}}]}}' >"$work/pods.json"
  create "$work/pods.json"
  cat >"$work/scheduler.json" <<EOF
{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": false},
 "clientConnection": {"kubeconfig": "$work/kubeconfig", "qps": 5000, "burst": 5000}, "percentageOfNodesToScore": 100,
 "extenders": [{"urlPrefix": "http://${address[$1]}/load-aware", "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 1,
   "nodeCacheCapable": true, "ignorable": true, "httpTimeout": "5s"}]}
EOF
  start scheduler "$programs/kube-scheduler" --config="$work/scheduler.json" --secure-port="$metrics" \
    --authorization-always-allow-paths=/metrics
  scheduler=$started
  while [ -z "$last" ]; do
    bound=$(curl -sk "https://127.0.0.1:$metrics/metrics" |
      awk '/^scheduler_schedule_attempts_total.*result="scheduled"/ { print int($2) }' || true)
    if [ -z "$first" ] && [ "${bound:-0}" -ge $((pods / 10)) ]; then first="$bound $(date +%s%N)"; fi
    if [ "${bound:-0}" -ge $((pods * 9 / 10)) ]; then last="$bound $(date +%s%N)"; fi
    sleep 0.1
  done
  echo "$1 $first $last" | awk '{ printf "%s: %.1f pods/s\n", $1, ($4 - $2) / (($5 - $3) / 1e9) }'
  kill "$scheduler" && wait "$scheduler" 2>/dev/null || true
  ask -X DELETE "$url/api/v1/namespaces/default/pods?gracePeriodSeconds=0" >/dev/null
}

for round in $(seq "$rounds"); do
  for name in ours echo; do rate "$name" "$round"; done
done
