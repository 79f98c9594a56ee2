//! An exporter stand-in over real HTTP, with or without TLS, whose answer a test sets.
//!
//! Its clock is hours behind the annotator's, which must not matter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// What the stand-in does with a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// 200 with this body on `/statistics`, and with the same values of full windows on `/v1/statistics`.
    Body(String),
    /// 200 with this body on `/v1/statistics`, 404 elsewhere.
    Detailed(String),
    /// 200 with this body on `/statistics`, 404 elsewhere.
    Flat(String),
    /// 200 with this body on `/statistics`, an HTML page elsewhere.
    FlatWithHome(String),
    /// These bytes; the connection is closed then.
    Raw(String),
    /// These bytes; the connection stays open.
    RawAgain(String),
    /// No answer until another one is set.
    Hang,
}

/// What the stand-in says about pods.
#[derive(Clone)]
pub(crate) enum PodsAnswer {
    /// 404, as an exporter that does not know the path.
    NotKnown,
    /// 200 with this body.
    Body(String),
    /// No answer at all.
    Hang,
}

/// A running stand-in.
pub(crate) struct Exporter {
    pub(crate) port: u16,
    state: Arc<State>,
    server: JoinHandle<()>,
}

/// What the connections of a stand-in share.
struct State {
    answer: watch::Sender<Answer>,
    heads: Mutex<Vec<String>>,
    /// Requests in flight.
    in_flight: AtomicUsize,
    /// The largest number of requests in flight.
    most: AtomicUsize,
    connections: AtomicUsize,
    pods_answer: Mutex<PodsAnswer>,
    /// Requests for pods.
    asked_about_pods: AtomicUsize,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Exporter {
    pub(crate) async fn start(body: &str) -> Self {
        Self::start_at("127.0.0.1:0", body, None).await
    }

    /// Listens at `at`, with TLS where there is an acceptor.
    pub(crate) async fn start_at(at: &str, body: &str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            answer: watch::Sender::new(Answer::Body(body.to_owned())),
            heads: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            pods_answer: Mutex::new(PodsAnswer::NotKnown),
            asked_about_pods: AtomicUsize::new(0),
        });
        let server = tokio::spawn(serve(listener, tls, Arc::clone(&state)));
        Self { port, state, server }
    }

    /// Ends it and its connections, so that another one can listen at its address.
    pub(crate) async fn stop(mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    pub(crate) fn say_of_pods(&self, answer: PodsAnswer) {
        *self.state.pods_answer.lock().unwrap() = answer;
    }

    /// The number of questions about pods so far. The other counts leave them out.
    pub(crate) fn asked_about_pods(&self) -> usize {
        self.state.asked_about_pods.load(Ordering::SeqCst)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn say(&self, body: &str) {
        self.set(Answer::Body(body.to_owned()));
    }

    pub(crate) fn set(&self, answer: Answer) {
        self.state.answer.send_replace(answer);
    }

    /// The number of requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.state.heads.lock().unwrap().len()
    }

    /// The request lines and headers so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }

    /// The number of connections so far; over TLS, of handshakes that came to their end.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// The largest number of requests in flight since the last call.
    pub(crate) fn take_most_at_once(&self) -> usize {
        self.state.most.swap(0, Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    // Ends its connections when it is dropped, as a process that ends does.
    let mut conversations = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let tls = tls.clone();
        let state = Arc::clone(&state);
        conversations.spawn(async move {
            let Some(tls) = tls else { return converse(stream, &state).await };
            if let Ok(stream) = tls.accept(stream).await {
                converse(stream, &state).await;
            }
        });
    }
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: &State) {
    state.connections.fetch_add(1, Ordering::SeqCst);
    let mut answer = state.answer.subscribe();
    while let Some(head) = head(&mut stream).await {
        if head.starts_with("GET /v1/pods ") {
            let Some(text) = state.answer_about_pods() else { return std::future::pending().await };
            if stream.write_all(text.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let detailed = head.starts_with("GET /v1/statistics ");
        state.heads.lock().unwrap().push(head);
        let in_flight = state.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        state.most.fetch_max(in_flight, Ordering::SeqCst);
        // A client that closes the connection ends the wait.
        let mut byte = [0];
        let said = tokio::select! {
            said = answer.wait_for(|answer| !matches!(answer, Answer::Hang)) => {
                said.ok().map(|said| said.clone())
            }
            _ = stream.read(&mut byte) => None,
        };
        state.in_flight.fetch_sub(1, Ordering::SeqCst);
        let text = match said {
            Some(Answer::Raw(text)) => {
                let _ = stream.write_all(text.as_bytes()).await;
                return;
            }
            Some(Answer::RawAgain(text)) => text,
            Some(Answer::Body(body)) if detailed => ok(&in_detail(&body)),
            Some(Answer::Body(body)) => ok(&body),
            Some(Answer::Detailed(body)) if detailed => ok(&body),
            Some(Answer::Flat(body) | Answer::FlatWithHome(body)) if !detailed => ok(&body),
            Some(Answer::FlatWithHome(_)) => {
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
                    .to_owned()
            }
            Some(Answer::Detailed(_) | Answer::Flat(_)) => NOT_FOUND.to_owned(),
            Some(Answer::Hang) | None => return,
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

impl State {
    /// `None` where there is none.
    fn answer_about_pods(&self) -> Option<String> {
        self.asked_about_pods.fetch_add(1, Ordering::SeqCst);
        match &*self.pods_answer.lock().unwrap() {
            PodsAnswer::NotKnown => Some(NOT_FOUND.to_owned()),
            PodsAnswer::Body(body) => Some(ok(body)),
            PodsAnswer::Hang => None,
        }
    }
}

const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

fn ok(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nDate: {DATE}\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// The `Date` of every answer.
const DATE: &str = "Thu, 19 Nov 2026 22:00:00 GMT";

/// The values of a `/statistics` body as a `/v1/statistics` body; a body that is no object is left as it is.
fn in_detail(body: &str) -> String {
    let Ok(Value::Object(flat)) = serde_json::from_str(body) else { return body.to_owned() };
    let values = flat.into_iter().map(|(metric, value)| (metric, detail(&value, 1.0)));
    detailed(&values.collect())
}

/// A value of a five-minute window with this coverage, whose newest sample is 7 seconds old.
pub(crate) fn detail(value: &Value, coverage: f64) -> Value {
    let timestamp = "2026-11-19T21:59:53.017Z";
    json!({"value": value, "timestamp": timestamp, "coverage": coverage, "windowSeconds": 300})
}

/// A `/v1/statistics` body with these values.
pub(crate) fn detailed(values: &Map<String, Value>) -> String {
    json!({"bootId": "a-boot", "sampleIntervalSeconds": 10, "values": values}).to_string()
}

async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}
