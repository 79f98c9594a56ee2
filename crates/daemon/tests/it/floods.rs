//! TLS handshakes of clients without a certificate, beside clients that have one.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use daemon::OwnThread;
use daemon::http::{Limits, Rate};
use rustls::pki_types::ServerName;
use support::authority::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::{Server, start_on, until_failures};

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Times so long that no limit but those of a test comes into play.
fn limits() -> Limits {
    let long = Duration::from_secs(3_600);
    let rate = Rate { burst: 1000, every: long };
    Limits { handshake: long, head: long, handshake_rate: rate, ..Limits::admin() }
}

/// A server that asks its clients for a certificate, and a client that has one.
async fn start(thread: Option<OwnThread>, limits: Limits) -> (Server, TlsConnector) {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("clients.crt"), authority.pem()).unwrap();
    let client = authority.client_with(&authority.sign("client"));
    (start_on(thread, folder, &authority, limits).await, client)
}

async fn connect(server: &Server, client: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await?;
    client.connect(ServerName::try_from("exporter").unwrap(), stream).await
}

/// Whether a request over that connection is answered.
async fn is_answered(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut text = Vec::new();
    let asked = stream.write_all(ASK).await.is_ok();
    while asked && !text.ends_with(b"hello") {
        if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    asked
}

/// Long enough for any machine.
const HANG: Duration = Duration::from_secs(120);

async fn is_closed(stream: &mut TcpStream) -> bool {
    let end = tokio::time::timeout(HANG, stream.read(&mut [0])).await;
    // A reset is an end too.
    end.is_ok_and(|read| read.unwrap_or(0) == 0)
}

#[tokio::test]
async fn handshakes_are_done_while_the_thread_that_answers_is_busy() {
    let thread = OwnThread::start("answers").unwrap();
    let (server, client) = start(Some(thread.clone()), limits()).await;
    let (release, blocked) = mpsc::channel::<()>();
    let (begun, busy) = tokio::sync::oneshot::channel();
    let blocking = thread.spawn(async move {
        begun.send(()).unwrap();
        blocked.recv().is_err()
    });
    busy.await.unwrap();
    // With TLS 1.3 a client is done before the server has seen its certificate. So the failure of one without tells
    // that the server has done its part.
    let stranger = Authority::new().client();
    assert!(connect(&server, &stranger).await.is_err());
    until_failures(&server, 1).await;
    let mut stream = connect(&server, &client).await.unwrap();
    drop(release);
    assert!(blocking.await.unwrap());
    assert!(is_answered(&mut stream).await && is_answered(&mut stream).await);
}

#[tokio::test]
async fn answers_are_made_on_the_thread() {
    let thread = OwnThread::start("answers").unwrap();
    let (server, client) = start(Some(thread.clone()), limits()).await;
    let mut stream = connect(&server, &client).await.unwrap();
    assert!(is_answered(&mut stream).await);
    let (release, blocked) = mpsc::channel::<()>();
    let (begun, busy) = tokio::sync::oneshot::channel();
    thread.spawn(async move {
        begun.send(()).unwrap();
        blocked.recv().is_err()
    });
    busy.await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), is_answered(&mut stream)).await;
    assert!(early.is_err(), "answered by another thread");
    drop(release);
}

#[tokio::test]
async fn a_connection_whose_client_showed_a_certificate_makes_room_last() {
    let limits = Limits { connections: 3, ..limits() };
    let (server, client) = start(None, limits).await;
    let mut first = connect(&server, &client).await.unwrap();
    let mut second = connect(&server, &client).await.unwrap();
    assert!(is_answered(&mut first).await && is_answered(&mut second).await);
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..10 {
        let next = TcpStream::connect(server.address).await.unwrap();
        assert!(is_closed(&mut silent).await);
        silent = next;
    }
    assert!(is_answered(&mut first).await && is_answered(&mut second).await);
    // Where all have shown one, the longest idle one makes room.
    let mut third = connect(&server, &client).await.unwrap();
    assert!(is_answered(&mut third).await && is_closed(&mut silent).await);
    let mut fourth = connect(&server, &client).await.unwrap();
    assert!(is_answered(&mut fourth).await && !is_answered(&mut first).await);
    assert!(is_answered(&mut second).await && is_answered(&mut third).await);
}

#[tokio::test]
async fn of_the_handshakes_at_once_the_longest_makes_room() {
    let limits = Limits { handshakes: 2, ..limits() };
    let (server, client) = start(None, limits).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let mut second = TcpStream::connect(server.address).await.unwrap();
    let mut third = TcpStream::connect(server.address).await.unwrap();
    assert!(is_closed(&mut first).await);
    let mut known = connect(&server, &client).await.unwrap();
    assert!(is_answered(&mut known).await && is_closed(&mut second).await);
    // A handshake that is done takes no place of another.
    let mut other = connect(&server, &client).await.unwrap();
    assert!(is_answered(&mut other).await && is_answered(&mut known).await);
    let early = tokio::time::timeout(Duration::from_millis(20), is_closed(&mut third)).await;
    assert!(early.is_err(), "closed beside a free place");
}

/// A connection from another address of this machine.
async fn connect_from(address: &str, server: &Server) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(address.parse().unwrap(), 0))?;
    socket.connect(server.address).await
}

#[tokio::test]
async fn an_address_with_too_many_handshakes_is_reset_and_no_other() {
    let rate = Rate { burst: 3, every: Duration::from_secs(3_600) };
    let limits = Limits { handshake_rate: rate, ..limits() };
    let (server, client) = start(None, limits).await;
    let mut flood = Vec::new();
    for _ in 0..3 {
        flood.push(connect_from("127.0.0.2", &server).await.unwrap());
    }
    // The reset may come before the client has seen that it is connected.
    if let Ok(mut fourth) = connect_from("127.0.0.2", &server).await {
        assert!(is_closed(&mut fourth).await);
    }
    assert_eq!(server.failures.get(), 1);
    let early = tokio::time::timeout(Duration::from_millis(20), is_closed(&mut flood[0])).await;
    assert!(early.is_err(), "one of the burst is closed");
    // What ends with a certificate does not count.
    for _ in 0..10 {
        let mut stream = connect(&server, &client).await.unwrap();
        assert!(is_answered(&mut stream).await);
    }
}
