//! The real binary under attack by many connections, and its end by SIGHUP.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::node::{Procfs, get};
use crate::process::{Exporter, HANG};

/// Ten times as many connections as the exporter serves at once on a port. Each sends `text` and, if that is a whole
/// request, reads the beginning of the answer.
async fn idle_connections(address: SocketAddr, text: &str) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..320 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        if text.ends_with("\r\n\r\n") {
            stream.read_u8().await.unwrap();
        }
        crowd.push(stream);
    }
    crowd
}

#[tokio::test]
async fn idle_connections_keep_neither_scrapes_nor_probes_out() {
    let life = async {
        let procfs = Procfs::new();
        let mut exporter = Exporter::start_with(procfs.host(), &[]);
        let address = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        let texts = ["", "GET /st", "GET /statistics HTTP/1.1\r\nHost: node\r\n\r\n"];
        for text in texts {
            let _connections =
                (idle_connections(address, text).await, idle_connections(admin, text).await);
            assert_eq!(get(address, "/statistics", "*/*").await.status, 200, "{text}");
            assert_eq!(get(admin, "/livez", "*/*").await.status, 200, "{text}");
        }
    };
    timeout(HANG, life).await.unwrap();
}

/// A scrape's time-out. A probe's is shorter.
const SCRAPE: Duration = Duration::from_secs(10);

/// As many connections as the exporter serves at once on a port. Each asks for more answers than it can write, and
/// reads none.
async fn unread_connections(address: SocketAddr) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    let blocked = Arc::new(Barrier::new(33));
    for _ in 0..32 {
        let stream = TcpStream::connect(address).await.unwrap();
        connections.spawn(ask_only(stream, blocked.clone()));
    }
    blocked.wait().await;
    connections
}

async fn ask_only(mut stream: TcpStream, blocked: Arc<Barrier>) {
    let requests = "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n".repeat(100);
    let mut writes = async || {
        let asked = timeout(Duration::from_secs(1), stream.write_all(requests.as_bytes())).await;
        asked.is_ok_and(|asked| asked.is_ok())
    };
    while writes().await {}
    blocked.wait().await;
    pending().await
}

#[tokio::test]
async fn connections_that_read_nothing_keep_neither_scrapes_nor_probes_out() {
    let life = async {
        let mut procfs = Procfs::new();
        let folder = procfs.host().to_owned();
        let mut exporter = Exporter::start_with(&folder, &[]);
        let address = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        while !get(address, "/statistics", "*/*").await.body.contains("cpu_usage_active") {
            procfs.burn(60, 1);
        }
        for (address, path) in [(address, "/statistics"), (admin, "/livez")] {
            let _connections = unread_connections(address).await;
            let answer = timeout(SCRAPE, get(address, path, "*/*")).await;
            assert_eq!(answer.unwrap().status, 200, "{path}");
        }
    };
    timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn sighup_ends_it_as_sigterm_does_and_saves() {
    let life = async {
        let mut procfs = Procfs::new();
        let folder = procfs.host().to_owned();
        let file = procfs.path().join("samples");
        let storage = format!("--storage.file={}", file.display());
        let mut exporter = Exporter::start_with(&folder, &[&storage]);
        let address = exporter.address("/metrics and /statistics").await;
        while !get(address, "/statistics", "*/*").await.body.contains("cpu_usage_active") {
            procfs.burn(60, 1);
        }
        assert_eq!(exporter.end_by(Signal::HUP).await.code(), Some(0));
        assert!(file.exists());
    };
    timeout(HANG, life).await.unwrap();
}
