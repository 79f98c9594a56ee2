//! Exporters behind TLS, and the token that is sent to them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use support::authority::{Authority, Signed, self_signed};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::exporter::Exporter;
use crate::world::{CALM, Running, World};

const CPU: &str = "cpu_usage_avg_5m";
const NAME: &str = "node-exporter-plus";

/// A server with a certificate for `name`.
async fn exporter(authority: &Authority, name: &str) -> Exporter {
    Exporter::start_at("127.0.0.1:0", CALM, Some(acceptor(authority, name))).await
}

pub(crate) fn acceptor(authority: &Authority, name: &str) -> TlsAcceptor {
    acceptor_with(&authority.sign(name))
}

/// A server with this certificate.
pub(crate) fn acceptor_with(signed: &Signed) -> TlsAcceptor {
    let key = PrivateKeyDer::Pkcs8(signed.key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![signed.certificate.der().clone()], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// A world whose exporter is behind TLS, and the files that the annotator needs for it.
struct Secured {
    world: World,
    folder: tempfile::TempDir,
}

impl Secured {
    async fn new(authority: &Authority, name: &str) -> Self {
        let mut world = World::with_node().await;
        world.exporter = exporter(authority, name).await;
        let secured = Self { world, folder: tempfile::tempdir().unwrap() };
        fs::write(secured.ca(), authority.pem()).unwrap();
        fs::write(secured.token(), "first-token\n").unwrap();
        secured
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn token(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    async fn start(&self) -> Running {
        let ca = format!("--exporter-ca-file={}", self.ca().display());
        let token = format!("--exporter-token-file={}", self.token().display());
        self.world.start_with(&[&ca, &token]).await
    }
}

#[tokio::test]
async fn an_exporter_with_a_valid_certificate_gets_the_token_whatever_its_address() {
    let secured = Secured::new(&Authority::new(), NAME).await;
    let _running = secured.start().await;
    let annotations = secured.world.annotations("a");
    assert_eq!(annotations[CPU], "0.63012,2026-11-20T09:00:00Z");
    let head = secured.world.exporter.heads().remove(0).to_ascii_lowercase();
    assert!(head.contains("\r\nauthorization: bearer first-token\r\n"), "{head}");
}

#[tokio::test]
async fn an_exporter_whose_self_signed_certificate_is_the_ca_file_is_polled() {
    let signed = self_signed(NAME);
    let mut secured = Secured::new(&Authority::new(), NAME).await;
    secured.world.exporter =
        Exporter::start_at("127.0.0.1:0", CALM, Some(acceptor_with(&signed))).await;
    fs::write(secured.ca(), signed.certificate.pem()).unwrap();
    let _running = secured.start().await;
    assert_eq!(secured.world.annotations("a")[CPU], "0.63012,2026-11-20T09:00:00Z");
}

#[tokio::test]
async fn each_exporter_is_asked_at_its_own_address_though_all_have_the_same_name() {
    let authority = Authority::new();
    let secured = Secured::new(&authority, NAME).await;
    let port = secured.world.exporter.port;
    let busy = CALM.replace("63.012", "99");
    let at = format!("127.0.0.2:{port}");
    let other = Exporter::start_at(&at, &busy, Some(acceptor(&authority, NAME))).await;
    secured.world.sim.put(sim::node("b").address("127.0.0.2"));
    let running = secured.start().await;
    running.pass_minutes(4).await;
    assert!(secured.world.exporter.asked() > 1 && other.asked() > 1);
    for (node, cpu) in [("a", "0.63012,"), ("b", "0.99000,")] {
        let text = &secured.world.annotations(node)[CPU];
        assert!(text.as_str().unwrap().starts_with(cpu), "{node}: {text}");
    }
}

#[tokio::test]
async fn a_host_name_in_the_exporter_annotation_is_resolved() {
    let secured = Secured::new(&Authority::new(), NAME).await;
    let host = format!("localhost:{}", secured.world.exporter.port);
    secured.world.sim.put(sim::node("a").annotation("plimsoll.dev/exporter", &host));
    let _running = secured.start().await;
    assert_eq!(secured.world.annotations("a")[CPU], "0.63012,2026-11-20T09:00:00Z");
}

#[tokio::test]
async fn a_server_with_another_ca_or_name_gets_no_request() {
    let authority = Authority::new();
    let mut of_another_ca = Secured::new(&authority, NAME).await;
    of_another_ca.world.exporter = exporter(&Authority::new(), NAME).await;
    let of_another_name = Secured::new(&authority, "somebody-else").await;
    for secured in [of_another_ca, of_another_name] {
        let running = secured.start().await;
        running.silent(1).await;
        assert_eq!(secured.world.exporter.asked(), 0);
        let metrics = running.metrics();
        assert!(metrics.contains("polls_total{outcome=\"tls\"} 1\n"), "{metrics}");
    }
}

#[tokio::test]
async fn an_exporter_without_tls_gets_no_token() {
    let mut secured = Secured::new(&Authority::new(), NAME).await;
    secured.world.exporter = Exporter::start(CALM).await;
    // It waits for the end of a request that is none.
    secured.world.poll_timeout = Duration::from_secs(1);
    let running = secured.start().await;
    running.silent(1).await;
    assert_eq!(secured.world.exporter.asked(), 0);
}

#[tokio::test]
async fn changed_files_are_in_force_without_a_restart_and_faulty_ones_change_nothing() {
    let old = Authority::new();
    let mut secured = Secured::new(&old, NAME).await;
    let running = secured.start().await;
    fs::write(secured.token(), "two words").unwrap();
    running.advance(5);
    running
        .counted("plimsoll_file_changes_total{file=\"credentials\",outcome=\"refused\"} 1")
        .await;
    running.counted("plimsoll_files_refused{file=\"credentials\"} 1").await;
    running.pass(200).await;
    let head = secured.world.exporter.heads().pop().unwrap();
    assert!(head.contains("Bearer first-token\r\n"), "{head}");

    let new = Authority::new();
    fs::write(secured.token(), "second-token").unwrap();
    fs::write(secured.ca(), new.pem()).unwrap();
    running.advance(5);
    running
        .counted("plimsoll_file_changes_total{file=\"credentials\",outcome=\"changed\"} 1")
        .await;
    secured.world.exporter = exporter(&new, NAME).await;
    let address = secured.world.exporter.address();
    let node = sim::node("b").annotation("plimsoll.dev/exporter", address);
    secured.world.sim.put(node);
    running.idle(2).await;
    assert!(secured.world.annotations("b")[CPU].is_string());
    let head = secured.world.exporter.heads().pop().unwrap();
    assert!(head.contains("Bearer second-token\r\n"), "{head}");
}

#[tokio::test]
async fn one_handshake_serves_all_polls_and_a_changed_token() {
    let secured = Secured::new(&Authority::new(), NAME).await;
    let running = secured.start().await;
    running.pass_minutes(30).await;
    fs::write(secured.token(), "second-token").unwrap();
    running.advance(5);
    running
        .counted("plimsoll_file_changes_total{file=\"credentials\",outcome=\"changed\"} 1")
        .await;
    running.pass_minutes(4).await;
    let heads = secured.world.exporter.heads();
    assert!(heads.len() > 10, "{heads:?}");
    assert!(heads.last().unwrap().contains("Bearer second-token\r\n"), "{heads:?}");
    assert_eq!(secured.world.exporter.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_an_older_ca_vouched_for_is_not_used_again() {
    let secured = Secured::new(&Authority::new(), NAME).await;
    let running = secured.start().await;
    let asked = secured.world.exporter.asked();
    fs::write(secured.ca(), Authority::new().pem()).unwrap();
    running.advance(5);
    running
        .counted("plimsoll_file_changes_total{file=\"credentials\",outcome=\"changed\"} 1")
        .await;
    running.pass_minutes(4).await;
    running.silent(1).await;
    assert_eq!(secured.world.exporter.asked(), asked);
    assert_eq!(secured.world.exporter.connections(), 1);
}

#[tokio::test]
async fn an_exporter_that_refuses_the_token_is_counted_as_refused() {
    let secured = Secured::new(&Authority::new(), NAME).await;
    let answer = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n".to_owned();
    secured.world.exporter.set(crate::exporter::Answer::Raw(answer));
    let running = secured.start().await;
    running.silent(1).await;
    assert!(running.metrics().contains("polls_total{outcome=\"refused\"} 1\n"));
}
