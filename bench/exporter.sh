#!/usr/bin/env bash
# node-exporter-plus measured beside Debian's node_exporter, in one run; prints a table for RESULTS.md.
#
# Needs root (for a virtual uptime of two days, so that a day of samples fits) and Debian's packages
# prometheus-node-exporter and wrk, which it installs when they are missing.
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
scrape() { for _ in $(seq "$2"); do curl -s -o /dev/null "http://$1"; done; }
wait_for() { until curl -sf -o /dev/null "http://$1"; do sleep 0.1; done; }

start_ours() { # signals
    rm -f "$work/day"
    "$examples/day" "$work/day" "$1" > "$work/day.yaml"
    "$work/node-exporter-plus" --web.listen-address=$ours --admin-address=127.0.0.1:0 \
        --storage.file="$work/day" --config.file="$work/day.yaml" 2> "$work/log" &
    pid=$!
    wait_for $ours/statistics
    grep -q "Signals($1)" "$work/log" || { cat "$work/log" >&2; exit 1; }
    sleep 12 # The first own sample is taken.
}
stop() { kill "$1"; wait "$1" 2>/dev/null || true; }

# Memory: 1,000 scrapes, then what the kernel counts.
rss_of_ours() {
    start_ours "$1"
    scrape $ours/metrics 334; scrape $ours/statistics 333; scrape $ours/v1/statistics 333
    rss=$(kib $pid VmRSS) anonymous=$(kib $pid RssAnon)
    saved=$(stat -c %s "$work/day")
    stop $pid
}
rss_of_ours 22; rss22=$rss
rss_of_ours 16; rss16=$rss anonymous16=$anonymous

prometheus-node-exporter --web.listen-address=$theirs 2> /dev/null & theirs_pid=$!
wait_for $theirs/metrics
theirs_start=$(kib $theirs_pid VmRSS)
scrape $theirs/metrics 1000
theirs_rss=$(kib $theirs_pid VmRSS)

# CPU: two minutes of sampling alone; then node_exporter, which works only when it is asked, once in 10 s.
start_ours 16
before=$(cpu_ms $pid); sleep 120; after=$(cpu_ms $pid)
ours_cpu=$(echo "$before $after" | awk '{ printf "%.3f", ($2 - $1) / 1200 }')
before=$(cpu_ms $theirs_pid)
for _ in $(seq 6); do scrape $theirs/metrics 1; sleep 10; done
theirs_cpu=$(echo "$before $(cpu_ms $theirs_pid)" | awk '{ printf "%.3f", ($2 - $1) / 600 }')

# Rate: one core for the server, one for wrk; five rounds in turn, of which the middle one counts (of ratios, too:
# each is of two runs right after another).
curl -s $ours/statistics > "$work/statistics"; curl -s $ours/metrics > "$work/metrics"
"$examples/bare" $bare "$work/statistics" "$work/metrics" & bare_pid=$!
wait_for $bare/statistics
for id in $pid $bare_pid $theirs_pid; do taskset -a -p -c 0 "$id" > /dev/null; done
rate() { # address
    taskset -c 1 wrk -t1 -c8 -d"${SECONDS_EACH:-3}" --latency "http://$1" |
        awk '/99%/ { p99 = $2 } /Requests\/sec/ { print $2, p99 }'
}
targets="$ours/statistics $bare/statistics $ours/metrics $bare/metrics $theirs/metrics"
for _ in 1 2 3 4 5; do
    for target in $targets; do echo "$target $(rate "$target")"; done
done > "$work/rates"
middle() { grep "^$1 " "$work/rates" | sort -k2 -n | sed -n 3p; }
value() { middle "$1" | cut -d' ' -f"$2"; }
ratio() {
    paste <(grep "^$1 " "$work/rates") <(grep "^$2 " "$work/rates") |
        awk '{ printf "%.2f\n", $2 / $5 }' | sort -n | sed -n 3p
}

mib() { awk -v bytes="$1" 'BEGIN { printf "%.2f", bytes / 1048576 }'; }
size() { stat -L -c %s "$1"; }
cat <<TABLE
| | node-exporter-plus | node_exporter $(prometheus-node-exporter --version 2>&1 | awk 'NR == 1 { print $3 }') (Debian) | bare axum |
|---|---|---|---|
| stripped binary, MiB | $(mib "$(size "$work/node-exporter-plus")") | $(mib "$(size "$(command -v prometheus-node-exporter)")") | |
| RSS after 1,000 scrapes, KiB | $rss16 (16 signals, a day loaded) | $theirs_rss ($theirs_start at start) | |
| of which anonymous, KiB | $anonymous16 | | |
| a further signal with a day, KiB | $(( (rss22 - rss16) / 6 )) | | |
| file of a day of 16 signals, KiB | $(( saved / 1024 )) | | |
| CPU, % of a core | $ours_cpu (sampling every 10 s) | $theirs_cpu (one scrape in 10 s) | |
| \`/statistics\`, requests/s | $(value $ours/statistics 2) | | $(value $bare/statistics 2) |
| ratio to bare axum | $(ratio $ours/statistics $bare/statistics) | | 1 |
| p99 | $(value $ours/statistics 3) | | $(value $bare/statistics 3) |
| \`/metrics\`, requests/s | $(value $ours/metrics 2) | $(value $theirs/metrics 2) | $(value $bare/metrics 2) |
| ratio to bare axum | $(ratio $ours/metrics $bare/metrics) | | 1 |
| p99 | $(value $ours/metrics 3) | $(value $theirs/metrics 3) | $(value $bare/metrics 3) |
TABLE
