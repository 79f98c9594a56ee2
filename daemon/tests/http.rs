//! The bounds of the HTTP server, tried by clients that misbehave.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use daemon::Shutdown;
use daemon::http::{Limits, bind, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

struct Server {
    address: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
    /// Told when a request has reached `/hang`.
    entered: Arc<Notify>,
}

async fn start(limits: Limits) -> Server {
    let listener = bind("127.0.0.1:0".parse().unwrap(), "--listen-address").await.unwrap();
    let address = listener.local_addr().unwrap();
    let entered = Arc::new(Notify::new());
    let notify = entered.clone();
    let hang = async move || {
        notify.notify_one();
        pending::<()>().await;
    };
    let router = Router::new()
        .route("/", get(async || "hello"))
        .route("/hang", get(hang))
        .route("/echo", post(async |body: String| body));
    let shutdown = Shutdown::new();
    let task = tokio::spawn(serve(listener, router, limits, shutdown.clone()));
    Server { address, shutdown, task, entered }
}

async fn connect(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Everything the server says until it closes the connection.
async fn all(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_request_head_that_never_ends_is_cut_off() {
    let limits = Limits { head: Duration::from_millis(50), ..Limits::admin() };
    let server = start(limits).await;
    let answer = all(connect(&server, "GET / HTTP/1.1\r\nX-Slow: ").await).await;
    assert!(!answer.contains("200 OK"), "{answer}");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_answered_503() {
    let limits = Limits { request: Duration::from_millis(50), ..Limits::admin() };
    let server = start(limits).await;
    let request = "GET /hang HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = all(connect(&server, request).await).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

#[tokio::test]
async fn a_body_that_never_comes_is_answered_503() {
    let limits = Limits { request: Duration::from_millis(50), ..Limits::admin() };
    let server = start(limits).await;
    let request =
        "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 10\r\n\r\nabc";
    let answer = all(connect(&server, request).await).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let server = start(Limits { body: 4, ..Limits::admin() }).await;
    let request =
        "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde";
    let answer = all(connect(&server, request).await).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_until_another_ends() {
    let server = start(Limits { connections: 1, ..Limits::admin() }).await;
    let first = connect(&server, "GET / HTTP/1.1\r\nHost: a\r\n").await;
    let mut second =
        connect(&server, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let early = tokio::time::timeout(Duration::from_millis(50), second.read_u8()).await;
    assert!(early.is_err(), "the second was answered beside the first");
    drop(first);
    assert!(all(second).await.contains("hello"));
}

#[tokio::test]
async fn the_shutdown_ends_idle_connections_and_the_server() {
    let server = start(Limits::default()).await;
    let mut idle = connect(&server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    idle.read_u8().await.unwrap();
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
    assert!(all(idle).await.ends_with("hello"));
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_request_that_outlives_the_drain_is_cut_off() {
    let limits = Limits { request: Duration::from_secs(3_600), ..Limits::default() };
    let server = start(limits).await;
    let hanging = connect(&server, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    server.entered.notified().await;
    // From here on only timers move: the drain's is the next.
    tokio::time::pause();
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
    assert_eq!(all(hanging).await, "");
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_flag() {
    let server = start(Limits::admin()).await;
    let error = bind(server.address, "--listen-address").await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("--listen-address {}: cannot listen", server.address)),
        "{error}"
    );
}
