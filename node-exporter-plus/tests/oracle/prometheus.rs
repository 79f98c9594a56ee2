//! A Prometheus process over backfilled samples.

use std::collections::BTreeMap;

use crate::synthetic::{BOOT, SLOTS, unix};

pub(crate) struct Prometheus {
    server: support::promtool::Server,
    left_open: bool,
}

impl Prometheus {
    /// Backfills `samples`, an OpenMetrics text without its end, and starts a Prometheus that serves them.
    pub(crate) fn over(samples: &str) -> Self {
        let mut prometheus =
            Self { server: support::promtool::Server::over(samples), left_open: false };
        let build = prometheus.get("/api/v1/status/buildinfo").unwrap();
        let version = build["data"]["version"].as_str().unwrap().to_owned();
        println!("Prometheus {version}");
        prometheus.left_open = !version.starts_with(['1', '2']);
        prometheus
    }

    /// The range of so many seconds with its left edge left out, as Prometheus 3 reads it. Earlier releases include the
    /// edge, so they are asked for a millisecond less.
    pub(crate) fn range(&self, seconds: u64) -> String {
        if self.left_open { format!("{seconds}s") } else { format!("{}ms", seconds * 1_000 - 1) }
    }

    /// A mean over `inner` seconds where it counts in a maximum: `count` samples fill half of its window, or half of
    /// the time since the boot where that is shorter, and half of five minutes have passed since the boot.
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
        let start = unix(0);
        let end = unix(SLOTS);
        let path = format!("/api/v1/query_range?query={encoded}&start={start}&end={end}&step=60");
        let answer = self.get(&path).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let series = answer["data"]["result"].as_array().unwrap();
        assert_eq!(series.len(), 1, "{query}: one series");
        let points = series[0]["values"].as_array().unwrap();
        points
            .iter()
            .map(|point| {
                (point[0].as_f64().unwrap() as u64, point[1].as_str().unwrap().parse().unwrap())
            })
            .collect()
    }

    fn get(&self, path: &str) -> Option<serde_json::Value> {
        let answer = self.server.get(path)?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }
}
