//! A Prometheus process over backfilled samples.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::synthetic::{BOOT, SLOTS, unix};

/// Longer than any machine takes: a test that gets here hangs.
const HANG: Duration = Duration::from_secs(120);

pub(crate) struct Prometheus {
    server: Child,
    address: SocketAddr,
    left_open: bool,
    _folder: TempDir,
}

impl Prometheus {
    /// Backfills `samples`, an OpenMetrics text without its end, and starts a Prometheus that serves them.
    pub(crate) fn over(samples: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("samples"), format!("{samples}# EOF\n")).unwrap();
        fs::write(path("prometheus.yml"), "").unwrap();
        let filled = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
            .args([path("samples"), path("data")])
            .output()
            .unwrap();
        assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = Command::new("prometheus")
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--config.file={}", path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .args(["--storage.tsdb.retention.time=100y", "--log.level=error"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut prometheus = Self { server, address, left_open: false, _folder: folder };
        prometheus.wait();
        let build = prometheus.get("/api/v1/status/buildinfo").unwrap();
        let version = build["data"]["version"].as_str().unwrap().to_owned();
        println!("Prometheus {version}");
        prometheus.left_open = !version.starts_with(['1', '2']);
        prometheus
    }

    fn wait(&self) {
        let began = std::time::Instant::now();
        while self.get("/api/v1/query?query=up").is_none() {
            assert!(began.elapsed() < HANG, "Prometheus does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The range of so many seconds with its left edge left out, as Prometheus 3 reads it. Earlier releases include the edge,
    /// so they are asked for a millisecond less.
    pub(crate) fn range(&self, seconds: u64) -> String {
        if self.left_open { format!("{seconds}s") } else { format!("{}ms", seconds * 1_000 - 1) }
    }

    /// A mean over `inner` seconds where it counts in a maximum: `count` samples fill half of its window, or half of the time
    /// since the boot where that is shorter, and half of five minutes have passed since the boot.
    pub(crate) fn counted(mean: &str, count: &str, inner: u64) -> String {
        let possible = format!("scalar(clamp_max(vector(time() - {BOOT}), {inner}))");
        let settled = BOOT + inner.min(300) / 2;
        format!(
            "({mean} and on () ({count} * 20 >= {possible}) and on () (vector(time()) >= {settled}))"
        )
    }

    /// A query's value at each full minute of the virtual time, by Unix time.
    pub(crate) fn minutes(&self, query: &str) -> BTreeMap<u64, f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (start, end) = (unix(0), unix(SLOTS));
        let path = format!("/api/v1/query_range?query={encoded}&start={start}&end={end}&step=60");
        let answer = self.get(&path).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let series = answer["data"]["result"].as_array().unwrap();
        assert_eq!(series.len(), 1, "{query}: one series");
        let points = series[0]["values"].as_array().unwrap();
        let point = |point: &serde_json::Value| {
            (point[0].as_f64().unwrap() as u64, point[1].as_str().unwrap().parse().unwrap())
        };
        points.iter().map(point).collect()
    }

    fn get(&self, path: &str) -> Option<serde_json::Value> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(HANG)).unwrap();
        // With HTTP/1.0 the answer is not chunked, and the connection ends after it.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
