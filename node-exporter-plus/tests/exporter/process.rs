//! The real binary from its start to SIGTERM.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use crate::node::{Procfs, get};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

/// Long enough for any machine; a test that gets here hangs.
const HANG: Duration = Duration::from_secs(60);

struct Exporter {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Exporter {
    fn start(procfs: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_node-exporter-plus"))
            .args(["--web.listen-address=127.0.0.1:0", "--admin-address=127.0.0.1:0"])
            .args(["--sample-interval=1s", "--log-format=json", "--path.procfs", procfs])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log }
    }

    /// The address in the log line that says that it serves `what`.
    async fn address(&mut self, what: &str) -> SocketAddr {
        loop {
            let line = self.log.next_line().await.unwrap().unwrap();
            let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
            if entry["message"].as_str().unwrap().starts_with(&format!("serving {what}")) {
                return entry["address"].as_str().unwrap().parse().unwrap();
            }
        }
    }

    async fn terminate(mut self) -> std::process::ExitStatus {
        let pid = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().await.unwrap()
    }
}

#[tokio::test]
async fn it_samples_serves_becomes_ready_and_stops_cleanly() {
    let life = async {
        let mut procfs = Procfs::new();
        let mut exporter = Exporter::start(procfs.path().to_str().unwrap());
        let admin = exporter.address("/metrics, /livez").await;
        let address = exporter.address("/metrics and /statistics").await;
        while !get(address, "/statistics", "*/*").await.body.contains("cpu_usage_active") {
            procfs.burn(60, 1);
        }
        assert_eq!(get(address, "/statistics", "*/*").await.body.matches("60").count(), 2);
        assert_eq!(get(admin, "/readyz", "*/*").await.body, "[+] cpu\n[+] memory\n");
        assert_eq!(get(admin, "/livez", "*/*").await.status, 200);
        let counted = get(admin, "/metrics", "*/*").await.body;
        assert!(
            counted.contains("plimsoll_exporter_samples_total{collector=\"cpu\"}"),
            "{counted}"
        );
        assert_eq!(exporter.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_wrong_procfs_is_a_fatal_error_that_says_what_to_do() {
    let mut exporter = Exporter::start("/nonexistent");
    let status = tokio::time::timeout(HANG, exporter.child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(1));
    let mut last = String::new();
    while let Some(line) = exporter.log.next_line().await.unwrap() {
        last = line;
    }
    let expected = "node-exporter-plus: --path.procfs /nonexistent: there is no /nonexistent/stat; \
                    give the host's /proc, mounted read-only";
    assert_eq!(last, expected);
}
