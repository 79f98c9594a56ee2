#!/usr/bin/env bash
# Pods that a real kube-scheduler binds in a second: with the extender's load entry, with an extender that parses and echoes, and stock.
# etcd, API server and scheduler run as bare processes; nodes are objects without kubelets. In each round
# the pods wait before the scheduler starts; the rate is that of the middle 80% of them.
#
# Usage: bench/scheduler-rate.sh FOLDER [NODES [PODS [ROUNDS [SYSTEM...]]]]
# FOLDER holds etcd, kube-apiserver, kube-scheduler and kubectl, as ~/.cache/plimsoll/kubernetes/*/bin after `make cluster`.
# The systems take turns; by default `ours echo`. At the end their medians, and the ratio of each to the first one's:
#   ours     the extender; kube-scheduler looks at every node (percentageOfNodesToScore: 100), as where there are GPUs
#   sampled  the extender; kube-scheduler looks at its own sample, as under soft limits without GPUs
#   echo     every node, and the extender only watches
#   stock    its own sample, and no extender
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1 nodes=${2:-1000} pods=${3:-500} rounds=${4:-3} systems=("${@:5}")
[ ${#systems[@]} -gt 0 ] || systems=(ours echo)
bench=${BENCH:-$(cargo bench --package plimsoll-bench --bench extender_http --no-run --message-format=json |
  jq -r 'select(.executable) | .executable' | tail -1)}
. bench/control-plane.sh
ours=$(port) admin=$(port)

now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
jq -nc --argjson nodes "$nodes" --arg now "$now" 'range($nodes) | {kind: "Node", apiVersion: "v1",
  metadata: {name: "ip-10-0-\(. / 256 | floor)-\(. % 256).eu-central-1.compute.internal",
    annotations: {cpu_shared_busy_avg_5m: "0.\(10 + . * 37 % 50)000,\($now)", mem_usage_avg_5m: "0.\(10 + . * 11 % 50)000,\($now)"}},
  status: {capacity: {cpu: "64", memory: "256Gi", pods: "250"}, allocatable: {cpu: "64", memory: "256Gi", pods: "250"},
    conditions: [{type: "Ready", status: "True"}]}}' >"$work/nodes.json"
create "$work/nodes.json"
# The readings last until the end.
sed 's/maxAge: 8m/maxAge: 24h/' deploy/chart/policies/shipped.yaml >"$work/policy.yaml"

start echo "$bench" echo
until [ -s "$work/echo.log" ]; do sleep 0.2; done
echo=$(head -1 "$work/echo.log")

rate() { # SYSTEM ROUND
  local address=127.0.0.1:$ours every=', "percentageOfNodesToScore": 100' entry='' extender='' metrics first='' last='' bound scheduler
  case $1 in sampled | stock) every='' ;; esac
  [ "$1" != echo ] || address=$echo
  if [ "$1" != stock ]; then
    entry="{\"urlPrefix\": \"http://$address/load-aware\", \"filterVerb\": \"filter\", \"prioritizeVerb\": \"prioritize\", \"weight\": 1,
      \"nodeCacheCapable\": true, \"ignorable\": true, \"httpTimeout\": \"5s\"}"
    start extender "$bench" extender --listen-address "127.0.0.1:$ours" --admin-address "127.0.0.1:$admin" \
      --kubeconfig "$work/kubeconfig" --policy-file "$work/policy.yaml"
    extender=$started
    until curl -sf "http://127.0.0.1:$admin/readyz" >/dev/null; do sleep 0.2; done
  fi
  metrics=$(port)
  jq -nc --argjson pods "$pods" --arg name "$1-$2" 'range($pods) | {kind: "Pod", apiVersion: "v1", metadata: {name: "\($name)-\(.)"},
    spec: {containers: [{name: "web", image: "registry.example/web:1", resources: {requests: {cpu: "100m", memory: "128Mi"}}}]}}' >"$work/pods.json"
  create "$work/pods.json"
  cat >"$work/scheduler.json" <<END
{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": false},
 "clientConnection": {"kubeconfig": "$work/kubeconfig", "qps": 5000, "burst": 5000}$every, "extenders": [$entry]}
END
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
  echo "$1 $first $last" | awk '{ printf "%s: %.1f pods/s\n", $1, ($4 - $2) / (($5 - $3) / 1e9) }' | tee -a "$work/rates"
  ! grep -m 1 "Skipping extender" "$work/scheduler.log" || exit 1
  kill "$scheduler" $extender
  wait "$scheduler" $extender 2>/dev/null || true
  ask -X DELETE "$url/api/v1/namespaces/default/pods?gracePeriodSeconds=0" >/dev/null
}

for round in $(seq "$rounds"); do
  for system in "${systems[@]}"; do rate "$system" "$round"; done
done

median() { sed -n "s/^$1: \\(.*\\) pods.*/\\1/p" "$work/rates" | sort -n | awk '{ all[NR] = $1 } END { print (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2 }'; }
for system in "${systems[@]}"; do
  echo "$system $(median "$system") $(median "${systems[0]}") ${systems[0]}" |
    awk '{ printf "%s: median %.1f pods/s, %.2f of %s\n", $1, $2, $2 / $3, $4 }'
done
