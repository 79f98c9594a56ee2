//! The real binary among clients that misbehave, and its end by a terminal's.

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

/// Ten times as many connections as an exporter serves at once on a port, with what `text` asks and all answers read.
async fn crowd(address: SocketAddr, text: &str) -> Vec<TcpStream> {
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
async fn a_crowd_that_is_idle_keeps_neither_scrapes_nor_probes_out() {
    let life = async {
        let procfs = Procfs::new();
        let mut exporter = Exporter::start_with(procfs.path().to_str().unwrap(), &[]);
        let address = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        let texts = ["", "GET /st", "GET /statistics HTTP/1.1\r\nHost: node\r\n\r\n"];
        for text in texts {
            let _crowds = (crowd(address, text).await, crowd(admin, text).await);
            assert_eq!(get(address, "/statistics", "*/*").await.status, 200, "{text}");
            assert_eq!(get(admin, "/livez", "*/*").await.status, 200, "{text}");
        }
    };
    timeout(HANG, life).await.unwrap();
}

/// A scrape's time-out, and longer than a probe's.
const SCRAPE: Duration = Duration::from_secs(10);

/// As many connections as an exporter serves at once on a port, with more answers than it can write, and none read.
async fn mute_crowd(address: SocketAddr) -> JoinSet<()> {
    let (mut crowd, owed) = (JoinSet::new(), Arc::new(Barrier::new(33)));
    for _ in 0..32 {
        let stream = TcpStream::connect(address).await.unwrap();
        crowd.spawn(ask_only(stream, owed.clone()));
    }
    owed.wait().await;
    crowd
}

async fn ask_only(mut stream: TcpStream, owed: Arc<Barrier>) {
    let some = "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n".repeat(100);
    let mut goes = async || {
        let asked = timeout(Duration::from_secs(1), stream.write_all(some.as_bytes())).await;
        asked.is_ok_and(|asked| asked.is_ok())
    };
    while goes().await {}
    owed.wait().await;
    pending().await
}

#[tokio::test]
async fn a_crowd_that_reads_nothing_keeps_neither_scrapes_nor_probes_out() {
    let life = async {
        let mut procfs = Procfs::new();
        let folder = procfs.path().to_str().unwrap().to_owned();
        let mut exporter = Exporter::start_with(&folder, &[]);
        let address = exporter.address("/metrics and /statistics").await;
        let admin = exporter.address("/metrics, /livez").await;
        while !get(address, "/statistics", "*/*").await.body.contains("cpu_usage_active") {
            procfs.burn(60, 1);
        }
        for (address, path) in [(address, "/statistics"), (admin, "/livez")] {
            let _crowd = mute_crowd(address).await;
            let answer = timeout(SCRAPE, get(address, path, "*/*")).await;
            assert_eq!(answer.unwrap().status, 200, "{path}");
        }
    };
    timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_hangup_ends_it_as_sigterm_does_and_saves() {
    let life = async {
        let mut procfs = Procfs::new();
        let folder = procfs.path().to_str().unwrap().to_owned();
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
