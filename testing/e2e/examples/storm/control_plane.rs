//! etcd, the API server and kube-scheduler as bare processes on the loopback interface.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::{Running, start};

const TOKEN: &str = "storm";

pub(crate) struct ControlPlane {
    pub(crate) client: Client,
    _programs: [Running; 2],
}

impl ControlPlane {
    /// Starts etcd and the API server, everything they write in `folder`.
    pub(crate) async fn start(programs: &Path, folder: &Path) -> Result<Self> {
        let [etcd_port, peer_port, api_port] = free_ports()?;
        let etcd = start_etcd(programs, folder, etcd_port, peer_port)?;
        let api = start_api_server(programs, folder, etcd_port, api_port)?;
        std::fs::write(folder.join("kubeconfig"), kubeconfig(api_port).to_string())?;
        let file = Kubeconfig::read_from(folder.join("kubeconfig"))?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        for _ in 0..300 {
            if text(&client, "/readyz").await.is_ok_and(|answer| answer == "ok") {
                return Ok(Self { client, _programs: [etcd, api] });
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("the API server is not ready after a minute")
    }

    /// Starts kube-scheduler with one extender, which filters all pods.
    pub(crate) fn start_scheduler(
        &self,
        programs: &Path,
        folder: &Path,
        extender: u16,
    ) -> Result<Running> {
        let kubeconfig = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
            "extenders": [{
                "urlPrefix": format!("http://127.0.0.1:{extender}"), "filterVerb": "filter",
                "nodeCacheCapable": true, "ignorable": true, "httpTimeout": "5s",
            }],
        });
        let file = folder.join("scheduler.json");
        std::fs::write(&file, config.to_string())?;
        let mut scheduler = Command::new(programs.join("kube-scheduler"));
        scheduler.arg(format!("--config={}", file.display())).arg("--secure-port=0");
        start(scheduler, &folder.join("scheduler.log"))
    }

    /// Patches of Nodes since the start, by the API server's own count.
    pub(crate) async fn patches(&self) -> Result<u64> {
        let metrics = text(&self.client, "/metrics").await?;
        let counts = metrics.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && ["resource=\"nodes\"", "subresource=\"\"", "verb=\"PATCH\""]
                    .iter()
                    .all(|label| line.contains(label))
        });
        let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(counts.sum::<f64>() as u64)
    }
}

async fn text(client: &Client, path: &str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}

fn free_ports() -> Result<[u16; 3]> {
    let mut listeners = Vec::new();
    let mut ports = [0; 3];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        // It is kept until all ports are chosen, so that they differ.
        listeners.push(listener);
    }
    Ok(ports)
}

fn start_etcd(programs: &Path, folder: &Path, port: u16, peer_port: u16) -> Result<Running> {
    let [client, peer] = [port, peer_port].map(|port| format!("http://127.0.0.1:{port}"));
    let mut etcd = Command::new(programs.join("etcd"));
    etcd.arg(format!("--data-dir={}", folder.join("etcd").display()))
        .args([
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
        ])
        .args([format!("--listen-peer-urls={peer}"), "--unsafe-no-fsync".to_owned()])
        .args([
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ]);
    start(etcd, &folder.join("etcd.log"))
}

fn start_api_server(programs: &Path, folder: &Path, etcd: u16, port: u16) -> Result<Running> {
    let tokens = folder.join("tokens.csv");
    std::fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n"))?;
    let key_file = folder.join("sa.key").display().to_string();
    let key = Command::new("openssl").args(["genrsa", "-out", &key_file, "2048"]).output();
    ensure!(key.context("cannot start openssl")?.status.success(), "openssl made no key");
    let mut api = Command::new(programs.join("kube-apiserver"));
    api.args([format!("--etcd-servers=http://127.0.0.1:{etcd}"), format!("--secure-port={port}")])
        .args(["--bind-address=127.0.0.1", "--service-cluster-ip-range=10.96.0.0/16"])
        .args([
            format!("--cert-dir={}", folder.join("certs").display()),
            format!("--token-auth-file={}", tokens.display()),
        ])
        .args([
            format!("--service-account-key-file={key_file}"),
            format!("--service-account-signing-key-file={key_file}"),
            "--service-account-issuer=https://storm".to_owned(),
        ])
        .arg("--authorization-mode=AlwaysAllow")
        // There is no controller manager: nothing makes service accounts, or takes the taint off new nodes.
        .arg("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition");
    start(api, &folder.join("apiserver.log"))
}

fn kubeconfig(port: u16) -> serde_json::Value {
    let cluster =
        json!({"server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true});
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "storm",
        "clusters": [{"name": "storm", "cluster": cluster}],
        "users": [{"name": "storm", "user": {"token": TOKEN}}],
        "contexts": [{"name": "storm", "context": {"cluster": "storm", "user": "storm"}}],
    })
}
