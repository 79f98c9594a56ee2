//! The bounds of the HTTP server, tried by clients that misbehave.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use daemon::Shutdown;
use daemon::http::{Handler, Limits, bind, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// More than the kernel holds for a client that does not read.
const LARGE: usize = 32 << 20;

const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const ASK_AND_CLOSE: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

struct Server {
    address: SocketAddr,
    /// Keeps the port for this test: it is bound and never listens, so that nothing else gets the port once the server
    /// has ended.
    _kept: TcpSocket,
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
    /// Notified when a request has reached `/hang`.
    entered: Arc<Notify>,
    /// Lets one request to `/hang` end.
    release: Arc<Notify>,
}

async fn start(limits: Limits) -> Server {
    let kept = TcpSocket::new_v4().unwrap();
    kept.set_reuseaddr(true).unwrap();
    kept.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = kept.local_addr().unwrap();
    let listener = bind(address, "--listen-address").await.unwrap();
    let entered = Arc::new(Notify::new());
    let release = Arc::new(Notify::new());
    let notify = entered.clone();
    let released = release.clone();
    let hang = async move || {
        notify.notify_one();
        released.notified().await;
        "released"
    };
    let router = Router::new()
        .route("/", get(async || "hello"))
        .route("/hang", get(hang))
        .route("/refused", get(async || daemon::token::refusal()))
        .route("/large", get(async || "x".repeat(LARGE)))
        .route("/echo", post(async |body: String| body));
    let shutdown = Shutdown::new();
    let task = tokio::spawn(serve(listener, router, limits, shutdown.clone()));
    // Lets the server bound the kernel's buffers: connections inherit that when they are made.
    tokio::task::yield_now().await;
    Server { address, _kept: kept, shutdown, task, entered, release }
}

async fn connect(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Everything that the server sends until it closes the connection.
async fn all(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end too.
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
async fn the_refusal_of_a_token_closes_its_connection_and_no_other_answer_does() {
    let server = start(Limits::admin()).await;
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let all_of = async |asks: String| {
        let answers = all(connect(&server, &asks).await);
        tokio::time::timeout(HANG, answers).await.unwrap()
    };
    let both = all_of(ask("/none") + &ask("/refused") + &ask("/")).await;
    let statuses: Vec<_> = both.lines().filter(|line| line.starts_with("HTTP/1.1")).collect();
    assert_eq!(statuses, ["HTTP/1.1 404 Not Found", "HTTP/1.1 401 Unauthorized"], "{both}");
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

/// `count` slots, and times so long that no other limit comes into play.
fn slots(count: usize) -> Limits {
    let long = Duration::from_secs(3_600);
    let times = Limits { head: long, request: long, unread: long, ..Limits::admin() };
    Limits { connections: count, patience: long, ..times }
}

/// A client that has had an answer and keeps its connection.
async fn keep_alive(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    assert!(again(&mut stream).await);
    stream
}

/// Whether another request over the same connection is answered.
async fn again(stream: &mut TcpStream) -> bool {
    let mut text = Vec::new();
    let asked = stream.write_all(ASK.as_bytes()).await.is_ok();
    while asked && !text.ends_with(b"hello") {
        if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    asked
}

/// Long enough for any machine: a client that waits so long is kept out.
const HANG: Duration = Duration::from_secs(300);

async fn is_answered(server: &Server) -> bool {
    let answer = async { all(connect(server, ASK_AND_CLOSE).await).await };
    tokio::time::timeout(HANG, answer).await.is_ok_and(|answer| answer.ends_with("hello"))
}

#[tokio::test]
async fn clients_that_send_nothing_or_half_a_head_keep_no_other_client_out() {
    let server = start(slots(32)).await;
    for text in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: a\r\n"] {
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(connect(&server, text).await);
        }
        assert!(is_answered(&server).await, "{text:?}");
        for stream in silent.into_iter().take(100 - 32) {
            assert_eq!(all(stream).await, "", "closed by the server");
        }
    }
}

#[tokio::test]
async fn the_connection_that_has_been_idle_longest_makes_room_and_no_other() {
    let server = start(slots(3)).await;
    let mut first = keep_alive(&server).await;
    let mut second = keep_alive(&server).await;
    let mut third = keep_alive(&server).await;
    assert!(again(&mut first).await);
    assert!(is_answered(&server).await);
    assert!(!again(&mut second).await, "the second was idle longest");
    assert!(again(&mut first).await && again(&mut third).await);
}

#[tokio::test]
async fn idle_connections_stay_while_no_client_waits() {
    let server = start(slots(2)).await;
    let mut first = keep_alive(&server).await;
    let mut second = keep_alive(&server).await;
    for _ in 0..3 {
        assert!(again(&mut first).await && again(&mut second).await);
    }
}

#[tokio::test]
async fn a_request_in_flight_keeps_its_slot() {
    let server = start(slots(2)).await;
    let hanging = connect(&server, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    server.entered.notified().await;
    for _ in 0..10 {
        let _idle = connect(&server, "").await;
        assert!(is_answered(&server).await);
    }
    server.release.notify_one();
    // Idle from now on, it makes room too.
    let _one = keep_alive(&server).await;
    let _other = keep_alive(&server).await;
    assert!(all(hanging).await.ends_with("released"));
}

#[tokio::test]
async fn where_all_slots_have_requests_a_client_waits_for_the_first_answer() {
    let server = start(slots(1)).await;
    let hanging = connect(&server, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    server.entered.notified().await;
    let mut second = connect(&server, ASK_AND_CLOSE).await;
    let early = tokio::time::timeout(Duration::from_millis(50), second.read_u8()).await;
    assert!(early.is_err(), "the second was answered beside the first");
    server.release.notify_one();
    assert!(all(second).await.ends_with("hello"));
    assert!(all(hanging).await.ends_with("released"));
}

#[tokio::test]
async fn an_answer_that_is_not_all_read_is_not_cut() {
    let server = start(slots(1)).await;
    let mut reading = connect(&server, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let first = reading.read_u8().await.unwrap();
    let mut second = connect(&server, ASK_AND_CLOSE).await;
    let early = tokio::time::timeout(Duration::from_millis(50), second.read_u8()).await;
    assert!(early.is_err(), "the second was answered beside the first");
    let rest = all(reading).await;
    assert!(first == b'H' && rest.ends_with('x') && rest.len() > LARGE, "{}", rest.len());
    assert!(all(second).await.ends_with("hello"));
}

#[tokio::test]
async fn a_slot_is_free_again_however_its_connection_ended() {
    let server = start(slots(2)).await;
    let held = connect(&server, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    server.entered.notified().await;
    for text in ["", "nonsense\r\n\r\n", "GET / HT", ASK, ASK_AND_CLOSE].repeat(20) {
        drop(connect(&server, text).await);
        assert!(is_answered(&server).await, "{text:?}");
    }
    drop(held);
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_share_few_slots_and_all_are_answered() {
    let server = Arc::new(start(slots(3)).await);
    let client = |server: Arc<Server>| async move {
        let mut stream = connect(&server, "").await;
        let mut answered = 0;
        while answered < 50 {
            if again(&mut stream).await {
                answered += 1;
            } else {
                stream = connect(&server, "").await;
            }
        }
    };
    let clients: Vec<_> = (0..20).map(|_| tokio::spawn(client(server.clone()))).collect();
    for client in clients {
        tokio::time::timeout(HANG, client).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn half_a_head_does_not_hold_up_the_shutdown() {
    let server = start(slots(8)).await;
    let half = connect(&server, "GET / HTTP/1.1\r\nHost: a\r\n").await;
    // Behind it, so that the server has seen the half.
    assert!(is_answered(&server).await);
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    server.shutdown.cancel();
    server.task.await.unwrap().unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(all(half).await, "");
}

const ASK_LARGE: &str = "GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Reads a little at a time until the server ends the connection, or all is read; how many bytes there were.
async fn trickle(mut stream: TcpStream) -> usize {
    let mut sum = 0;
    let mut some = [0; 4 << 10];
    while let Ok(count @ 1..) = stream.read(&mut some).await {
        sum += count;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sum
}

#[tokio::test]
async fn an_answer_has_a_limit_however_it_is_read() {
    let server = start(Limits { unread: Duration::from_millis(200), ..slots(8) }).await;
    let reading = trickle(connect(&server, ASK_LARGE).await);
    let sum = tokio::time::timeout(HANG, reading).await.unwrap();
    assert!(sum < LARGE, "{sum}");
}

#[tokio::test]
async fn an_answer_that_is_left_unread_makes_room() {
    let server = start(Limits { patience: Duration::from_millis(50), ..slots(2) }).await;
    let unread = (connect(&server, ASK_LARGE).await, connect(&server, ASK_LARGE).await);
    assert!(is_answered(&server).await);
    assert!(is_answered(&server).await);
    // One went; the other may still read.
    let lengths = (all(unread.0).await.len(), all(unread.1).await.len());
    assert!(lengths.0 < LARGE && lengths.1 > LARGE, "{lengths:?}");
}

#[tokio::test]
async fn requests_sent_ahead_of_their_answers_keep_no_slot() {
    let server = start(slots(1)).await;
    let ahead = "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2);
    let ahead = connect(&server, &ahead).await;
    server.entered.notified().await;
    let second = connect(&server, ASK_AND_CLOSE).await;
    let (second, ()) = tokio::join!(tokio::time::timeout(HANG, all(second)), async {
        // The second has connected, and found no slot.
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.release.notify_one();
    });
    assert!(second.unwrap().ends_with("hello"));
    let answers = all(ahead).await;
    assert_eq!(answers.matches("released").count(), 1, "{answers}");
}

/// Bytes that the kernel buffers for clients of that server, from /proc/net/tcp.
fn unread_bytes(server: SocketAddr) -> usize {
    let port = format!(":{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let queues = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (sent, _) = fields[4].split_once(':')?;
        fields[1].ends_with(&port).then(|| usize::from_str_radix(sent, 16).unwrap())
    });
    queues.sum()
}

#[tokio::test]
async fn an_answer_is_made_when_it_can_be_written_and_the_kernel_buffers_little_of_it() {
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    let listener = bind("127.0.0.1:0".parse().unwrap(), "--listen-address").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Handler::FromHead(Arc::new(move |_: &_| {
        count.fetch_add(1, SeqCst);
        "x".repeat(LARGE).into_response()
    }));
    tokio::spawn(serve(listener, handler, slots(8), Shutdown::new()));
    tokio::task::yield_now().await;
    let mut clients = Vec::new();
    for client in 1..=3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ASK.repeat(10).as_bytes()).await.unwrap();
        // Behind all that the server could do for the one before.
        stream.read_u8().await.unwrap();
        assert_eq!(made.load(SeqCst), client);
        clients.push(stream);
    }
    let held = unread_bytes(address);
    // The kernel doubles the size that it is given, and fills its last buffer of up to 64 KiB whatever is left of that.
    let most = 2 * Limits::admin().unread_bytes + (64 << 10);
    assert!((1..=clients.len() * most).contains(&held), "{held}");
}

#[tokio::test]
async fn a_connection_that_was_cut_off_leaves_nothing_in_the_kernel() {
    let server = start(Limits { unread: Duration::from_millis(50), ..slots(1) }).await;
    let unread = connect(&server, ASK_LARGE).await;
    assert!(is_answered(&server).await);
    assert_eq!(unread_bytes(server.address), 0);
    drop(unread);
}
