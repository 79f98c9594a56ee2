//! The HTTP server behind TLS, tried by clients that verify its certificate and by some that speak no TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use daemon::OwnThread;
use daemon::Shutdown;
use daemon::follow::{Follower, NamedFile};
use daemon::http::{Limits, Transport, bind, serve_on, serve_over};
use daemon::metrics::Counter;
use daemon::tls::{Acceptor, Identity, Peers};
use rustls::pki_types::{DnsName, ServerName};
use support::authority::{Authority, Signed};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Writes a certificate for `exporter` and its key.
fn sign(authority: &Authority, folder: &Path) {
    for (file, text) in authority.sign("exporter").files() {
        std::fs::write(folder.join(file), text).unwrap();
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    folder: TempDir,
    follower: Follower<Identity>,
    pub(crate) failures: Counter,
    shutdown: Shutdown,
}

fn identity(folder: &Path) -> Identity {
    let named = |flag, name| NamedFile { flag, path: folder.join(name) };
    let certificate = named("--web.tls-cert-file", "tls.crt");
    let clients = folder.join("clients.crt").exists();
    let client_names = std::fs::read_to_string(folder.join("client-names")).unwrap_or_default();
    let client_names = client_names.split_whitespace().map(str::to_owned).collect();
    let client_ca = clients.then(|| named("--client-ca-file", "clients.crt"));
    let key = named("--web.tls-key-file", "tls.key");
    Identity { certificate, key, client_ca, client_names, peer_name: None }
}

async fn start(authority: &Authority, limits: Limits) -> Server {
    start_in(tempfile::tempdir().unwrap(), authority, limits).await
}

/// With what that folder holds beside certificate and key.
async fn start_in(folder: TempDir, authority: &Authority, limits: Limits) -> Server {
    start_on(None, folder, authority, limits).await
}

/// As [`start_in`], with the answers made on that thread.
pub(crate) async fn start_on(
    thread: Option<OwnThread>,
    folder: TempDir,
    authority: &Authority,
    limits: Limits,
) -> Server {
    sign(authority, folder.path());
    let (follower, current) = Follower::open(identity(folder.path())).unwrap();
    let failures = Counter::default();
    let transport = Transport::Tls(Acceptor::new(current, failures.clone()));
    let listener = bind("127.0.0.1:0".parse().unwrap(), "--listen-address").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::new();
    let router = Router::new()
        .route("/", get(async || "hello"))
        .route("/large", get(async || "x".repeat(32 << 20)));
    let until = shutdown.clone();
    match thread {
        None => tokio::spawn(serve_over(transport, listener, router, limits, until)),
        Some(thread) => tokio::spawn(serve_on(thread, transport, listener, router, limits, until)),
    };
    // Lets the server bound the kernel's buffers: connections inherit that when they are made.
    tokio::task::yield_now().await;
    Server { address, folder, follower, failures, shutdown }
}

/// What the server at that address answers to a client that expects `name`.
async fn ask(server: &Server, client: &TlsConnector, name: &'static str) -> io::Result<String> {
    let stream = TcpStream::connect(server.address).await?;
    let mut stream = client.connect(ServerName::try_from(name).unwrap(), stream).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Waits until so many handshakes have failed.
pub(crate) async fn until_failures(server: &Server, count: u64) {
    while server.failures.get() < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_client_that_knows_the_ca_and_the_name_is_answered() {
    let authority = Authority::new();
    let server = start(&authority, Limits::admin()).await;
    let answer = ask(&server, &authority.client(), "exporter").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    assert_eq!(server.failures.get(), 0);
}

#[tokio::test]
async fn another_name_or_ca_is_refused_by_the_client_and_the_server_goes_on() {
    let authority = Authority::new();
    let server = start(&authority, Limits::admin()).await;
    let error = ask(&server, &authority.client(), "elsewhere").await.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
    let error = ask(&server, &Authority::new().client(), "exporter").await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    assert!(ask(&server, &authority.client(), "exporter").await.is_ok());
}

#[tokio::test]
async fn plain_http_is_closed_without_an_answer_and_counted() {
    let authority = Authority::new();
    let server = start(&authority, Limits::admin()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut answer).await;
    // At most a TLS alert, which is a handful of bytes.
    assert!(answer.len() < 10, "{answer:?}");
    until_failures(&server, 1).await;
    assert!(ask(&server, &authority.client(), "exporter").await.is_ok());
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_cut_off_and_delays_no_other_client() {
    let authority = Authority::new();
    let limits =
        Limits { handshake: Duration::from_secs(3_600), connections: 2, ..Limits::admin() };
    let server = start(&authority, limits).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(ask(&server, &authority.client(), "exporter").await.is_ok());
    // From here on only timers move: the handshake's is the next.
    tokio::time::pause();
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "closed by the server");
    assert_eq!(server.failures.get(), 1);
}

#[tokio::test]
async fn a_handshake_that_says_nothing_makes_room() {
    let authority = Authority::new();
    let limits =
        Limits { handshake: Duration::from_secs(3_600), connections: 1, ..Limits::admin() };
    let server = start(&authority, limits).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(ask(&server, &authority.client(), "exporter").await.unwrap().ends_with("hello"));
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "closed by the server");
}

#[tokio::test]
async fn the_shutdown_does_not_wait_for_handshakes() {
    let authority = Authority::new();
    let limits = Limits { handshake: Duration::from_secs(3_600), ..Limits::admin() };
    let server = start(&authority, limits).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(ask(&server, &authority.client(), "exporter").await.is_ok());
    server.shutdown.cancel();
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "closed by the server");
}

#[tokio::test]
async fn an_answer_that_is_left_unread_makes_room_and_a_whole_one_is_whole() {
    let authority = Authority::new();
    let long = Duration::from_secs(3_600);
    let patience = Duration::from_millis(50);
    let limits = Limits { connections: 1, unread: long, patience, ..Limits::admin() };
    let server = start(&authority, limits).await;
    let large = async || {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from("exporter").unwrap();
        let mut stream = authority.client().connect(name, stream).await.unwrap();
        let request = "GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'H');
        stream
    };
    let mut unread = large().await;
    assert!(ask(&server, &authority.client(), "exporter").await.unwrap().ends_with("hello"));
    let mut text = Vec::new();
    let end = unread.read_to_end(&mut text).await;
    assert!(end.is_err() && text.len() < 32 << 20, "{end:?} {}", text.len());
    text.clear();
    large().await.read_to_end(&mut text).await.unwrap();
    assert!(text.len() > 32 << 20, "{}", text.len());
}

#[tokio::test]
async fn a_new_certificate_is_shown_to_the_next_client_and_a_faulty_one_never() {
    let old = Authority::new();
    let new = Authority::new();
    let mut server = start(&old, Limits::admin()).await;
    let folder = server.folder.path().to_owned();
    sign(&new, &folder);
    server.follower.reload().unwrap().unwrap();
    assert!(ask(&server, &new.client(), "exporter").await.is_ok());
    assert!(ask(&server, &old.client(), "exporter").await.is_err());

    // Half of a rotation: the next certificate beside the key before.
    let key = std::fs::read(folder.join("tls.key")).unwrap();
    sign(&old, &folder);
    std::fs::write(folder.join("tls.key"), key).unwrap();
    let error = server.follower.reload().unwrap().unwrap_err().to_string();
    let file = folder.join("tls.key");
    let other = folder.join("tls.crt");
    let expected = "it is not the key of the certificate in";
    let file = file.display();
    let other = other.display();
    assert_eq!(error, format!("--web.tls-key-file {file}: {expected} {other}"));
    assert!(ask(&server, &new.client(), "exporter").await.is_ok());
}

#[test]
fn a_file_without_what_it_should_hold_is_named_and_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let error = |name: &str, text: &str| {
        sign(&Authority::new(), folder.path());
        std::fs::write(folder.path().join(name), text).unwrap();
        Follower::open(identity(folder.path())).map(drop).unwrap_err().to_string()
    };
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for text in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n", broken] {
        let error = error("tls.crt", text);
        assert!(error.starts_with("--web.tls-cert-file /"), "{error}");
    }
    let broken = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    for text in ["", "secret", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n", broken] {
        let error = error("tls.key", text);
        assert!(error.starts_with("--web.tls-key-file /"), "{error}");
        assert!(!error.contains("secret") && !error.contains("c2VjcmV0"), "{error}");
    }
}

#[test]
fn servers_that_call_each_other_need_a_certificate_that_does_for_it() {
    let authority = Authority::new();
    let others = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("clients.crt"), authority.pem()).unwrap();
    let opened = |signed: Signed| {
        signed.files().iter().for_each(|(file, text)| {
            std::fs::write(path.join(file), text).unwrap();
        });
        let peer_name = Some(DnsName::try_from("extender").unwrap());
        let identity = Identity { peer_name, ..identity(path) };
        let peers = Peers::of(&identity).unwrap();
        let server = Follower::open(identity);
        let client = Follower::open(peers);
        let server = server.map(drop);
        let client = client.map(drop);
        assert_eq!(server, client);
        server.map_err(|error| error.to_string())
    };
    for (signed, fault) in [
        (authority.sign("elsewhere"), "DNS name extender"),
        (authority.sign_for_servers("extender"), "clientAuth"),
        (others.sign("extender"), "a CA among those for clients"),
    ] {
        let error = opened(signed).unwrap_err();
        assert!(error.starts_with("--web.tls-cert-file /") && error.contains(fault), "{error}");
    }
    assert_eq!(opened(authority.sign("extender")), Ok(()));
}

/// A server that answers only clients with a certificate of this CA.
async fn start_for(clients: &Authority, authority: &Authority) -> Server {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("clients.crt"), clients.pem()).unwrap();
    start_in(folder, authority, Limits::default()).await
}

#[tokio::test]
async fn a_client_without_a_certificate_of_the_right_authority_gets_no_answer() {
    let authority = Authority::new();
    let clients = Authority::new();
    let others = Authority::new();
    let server = start_for(&clients, &authority).await;
    let right = authority.client_with(&clients.sign("kube-scheduler"));
    assert!(ask(&server, &right, "exporter").await.unwrap().ends_with("hello"));
    let wrong = authority.client_with(&others.sign("kube-scheduler"));
    let own = authority.client_with(&authority.sign("kube-scheduler"));
    for (count, client) in (1..).zip([&authority.client(), &wrong, &own]) {
        let answer = ask(&server, client, "exporter").await;
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.is_empty()), "{count}");
        until_failures(&server, count).await;
    }
    server.shutdown.cancel();
}

#[tokio::test]
async fn a_changed_authority_of_clients_takes_effect_for_the_next_connection() {
    let authority = Authority::new();
    let before = Authority::new();
    let after = Authority::new();
    let mut server = start_for(&before, &authority).await;
    let client = authority.client_with(&after.sign("kube-scheduler"));
    assert!(!ask(&server, &client, "exporter").await.is_ok_and(|answer| answer.contains("hello")));
    let file = server.folder.path().join("clients.crt");
    std::fs::write(&file, "nothing").unwrap();
    let error = server.follower.reload().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("--client-ca-file") && error.contains("no certificate"), "{error}");
    std::fs::write(&file, [before.pem(), after.pem()].concat()).unwrap();
    assert!(server.follower.reload().is_some_and(|change| change.is_ok()));
    assert!(ask(&server, &client, "exporter").await.unwrap().ends_with("hello"));
    server.shutdown.cancel();
}

#[tokio::test]
async fn a_client_needs_a_certificate_with_an_admitted_name() {
    let authority = Authority::new();
    let clients = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("clients.crt"), clients.pem()).unwrap();
    std::fs::write(
        folder.path().join("client-names"),
        "system:kube-scheduler extender a.extenders.svc",
    )
    .unwrap();
    let server = start_in(folder, &authority, Limits::default()).await;
    for right in [
        clients.sign_as("system:kube-scheduler", "elsewhere"),
        clients.sign("extender"),
        clients.sign("a.extenders.svc"),
        clients.sign_as("extender", "elsewhere"),
    ] {
        let client = authority.client_with(&right);
        assert!(ask(&server, &client, "exporter").await.unwrap().ends_with("hello"));
    }
    let wrong = [
        clients.sign("kube-scheduler"),
        clients.sign_as("system:kube-scheduler2", "extender.example"),
        clients.sign_as("elsewhere", "*.extenders.svc"),
        // The right name, and another CA's.
        authority.sign_as("system:kube-scheduler", "extender"),
    ];
    for (count, wrong) in (1..).zip(&wrong) {
        let answer = ask(&server, &authority.client_with(wrong), "exporter").await;
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.is_empty()), "{count}");
        until_failures(&server, count).await;
    }
    server.shutdown.cancel();
}

#[test]
fn the_ends_of_the_certificates_in_force_are_told() {
    let authority = Authority::new();
    let clients = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (file, text) in authority.sign_until("exporter", 2031).files() {
        std::fs::write(path.join(file), text).unwrap();
    }
    let ends = || {
        let (_, current) = Follower::open(identity(path)).unwrap();
        let current = current.borrow();
        (current.certificate_end, current.clients_end)
    };
    let end = Some("2031-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(ends(), (end, None));
    std::fs::write(path.join("clients.crt"), clients.pem()).unwrap();
    assert_eq!(ends(), (end, Some("4096-01-01T00:00:00Z".parse().unwrap())));
}

#[test]
fn servers_that_call_each_other_need_an_admitted_name_themselves() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("clients.crt"), authority.pem()).unwrap();
    for (file, text) in authority.sign("extender").files() {
        std::fs::write(path.join(file), text).unwrap();
    }
    let open = |names: &[&str]| {
        let peer_name = Some(DnsName::try_from("extender").unwrap());
        let client_names = names.iter().map(|name| (*name).to_owned()).collect();
        let identity = Identity { peer_name, client_names, ..identity(path) };
        Follower::open(identity).map(drop).map_err(|error| error.to_string())
    };
    let error = open(&["kube-scheduler"]).unwrap_err();
    assert!(error.contains("names of clients that are admitted (kube-scheduler)"), "{error}");
    assert_eq!(open(&["kube-scheduler", "extender"]), Ok(()));
    assert_eq!(open(&[]), Ok(()));
}
