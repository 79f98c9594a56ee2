# shellcheck shell=bash
# etcd and the API server as bare processes on the loopback interface, for a script that has set $programs to the folder with
# etcd, kube-apiserver, kube-scheduler and kubectl, and perhaps $api_flags to more flags of the API server. All that they write is in
# $work, which goes with them when the script ends.

work=$(mktemp -d)
running=()
trap 'kill -KILL "${running[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$work"' EXIT

port() { echo $((20000 + RANDOM % 10000)); }
etcd=$(port) peer=$(port) api=$(port)
url=https://127.0.0.1:$api
ask() { curl -sk -H 'Authorization: Bearer bench' -H 'Content-Type: application/json' "$@"; }

start() { # LOG COMMAND...: its process number is in $started
  "${@:2}" >"$work/$1.log" 2>&1 &
  started=$!
  running+=("$started")
}

start etcd "$programs/etcd" --data-dir="$work/etcd" --unsafe-no-fsync \
  --listen-client-urls="http://127.0.0.1:$etcd" --advertise-client-urls="http://127.0.0.1:$etcd" \
  --listen-peer-urls="http://127.0.0.1:$peer" --initial-advertise-peer-urls="http://127.0.0.1:$peer" \
  --initial-cluster="default=http://127.0.0.1:$peer"
echo 'bench,admin,admin,system:masters' >"$work/tokens.csv"
openssl genrsa -out "$work/sa.key" 2048 2>/dev/null
# There is no controller manager: nothing makes service accounts, or takes the taint off new nodes.
start api "$programs/kube-apiserver" --etcd-servers="http://127.0.0.1:$etcd" --secure-port="$api" --bind-address=127.0.0.1 \
  --service-cluster-ip-range=10.96.0.0/16 --cert-dir="$work/certs" --token-auth-file="$work/tokens.csv" \
  --service-account-key-file="$work/sa.key" --service-account-signing-key-file="$work/sa.key" \
  --service-account-issuer=https://bench --authorization-mode=AlwaysAllow \
  "${api_flags[@]}" --max-requests-inflight=0 --max-mutating-requests-inflight=0 --enable-priority-and-fairness=false \
  --disable-admission-plugins=ServiceAccount,TaintNodesByCondition
until [ "$(ask "$url/readyz")" = ok ]; do sleep 0.5; done

cat >"$work/kubeconfig" <<EOF
{"apiVersion": "v1", "kind": "Config", "current-context": "bench",
 "clusters": [{"name": "bench", "cluster": {"server": "$url", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "bench", "user": {"token": "bench"}}],
 "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}]}
EOF

create() { "$programs/kubectl" --kubeconfig "$work/kubeconfig" create --validate=false -f "$1" >/dev/null; }

# Writes $work/scheduler.yaml: the shipped configuration with more requests a second, for an extender at that port; with EXTENDER=none for no
# extender.
shipped_scheduler() { # PORT
  sed -e "s|scheduler-extender.plimsoll.svc:19100|127.0.0.1:$1|" -e "s|/etc/kubernetes/scheduler.conf|$work/kubeconfig|" \
    -e 's|leaderElect: true|leaderElect: false|' -e 's|^clientConnection:|&\n  qps: 5000\n  burst: 5000|' \
    deploy/chart/kube-scheduler/shipped.yaml >"$work/scheduler.yaml"
  [ "${EXTENDER:-}" != none ] || sed -i '/^extenders:/,/^[a-z]/{/^extenders:/d;/^[a-z]/!d}' "$work/scheduler.yaml"
}
