//! The extender's port behind TLS, and the one that only tells.

use std::net::SocketAddr;
use std::path::Path;

use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use sim::{Sim, node};
use support::authority::{Authority, Signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::replicas::{flags, is_leader, leads};
use crate::rig::{Rig, binding, gpu_node, gpu_pod};

/// The name in the extender's certificate.
const NAME: &str = "scheduler-extender.plimsoll.svc";

/// Writes certificate, key and the CA of clients.
fn write(folder: &Path, server: &Signed, clients: &str) -> Vec<String> {
    for (file, text) in server.files() {
        std::fs::write(folder.join(file), text).unwrap();
    }
    std::fs::write(folder.join("ca.crt"), clients).unwrap();
    [("tls-cert-file", "tls.crt"), ("tls-key-file", "tls.key"), ("client-ca-file", "ca.crt")]
        .map(|(flag, file)| format!("--{flag}={}", folder.join(file).display()))
        .to_vec()
}

/// What that client is answered; nothing where it has no certificate of the right CA.
async fn ask(address: SocketAddr, client: &TlsConnector, head: &str, body: &str) -> Option<String> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = client.connect(ServerName::try_from(NAME).unwrap(), stream).await.ok()?;
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer).filter(|answer| !answer.is_empty())
}

#[tokio::test]
async fn bind_is_answered_to_kube_schedulers_certificate_alone() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("node-a"));
    let (authority, others) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let flags = write(folder.path(), &authority.sign(NAME), &authority.pem());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let rig = Rig::start_with(&sim, &flags).await;
    let binding =
        json!({"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "node-a"}).to_string();
    let head = "POST /gpushare-scheduler/bind";
    let scheduler = authority.client_with(&authority.sign("kube-scheduler"));
    let answer = ask(rig.address, &scheduler, head, &binding).await.unwrap();
    assert!(answer.contains("\"Error\""), "{answer}");
    for stranger in [authority.client(), authority.client_with(&others.sign("kube-scheduler"))] {
        assert_eq!(ask(rig.address, &stranger, head, &binding).await, None);
    }
    // Over plain HTTP neither.
    let mut plain = TcpStream::connect(rig.address).await.unwrap();
    plain.write_all(format!("{head} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 2"));
}

/// Flags of one of several replicas whose files are in that folder.
fn replica_flags(folder: &Path, authority: &Authority) -> Vec<String> {
    [flags("15s"), write(folder, &authority.sign(NAME), &authority.pem())].concat()
}

async fn start(sim: &Sim, flags: &[String]) -> Rig {
    Rig::start_with(sim, &flags.iter().map(String::as_str).collect::<Vec<_>>()).await
}

#[tokio::test]
async fn a_replica_passes_requests_on_over_tls_and_both_follow_a_new_authority() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let (before, after) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let flags = replica_flags(folder.path(), &before);
    let first = start(&sim, &flags).await;
    leads(&first).await;
    let second = start(&sim, &flags).await;
    let passed_on = async |pod: &Value, authority: &Authority| {
        let scheduler = authority.client_with(&authority.sign("kube-scheduler"));
        let (head, body) = ("POST /gpushare-scheduler/bind", binding(pod, "n1").to_string());
        second
            .until("the second replica to have its binding done", async || {
                let answer = ask(second.address, &scheduler, head, &body).await;
                answer.is_some_and(|answer| answer.contains("\"Error\":\"\""))
            })
            .await;
    };
    passed_on(&gpu_pod(&sim, "one", 5), &before).await;
    assert!(is_leader(&first) && !is_leader(&second));
    write(folder.path(), &after.sign(NAME), &after.pem());
    passed_on(&gpu_pod(&sim, "two", 5), &after).await;
    assert!(is_leader(&first) && sim.log().bindings().len() == 2);
}

#[tokio::test]
async fn a_replica_passes_nothing_on_to_a_leader_without_a_certificate_of_its_authority() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let (authority, others) = (Authority::new(), Authority::new());
    let (folder, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // It takes the other's certificate.
    let both = [others.pem(), authority.pem()].concat();
    let foreign = [flags("15s"), write(foreign.path(), &others.sign(NAME), &both)].concat();
    let leader = start(&sim, &foreign).await;
    leads(&leader).await;
    let standby = start(&sim, &replica_flags(folder.path(), &authority)).await;
    let scheduler = authority.client_with(&authority.sign("kube-scheduler"));
    let body = binding(&gpu_pod(&sim, "train", 5), "n1").to_string();
    let answer = ask(standby.address, &scheduler, "POST /gpushare-scheduler/bind", &body).await;
    let answer = answer.unwrap();
    assert!(answer.contains("gives out GPUs now") && answer.contains("certificate"), "{answer}");
    assert_eq!(sim.log().bindings().len(), 0);
}

#[tokio::test]
async fn bind_is_answered_to_the_named_clients_of_the_authority_alone() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("node-a"));
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let mut flags = write(folder.path(), &authority.sign_until(NAME, 2031), &authority.pem());
    flags.push(format!("--client-names=system:kube-scheduler,{NAME}"));
    let rig = start(&sim, &flags).await;
    let binding =
        json!({"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "node-a"}).to_string();
    let ask = async |signed: Signed| {
        let client = authority.client_with(&signed);
        ask(rig.address, &client, "POST /gpushare-scheduler/bind", &binding).await
    };
    // As `plimsoll scheduler certificates` makes them: the first has no DNS name there, and a test's CA needs one.
    for right in [authority.sign_as("system:kube-scheduler", "none.example"), authority.sign(NAME)]
    {
        assert!(ask(right).await.unwrap().contains("\"Error\""));
    }
    assert_eq!(ask(authority.sign("annotator.plimsoll.svc")).await, None);
    let metrics = rig.context.metrics().unwrap();
    let end = "plimsoll_certificate_not_after_seconds{file=\"certificate\"} 1924992000";
    assert!(metrics.contains(end), "{metrics}");
}

#[tokio::test]
async fn the_port_that_tells_has_no_verb() {
    let sim = Sim::start().await.unwrap();
    let kept = sim::KeptAddress::new().unwrap();
    let address = kept.address();
    let flag = format!("--inspect-address={address}");
    let rig = Rig::start_with(&sim, &[&flag]).await;
    let status = async |path: &str, body: Option<&str>| {
        let url = format!("http://{address}{path}");
        let client = sim::http_client().unwrap();
        let call =
            body.map_or_else(|| client.get(&url), |body| client.post(&url).body(body.to_owned()));
        call.send().await.unwrap().status().as_u16()
    };
    for path in ["/gpushare-scheduler/inspect", "/version"] {
        assert_eq!(status(path, None).await, 200, "{path}");
    }
    let verbs = scheduler_extender::http::VERBS.iter().map(|(verb, _)| *verb);
    for verb in verbs.chain(["gpushare-scheduler/bind"]) {
        let code = status(&format!("/{verb}"), Some("{}")).await;
        assert!(code == 404 || code == 405, "{verb}: {code}");
    }
    drop(rig);
}
