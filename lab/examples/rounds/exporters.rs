//! One server that answers as the exporters of all nodes. The address that a client connects to is the node's.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use jiff::Timestamp;
use jiff::fmt::strtime;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Map, json};
use support::authority::Authority;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The name in the certificate of every exporter.
const NAME: &str = "node-exporter-plus";

/// The signals of an answer, beside those that the policy names: what the exporter's default configuration serves of a
/// machine with two disks and two interfaces.
const SIGNALS: [&str; 11] = [
    "cpu_busy",
    "cpu_iowait",
    "cpu_steal",
    "load_usage",
    "swap_usage",
    "cpu_pressure",
    "mem_pressure",
    "disk_0_usage",
    "disk_1_usage",
    "net_0_receive",
    "net_1_receive",
];

/// The windows of each.
const WINDOWS: [(&str, u32); 5] = [
    ("avg_5m", 300),
    ("avg_15m", 900),
    ("max_avg_1h", 3600),
    ("max_avg_1d", 86_400),
    ("p95_1d", 86_400),
];

/// Pods of a node.
const PODS: u32 = 30;

/// The server.
pub(crate) struct Exporters {
    port: u16,
    authority: Option<Authority>,
    connections: Arc<AtomicUsize>,
}

/// What connections share.
#[derive(Clone)]
struct Answers {
    tls: Option<TlsAcceptor>,
    silent: u32,
    steady: bool,
    connections: Arc<AtomicUsize>,
}

impl Exporters {
    pub(crate) async fn start(tls: bool, silent: u32, steady: bool) -> anyhow::Result<Self> {
        let authority = tls.then(Authority::new);
        let tls = authority.as_ref().map(acceptor).transpose()?;
        let listener = TcpListener::bind("0.0.0.0:0").await.context("no port")?;
        let port = listener.local_addr()?.port();
        let connections = Arc::default();
        let answers = Answers { tls, silent, steady, connections: Arc::clone(&connections) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answers.clone().serve(stream));
            }
        });
        Ok(Self { port, authority, connections })
    }

    /// Connections so far; over TLS, handshakes that came to their end.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The annotator's flags; files that they name are in `folder`.
    pub(crate) fn flags(&self, folder: &Path) -> anyhow::Result<Vec<String>> {
        let mut flags = vec![format!("--exporter-port={}", self.port)];
        if let Some(authority) = &self.authority {
            let file = folder.join("ca.pem");
            fs::write(&file, authority.pem())?;
            flags.push(format!("--exporter-ca-file={}", file.display()));
        }
        Ok(flags)
    }
}

fn acceptor(authority: &Authority) -> anyhow::Result<TlsAcceptor> {
    let signed = authority.sign(NAME);
    let key = PrivateKeyDer::Pkcs8(signed.key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_no_client_auth();
    let config = config.with_single_cert(vec![signed.certificate.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Answers {
    async fn serve(self, stream: TcpStream) {
        let Ok(local) = stream.local_addr() else { return };
        let _ = stream.set_nodelay(true);
        let node = number(local);
        if node % 100 < self.silent {
            // The connection is taken, and nothing comes.
            return std::future::pending().await;
        }
        match &self.tls {
            None => {
                self.connections.fetch_add(1, Ordering::Relaxed);
                self.converse(stream, node).await;
            }
            Some(tls) => {
                let Ok(stream) = tls.accept(stream).await else { return };
                self.connections.fetch_add(1, Ordering::Relaxed);
                self.converse(stream, node).await;
            }
        }
    }

    async fn converse(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin, node: u32) {
        let (mut head, mut asked) = (Vec::with_capacity(512), 0);
        while stream.read_buf(&mut head).await.is_ok_and(|bytes| bytes > 0) {
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            asked += u32::from(!self.steady);
            let body = if head.starts_with(b"GET /v1/pods ") {
                pods(asked)
            } else {
                statistics(node + asked * 7)
            };
            head.clear();
            let date = strtime::format("%a, %d %b %Y %H:%M:%S GMT", Timestamp::now());
            let (date, length) = (date.unwrap_or_default(), body.len());
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n"
            );
            if stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.is_err() {
                return;
            }
        }
    }
}

fn number(address: SocketAddr) -> u32 {
    match address.ip() {
        IpAddr::V4(address) => u32::from(address) & 0xff_ffff,
        IpAddr::V6(_) => 0,
    }
}

/// The body of `/v1/statistics`; `seed` tells values apart.
fn statistics(seed: u32) -> String {
    let timestamp = Timestamp::now().to_string();
    let mut values = Map::new();
    let signals = ["cpu_usage", "mem_usage"].into_iter().chain(SIGNALS);
    for (place, signal) in signals.enumerate() {
        for (window, seconds) in WINDOWS {
            let value = f64::from((seed * 37 + place as u32 * 11) % 9000) / 100.0;
            let value = json!({"value": value, "timestamp": timestamp, "coverage": 1, "windowSeconds": seconds});
            values.insert(format!("{signal}_{window}"), value);
        }
    }
    let all = json!({"bootId": "a-boot", "uptime_seconds": 86_400, "sampleIntervalSeconds": 10, "values": values});
    all.to_string()
}

/// The body of `/v1/pods`.
fn pods(asked: u32) -> String {
    let mut pods = Vec::new();
    for number in 0..PODS {
        let uid = format!("8b1f4a9e-0d4c-4a63-9d6e-{number:012x}");
        let cpu = f64::from(asked * 6);
        pods.push(json!({"uid": uid, "cpu_seconds_total": cpu, "memory_used_bytes": 123_456_789}));
    }
    json!({"time": Timestamp::now().to_string(), "omitted": 0, "pods": pods}).to_string()
}
