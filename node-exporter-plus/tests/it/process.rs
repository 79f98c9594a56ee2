//! The real binary from start to SIGTERM.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use crate::node::{Procfs, get};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

/// Longer than any machine takes: a test that gets here hangs.
pub(crate) const HANG: Duration = Duration::from_secs(300);

pub(crate) struct Exporter {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Exporter {
    fn start(host: &str) -> Self {
        Self::start_with(host, &[])
    }

    pub(crate) fn start_with(host: &str, flags: &[&str]) -> Self {
        let local = ["--web.listen-address=127.0.0.1:0", "--admin-address=127.0.0.1:0"];
        Self::launch(host, &[&local, flags].concat())
    }

    /// Starts the binary with these flags, as from a terminal: under nohup(1) it would inherit that SIGHUP is ignored.
    pub(crate) fn launch(host: &str, flags: &[&str]) -> Self {
        let mut child = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_node-exporter-plus")])
            .args(["--sample-interval=1s", "--log-format=json", "--host-root", host])
            .args(flags)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log }
    }

    /// Waits for the log line that begins with `serving WHAT` and returns its address.
    pub(crate) async fn address(&mut self, what: &str) -> SocketAddr {
        loop {
            let line = self.log.next_line().await.unwrap().unwrap();
            let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
            if entry["message"].as_str().unwrap().starts_with(&format!("serving {what}")) {
                return entry["address"].as_str().unwrap().parse().unwrap();
            }
        }
    }

    pub(crate) async fn line(&mut self, message: &str) -> serde_json::Value {
        loop {
            let line = self.log.next_line().await.unwrap().unwrap();
            let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
            if entry["message"] == message {
                return entry;
            }
        }
    }

    /// Waits until it ends by itself: the exit code, and the last line of its log.
    pub(crate) async fn end(self) -> (Option<i32>, String) {
        let (code, mut log) = self.end_with_log().await;
        (code, log.pop().unwrap_or_default())
    }

    /// How it ended by itself, and all that it logged.
    pub(crate) async fn end_with_log(mut self) -> (Option<i32>, Vec<String>) {
        let mut log = Vec::new();
        while let Some(line) = self.log.next_line().await.unwrap() {
            log.push(line);
        }
        (self.child.wait().await.unwrap().code(), log)
    }

    pub(crate) async fn terminate(self) -> std::process::ExitStatus {
        self.end_by(Signal::TERM).await
    }

    pub(crate) async fn end_by(mut self, signal: Signal) -> std::process::ExitStatus {
        let pid = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        self.child.wait().await.unwrap()
    }
}

#[tokio::test]
async fn it_samples_becomes_ready_serves_and_stops_cleanly() {
    let life = async {
        let mut procfs = Procfs::new();
        let mut exporter = Exporter::start(procfs.host());
        let address = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        // Values are stale after three seconds, so all are taken from one answer.
        let statistics = loop {
            let statistics = get(address, "/statistics", "*/*").await.body;
            if statistics.contains("cpu_usage_active") {
                break statistics;
            }
            procfs.burn(60, 1);
        };
        assert!(statistics.contains("\"cpu_usage_avg_5m\":60"), "{statistics}");
        assert_eq!(get(admin, "/readyz", "*/*").await.body, "[+] cpu\n[+] memory\n");
        assert_eq!(get(admin, "/livez", "*/*").await.status, 200);
        let counted = get(admin, "/metrics", "*/*").await.body;
        assert!(
            counted
                .contains("plimsoll_exporter_samples_total{collector=\"cpu\",outcome=\"taken\"}"),
            "{counted}"
        );
        assert_eq!(exporter.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_restarted_exporter_reads_the_samples_of_the_one_before() {
    let life = async {
        let mut procfs = Procfs::new();
        let folder = procfs.host().to_owned();
        let storage = format!("--storage.file={folder}/samples");
        let mut first = Exporter::start_with(&folder, &[&storage]);
        let address = first.address("/metrics and /statistics").await;
        while !get(address, "/statistics", "*/*").await.body.contains("cpu_usage_active") {
            procfs.burn(60, 1);
        }
        assert_eq!(first.terminate().await.code(), Some(0));

        let mut second = Exporter::start_with(&folder, &[&storage]);
        // Four of CPU and one of memory. Their values are stale after three seconds, so the log is read.
        assert_eq!(second.line("looked for samples of this boot").await["found"], "Signals(5)");
        assert_eq!(second.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_configuration_error_names_file_line_and_field() {
    let procfs = Procfs::new();
    let folder = procfs.host().to_owned();
    let config = procfs.path().join("config.yaml");
    std::fs::write(&config, "rules:\n- signals: [load1]\n  values: [avg_5x]\n").unwrap();
    let exporter = Exporter::start_with(&folder, &["--config.file", config.to_str().unwrap()]);
    let (code, last) = tokio::time::timeout(HANG, exporter.end()).await.unwrap();
    assert_eq!(code, Some(1));
    assert!(
        last.contains("config.yaml: line 3: rules[0].values[0]: \"5x\" is no window"),
        "{last}"
    );
}

#[tokio::test]
async fn a_wrong_root_is_a_fatal_error_with_advice() {
    let exporter = Exporter::start("/nonexistent");
    let (code, last) = tokio::time::timeout(HANG, exporter.end()).await.unwrap();
    assert_eq!(code, Some(1));
    let expected = "node-exporter-plus: --host-root /nonexistent: there is no /nonexistent/proc/stat; \
                    mount the host's /proc read-only at /nonexistent/proc";
    assert_eq!(last, expected);
}
