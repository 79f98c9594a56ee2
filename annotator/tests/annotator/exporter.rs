//! An exporter stand-in over real HTTP, whose answer a test sets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What it does with a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// 200 with this body.
    Body(String),
    /// These bytes, and the connection closes.
    Raw(String),
    /// Nothing, until the answer is another.
    Hang,
}

/// One that listens on a port of its own.
pub(crate) struct Exporter {
    pub(crate) port: u16,
    answer: watch::Sender<Answer>,
    heads: Arc<Mutex<Vec<String>>>,
    most: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Exporter {
    pub(crate) async fn start(body: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = watch::Sender::new(Answer::Body(body.to_owned()));
        let (heads, most) = (Arc::default(), Arc::default());
        let server = serve(listener, answer.subscribe(), Arc::clone(&heads), Arc::clone(&most));
        Self { port, answer, heads, most, server: tokio::spawn(server) }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn say(&self, body: &str) {
        self.set(Answer::Body(body.to_owned()));
    }

    pub(crate) fn set(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    /// The heads of the requests.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// How many requests were there at once, at most.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

async fn serve(
    listener: TcpListener,
    answer: watch::Receiver<Answer>,
    heads: Arc<Mutex<Vec<String>>>,
    most: Arc<AtomicUsize>,
) {
    let now = Arc::new(AtomicUsize::new(0));
    while let Ok((stream, _)) = listener.accept().await {
        let (answer, heads, most, now) =
            (answer.clone(), Arc::clone(&heads), Arc::clone(&most), Arc::clone(&now));
        tokio::spawn(async move {
            converse(stream, answer, heads, &now, &most).await;
        });
    }
}

async fn converse(
    mut stream: TcpStream,
    mut answer: watch::Receiver<Answer>,
    heads: Arc<Mutex<Vec<String>>>,
    now: &AtomicUsize,
    most: &AtomicUsize,
) {
    while let Some(head) = head(&mut stream).await {
        heads.lock().unwrap().push(head);
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // A client that gives up ends the wait.
        let mut byte = [0];
        let said = tokio::select! {
            said = answer.wait_for(|answer| !matches!(answer, Answer::Hang)) => {
                said.ok().map(|said| said.clone())
            }
            _ = stream.read(&mut byte) => None,
        };
        now.fetch_sub(1, Ordering::SeqCst);
        match said {
            Some(Answer::Body(body)) => {
                let length = body.len();
                let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            Some(Answer::Raw(text)) => {
                let _ = stream.write_all(text.as_bytes()).await;
                return;
            }
            _ => return,
        }
    }
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}
