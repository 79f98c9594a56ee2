#!/usr/bin/env bash
# Measures node-exporter-plus and Debian's node_exporter in one run, and prints a table for RESULTS.md.
#
# Needs root (for a virtual uptime of two days, so that a day of samples fits) and Debian's packages
# prometheus-node-exporter and wrk, which it installs when they are missing; curl and openssl.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${UPTIME_OF_TWO_DAYS:-}" != 1 ]; then
    exec env UPTIME_OF_TWO_DAYS=1 unshare --time --boottime $((2 * 86400)) --fork "$0" "$@"
fi
if ! command -v wrk >/dev/null || ! command -v prometheus-node-exporter >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends wrk prometheus-node-exporter >/dev/null
fi
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
scripts/build-exporter.sh "$work" >&2
cargo build --quiet --locked --release --package node-exporter-plus --examples >&2
examples=${CARGO_TARGET_DIR:-target}/release/examples

ours=127.0.0.1:29101 bare=127.0.0.1:29111 theirs=127.0.0.1:29121
kib() { awk -v key="$2:" '$1 == key { print $2 }' "/proc/$1/status"; }
# CPU time of all threads since the start, in milliseconds.
cpu_ms() { cat "/proc/$1"/task/*/schedstat | awk '{ sum += $1 } END { printf "%.1f\n", sum / 1e6 }'; }
scrape() { for _ in $(seq "$2"); do curl -sf -o /dev/null "${3:-http}://$1"; done; }
wait_for() { until curl -sf -o /dev/null "${2:-http}://$1"; do sleep 0.1; done; }

start_ours() { # signals, flags
    rm -f "$work/day"
    "$examples/day" "$work/day" "$1" > "$work/day.yaml"
    "$work/node-exporter-plus" --web.listen-address=$ours --admin-address=127.0.0.1:0 \
        --storage.file="$work/day" --config.file="$work/day.yaml" "${@:2}" 2> "$work/log" &
    pid=$!
    wait_for $ours/statistics "${scheme:-http}"
    grep -q "Signals($1)" "$work/log" || { cat "$work/log" >&2; exit 1; }
    sleep 12 # The first own sample is taken.
}
stop() { kill "$1"; wait "$1" 2>/dev/null || true; }

# Memory: 1,000 scrapes, then what the kernel counts.
rss_of_ours() { # signals
    start_ours "$1"
    scrape $ours/metrics 334; scrape $ours/statistics 333; scrape $ours/v1/statistics 333
    rss=$(kib $pid VmRSS) anonymous=$(kib $pid RssAnon)
    saved=$(stat -c %s "$work/day")
    stop $pid
}
rss_of_ours 22; rss22=$rss
rss_of_ours 16; rss16=$rss anonymous16=$anonymous
rss_with_pods() { # 16 signals, and /v1/pods of a node with 110 pods, version 2 of control groups
    local host=$work/host before
    local groups=$host/sys/fs/cgroup/kubepods.slice
    mkdir -p "$groups"
    ln -s /proc "$host"
    ln -s /sys/{block,bus,class,devices,kernel} "$host/sys"
    echo cpu memory > "$host/sys/fs/cgroup/cgroup.controllers"
    for pod in $(seq 110); do
        folder=$groups/kubepods-pod$(printf '%08x_0d4c_4a63_9d6e_2f6a1c0b7e55' "$pod").slice
        cp -r node-exporter-plus/tests/fixtures/cgroups/v2 "$folder"
    done
    start_ours 16 --host-root="$host"
    scrape $ours/metrics 334; scrape $ours/statistics 333; scrape $ours/v1/statistics 333
    before=$(kib $pid VmRSS)
    for _ in 1 2 3; do scrape $ours/v1/pods 10; sleep 5; done
    rss_pods=$(($(kib $pid VmRSS) - before))
    stop $pid
}
rss_with_pods
rss_over_tls() { # 16 signals, the same scrapes over TLS
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$work/tls.key" -out "$work/tls.crt" 2> /dev/null
    CURL_CA_BUNDLE=$work/tls.crt
    export CURL_CA_BUNDLE
    scheme=https start_ours 16 --web.tls-cert-file="$work/tls.crt" --web.tls-key-file="$work/tls.key"
    for path in metrics metrics statistics; do scrape $ours/$path 333 https; done
    rss_tls=$(kib $pid VmRSS)
    stop $pid
}
rss_over_tls

prometheus-node-exporter --web.listen-address=$theirs 2> /dev/null & theirs_pid=$!
wait_for $theirs/metrics
theirs_start=$(kib $theirs_pid VmRSS)
scrape $theirs/metrics 1000
theirs_rss=$(kib $theirs_pid VmRSS)

# CPU: ours over two minutes of sampling without scrapes; node_exporter's, which samples on each scrape, over a minute of
# one scrape every 10 s.
start_ours 16
before=$(cpu_ms $pid); sleep 120; after=$(cpu_ms $pid)
ours_cpu=$(echo "$before $after" | awk '{ printf "%.3f", ($2 - $1) / 1200 }')
before=$(cpu_ms $theirs_pid)
for _ in $(seq 6); do scrape $theirs/metrics 1; sleep 10; done
theirs_cpu=$(echo "$before $(cpu_ms $theirs_pid)" | awk '{ printf "%.3f", ($2 - $1) / 600 }')

# Rate: the server on one core, wrk on the other. Each round runs both servers right after one another, in alternating
# order; the table has the median of the rounds, since other load on the machine comes and goes. CPU time for a request
# has less noise, since it leaves out the time in which the server did not run.
curl -s $ours/statistics > "$work/statistics"; curl -s $ours/metrics > "$work/metrics"
"$examples/bare" $bare "$work/statistics" "$work/metrics" & bare_pid=$!
wait_for $bare/statistics
for id in $pid $bare_pid $theirs_pid; do taskset -a -p -c 0 "$id" > /dev/null; done
rounds=${ROUNDS:-31}
run() { # PID, address: requests/s, p99 in milliseconds, CPU time for a request in microseconds
    local before after
    before=$(cpu_ms "$1")
    taskset -c 1 wrk -t1 -c8 -d"${SECONDS_EACH:-1}" --latency "http://$2" > "$work/wrk"
    after=$(cpu_ms "$1")
    awk -v cpu="$(echo "$before $after" | awk '{ print $2 - $1 }')" \
        '/99%/ { p99 = $2 * ($2 ~ /us/ ? 0.001 : $2 ~ /ms/ ? 1 : 1000) } /requests in/ { count = $1 } /Requests\/sec/ { rate = $2 }
        END { printf "%.0f %.2f %.2f\n", rate, p99, cpu * 1000 / count }' "$work/wrk"
}
for path in statistics metrics; do
    for round in $(seq "$rounds"); do
        if [ $((round % 2)) = 0 ]; then
            one=$(run $pid $ours/$path); other=$(run $bare_pid $bare/$path)
        else
            other=$(run $bare_pid $bare/$path); one=$(run $pid $ours/$path)
        fi
        echo "$one $other"
    done > "$work/$path.rounds"
done
for _ in 1 2 3 4 5; do run $theirs_pid $theirs/metrics; done > "$work/theirs.rounds"
# The median over all rounds of an awk expression. Fields 1 to 3 of a round are ours, 4 to 6 bare axum's.
median() { # rounds, expression
    awk "{ print $2 }" "$work/$1.rounds" | sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}
# The lower and upper quartile of the same.
quartiles() {
    awk "{ printf \"%.2f\n\", $2 }" "$work/$1.rounds" | sort -g |
        awk '{ all[NR] = $1 } END { print all[int((NR + 3) / 4)] " to " all[int((3 * NR + 1) / 4)] }'
}
two() { printf '%.2f' "$1"; }

mib() { awk -v bytes="$1" 'BEGIN { printf "%.2f", bytes / 1048576 }'; }
size() { stat -L -c %s "$1"; }
cat <<TABLE
| | node-exporter-plus | node_exporter $(prometheus-node-exporter --version 2>&1 | awk 'NR == 1 { print $3 }') (Debian) | bare axum |
|---|---|---|---|
| stripped binary, MiB | $(mib "$(size "$work/node-exporter-plus")") | $(mib "$(size "$(command -v prometheus-node-exporter)")") | |
| RSS after 1,000 scrapes, KiB | $rss16 (16 signals, a day loaded) | $theirs_rss ($theirs_start at start) | |
| of which anonymous, KiB | $anonymous16 | | |
| the same with TLS on, KiB | $rss_tls | | |
| a further signal with a day, KiB | $(awk -v kib=$((rss22 - rss16)) 'BEGIN { printf "%.1f", kib / 6 }') | | |
| \`/v1/pods\` of 110 pods, KiB more | $rss_pods | | |
| file of a day of 16 signals, KiB | $(( saved / 1024 )) | | |
| CPU, % of a core | $ours_cpu (sampling every 10 s) | $theirs_cpu (one scrape in 10 s) | |
| \`/statistics\`, requests/s | $(median statistics '$1') | | $(median statistics '$4') |
| ratio to bare axum (middle half of $rounds rounds) | $(two "$(median statistics '$1/$4')") ($(quartiles statistics '$1/$4')) | | 1 |
| CPU for a request, µs | $(median statistics '$3') | | $(median statistics '$6') |
| p99, ms | $(median statistics '$2') | | $(median statistics '$5') |
| \`/metrics\`, requests/s | $(median metrics '$1') | $(median theirs '$1') | $(median metrics '$4') |
| ratio to bare axum (middle half of $rounds rounds) | $(two "$(median metrics '$1/$4')") ($(quartiles metrics '$1/$4')) | | 1 |
| CPU for a request, µs | $(median metrics '$3') | $(median theirs '$3') | $(median metrics '$6') |
| p99, ms | $(median metrics '$2') | $(median theirs '$2') | $(median metrics '$5') |
TABLE
