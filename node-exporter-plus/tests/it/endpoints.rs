//! The paths over real HTTP, on a node and at a time that the test sets.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::node::{Answer, Procfs, ask, get};
use daemon::http::{Limits, bind, serve};
use daemon::{Health, Shutdown};
use node_exporter_plus::collectors::{Roots, UptimeFile};
use node_exporter_plus::config::Config;
use node_exporter_plus::http::Endpoints;
use node_exporter_plus::render::Node;
use node_exporter_plus::series::{Interval, Moment, Now};
use node_exporter_plus::{Metrics, Sampler, SharedStore, Store, collectors};

const INTERVAL: u64 = 10;

/// A running server, and the sampler that the test drives.
pub(crate) struct Exporter {
    pub(crate) address: SocketAddr,
    sampler: Sampler,
    health: Health,
    seconds: Arc<AtomicU64>,
    stop: Shutdown,
}

impl Exporter {
    async fn start(procfs: &Path) -> Self {
        Self::start_with(procfs, "").await
    }

    async fn start_with(procfs: &Path, config: &str) -> Self {
        Self::start_on(procfs, &procfs.join("no-cgroups"), config).await
    }

    /// One of a node with these control groups, and nothing else.
    pub(crate) async fn of_pods(cgroupfs: &Path) -> Self {
        Self::start_on(Path::new("/nonexistent"), cgroupfs, "").await
    }

    async fn start_on(procfs: &Path, cgroupfs: &Path, config: &str) -> Self {
        let interval = Interval::new(Duration::from_secs(INTERVAL)).unwrap();
        let plan = Config::parse(config, interval).unwrap();
        let (store, health) = (SharedStore::new(Store::new(interval, plan)), Health::default());
        // Nothing of this machine: what is not in the folder does not exist.
        let root = |name: &str| procfs.join(name);
        let sysfs = root("sys-root");
        let rootfs = root("root");
        let kubelet = "/var/lib/kubelet".into();
        let cgroups = cgroupfs.to_owned();
        let roots = Roots { procfs: procfs.to_owned(), sysfs, cgroupfs: cgroups, rootfs, kubelet };
        let collectors = collectors::all(&roots, interval);
        let sampler = Sampler::new(collectors, store.clone(), &health, Metrics::default());
        let seconds = Arc::new(AtomicU64::new(3_600));
        let time = seconds.clone();
        let boot = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let clock = Arc::new(move || {
            let passed = Duration::from_secs(time.load(Ordering::Relaxed));
            Now { boot: Moment(passed), wall: boot + passed }
        });
        let shutdown = Shutdown::new();
        let listener = bind("127.0.0.1:0".parse().unwrap(), "--web.listen-address").await.unwrap();
        let address = listener.local_addr().unwrap();
        let node = Node {
            boot_id: Some("a-boot".to_owned()),
            uptime: None,
            sample_interval: interval.duration(),
        };
        let uptime = UptimeFile::new(procfs);
        let cgroupfs = cgroupfs.to_owned();
        let endpoints = Endpoints::new(store, clock, node, uptime, cgroupfs);
        tokio::spawn(serve(listener, endpoints, Limits::admin(), shutdown.clone()));
        Self { address, sampler, health, seconds, stop: shutdown }
    }

    /// Lets time pass without samples.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Takes a sample now, then lets an interval pass.
    fn sample(&mut self) {
        let now = Moment(Duration::from_secs(self.seconds.load(Ordering::Relaxed)));
        self.sampler.round(now);
        self.pass(INTERVAL);
    }

    /// Takes samples for so many seconds, in which so much of the CPU is busy.
    fn run(&mut self, procfs: &mut Procfs, percent: u64, seconds: u64) {
        for _ in 0..seconds / INTERVAL {
            procfs.burn(percent, INTERVAL);
            self.sample();
        }
    }

    async fn statistics(&self) -> serde_json::Value {
        let answer = get(self.address, "/statistics", "*/*").await;
        assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
        serde_json::from_str(&answer.body).unwrap()
    }

    async fn metrics(&self, accept: &str) -> Answer {
        get(self.address, "/metrics", accept).await
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The metrics of CPU and memory, twelve at most: those that crane's policies read, and their variation.
fn keys(statistics: &serde_json::Value) -> Vec<&str> {
    let keys = statistics.as_object().unwrap().keys().map(String::as_str);
    keys.filter(|key| key.starts_with("cpu_usage") || key.starts_with("mem_usage")).collect()
}

/// Compares with a golden file; `UPDATE_GOLDEN=1` writes it instead.
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&path).unwrap(), "{}", path.display());
}

#[tokio::test]
async fn before_the_first_sample_there_are_no_values() {
    let exporter = Exporter::start(Procfs::new().path()).await;
    assert_eq!(exporter.statistics().await, serde_json::json!({}));
    assert_eq!(exporter.metrics("*/*").await.body, "");
}

#[tokio::test]
async fn the_first_sample_has_memory_and_not_yet_cpu() {
    let procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    exporter.sample();
    let first = ["active", "avg_15m", "avg_5m", "stddev_15m"].map(|end| format!("mem_usage_{end}"));
    assert_eq!(keys(&exporter.statistics().await), first);
}

/// Copies the tree `from` into the tree `to`.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn the_tree_of_every_kernel_gives_its_golden_pages() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let names = fs::read_dir(&fixtures).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let kernels: Vec<_> = names.filter(|name| name.contains("linux-")).collect();
    assert_eq!(kernels.len(), 8, "{kernels:?}");
    for kernel in kernels {
        let procfs = tempfile::tempdir().unwrap();
        let mut exporter = Exporter::start(procfs.path()).await;
        for snapshot in ["0", "1"] {
            copy(&fixtures.join(&kernel).join(snapshot), procfs.path());
            exporter.sample();
        }
        let statistics = get(exporter.address, "/statistics", "*/*").await.body;
        golden(&format!("{kernel}.json"), &statistics);
        golden(&format!("{kernel}.prom"), &exporter.metrics("text/plain").await.body);
    }
}

#[tokio::test]
async fn a_busy_node_has_all_twelve_metrics_in_every_format() {
    let mut procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    exporter.run(&mut procfs, 10, 600);
    procfs.use_memory(75);
    exporter.run(&mut procfs, 90, 300);
    procfs.use_memory(40);
    exporter.run(&mut procfs, 20, 1_200);
    assert_eq!(keys(&exporter.statistics().await).len(), 12);
    golden("busy.json", &get(exporter.address, "/statistics", "*/*").await.body);
    golden("busy.v1.json", &get(exporter.address, "/v1/statistics", "*/*").await.body);
    let prometheus = exporter.metrics("*/*").await;
    assert!(prometheus.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"));
    golden("busy.prom", &prometheus.body);
}

#[tokio::test]
async fn a_saturated_node_has_a_hundred_percent() {
    let mut procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    exporter.run(&mut procfs, 100, 60);
    assert_eq!(exporter.statistics().await["cpu_usage_active"], 100);
}

#[tokio::test]
async fn a_configured_window_is_on_every_page() {
    let mut procfs = Procfs::new();
    let config = "rules: [{signals: [mem_usage], values: [p95_1h, min_1d, max_10m]}]";
    let mut exporter = Exporter::start_with(procfs.path(), config).await;
    exporter.run(&mut procfs, 30, 600);
    let statistics = exporter.statistics().await;
    let detailed = get(exporter.address, "/v1/statistics", "*/*").await.body;
    let metrics = exporter.metrics("*/*").await.body;
    for key in ["mem_usage_p95_1h", "mem_usage_min_1d", "mem_usage_max_10m"] {
        assert_eq!(statistics[key], 50, "{statistics}");
        assert!(
            detailed.contains(key) && metrics.contains(&format!("node_{key} 50\n")),
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn uptime_seconds_is_that_of_the_procfs_or_null() {
    let mut procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    let mut uptime = async |exporter: &mut Exporter| {
        exporter.run(&mut procfs, 10, INTERVAL);
        let answer = get(exporter.address, "/v1/statistics", "*/*").await.body;
        serde_json::from_str::<serde_json::Value>(&answer).unwrap()["uptime_seconds"].clone()
    };
    assert_eq!(uptime(&mut exporter).await, 3_610);
    assert_eq!(uptime(&mut exporter).await, 3_620);
    for unreadable in ["soon\n", ""] {
        let exporter = Exporter::start(procfs.path()).await;
        fs::write(procfs.path().join("uptime"), unreadable).unwrap();
        let answer = get(exporter.address, "/v1/statistics", "*/*").await.body;
        assert!(answer.contains("\"uptime_seconds\":null,"), "{answer}");
    }
    fs::remove_file(procfs.path().join("uptime")).unwrap();
    let exporter = Exporter::start(procfs.path()).await;
    let answer = get(exporter.address, "/v1/statistics", "*/*").await.body;
    assert!(answer.contains("\"uptime_seconds\":null,"), "{answer}");
}

#[tokio::test]
async fn a_page_changes_with_each_sample() {
    let mut procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    for percent in [20, 70] {
        exporter.run(&mut procfs, percent, 60);
        assert_eq!(exporter.statistics().await["cpu_usage_active"], percent);
    }
}

#[tokio::test]
async fn values_disappear_when_sampling_stops() {
    let mut procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    exporter.run(&mut procfs, 30, 300);
    exporter.pass(2 * INTERVAL);
    assert_eq!(keys(&exporter.statistics().await).len(), 12);
    exporter.pass(1);
    assert_eq!(exporter.statistics().await, serde_json::json!({}));
}

#[tokio::test]
async fn an_unreadable_file_costs_its_own_values_alone_and_is_named() {
    let mut procfs = Procfs::new();
    let mut exporter = Exporter::start(procfs.path()).await;
    exporter.run(&mut procfs, 30, 60);
    fs::write(procfs.path().join("meminfo"), "MemTotal: 1 kB\nMemAvailable: some kB\n").unwrap();
    exporter.run(&mut procfs, 30, 40);
    let left = ["active", "avg_15m", "avg_5m", "stddev_15m"].map(|end| format!("cpu_usage_{end}"));
    assert_eq!(keys(&exporter.statistics().await), left);
    let mut conditions = exporter.health.conditions();
    conditions.retain(|condition| condition.id == "memory");
    let why = &conditions[0].text;
    assert!(why.ends_with("/meminfo: line 2: is not a number of kB"), "{why}");
    procfs.use_memory(10);
    exporter.sample();
    assert!(exporter.health.is_ready());
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let exporter = Exporter::start(Procfs::new().path()).await;
    for path in ["/", "/v1", "/v1/pods/", "/metrics/", "/statisticsx", "*"] {
        assert_eq!(get(exporter.address, path, "*/*").await.status, 404, "{path}");
    }
    for path in ["/metrics", "/statistics", "/v1/statistics", "/v1/pods"] {
        let body = "Content-Length: 3\r\n\r\nabc";
        let answer = ask(exporter.address, &format!("POST {path}"), body).await;
        assert_eq!(answer.status, 405, "{path}");
        assert!(answer.head.contains("allow: get,head"), "{}", answer.head);
    }
}

#[tokio::test]
async fn a_query_changes_nothing_and_a_head_has_no_body() {
    let exporter = Exporter::start(Procfs::new().path()).await;
    assert_eq!(get(exporter.address, "/statistics?cache=no", "*/*").await.body, "{}");
    let answer = ask(exporter.address, "HEAD /statistics", "").await;
    assert!(answer.head.contains("content-length: 2"), "{}", answer.head);
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
}
