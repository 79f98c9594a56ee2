//! One HTTP/1.1 connection to an exporter, and the requests over it. No redirect is followed.
//!
//! Invariants: a connection is driven by the request that uses it, so an idle one needs neither a task nor a buffer;
//! bodies are bounded; a connection is not reused after an answer that was not read to its end.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use bytes::Bytes;
use daemon::Causes;
use futures::FutureExt;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{MAX_BODY, PollError};
use super::tls::tls_cause;

/// Bytes read at a time, and the largest head of an answer.
const READ_SIZE: usize = 8 << 10;

/// The headers of all requests to one exporter.
#[derive(Debug, Clone)]
pub(super) struct Recipient {
    /// The value of the Host header.
    pub(super) host: HeaderValue,
    /// The value of the Authorization header, if there is a token.
    pub(super) authorization: Option<HeaderValue>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Empty if it could not be read and is not needed: with another status than 200, or an HTML page.
    pub(super) body: Vec<u8>,
}

impl HttpAnswer {
    /// Whether it is an HTML page, which some exporters send for unknown paths.
    pub(super) fn is_page(&self) -> bool {
        let content_type = self.headers.get(CONTENT_TYPE);
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/html"))
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum GetError {
    /// The connection ended before any byte of an answer. The exporter may have closed a kept connection at any time,
    /// so the request can be sent over another one.
    Unanswered(PollError),
    /// Any other error.
    Answered(PollError),
}

impl From<GetError> for PollError {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Unanswered(error) | GetError::Answered(error) => error,
        }
    }
}

/// The byte stream of a connection: a socket, or TLS over one.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Exchange = http1::Connection<TokioIo<Box<dyn Stream>>, Empty<Bytes>>;

/// An open connection without a request in flight. It holds only the stream: buffers exist during a request.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
}

impl Connection {
    /// A connection over a stream that is connected, and encrypted if required.
    pub(super) fn new(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream) }
    }

    /// Whether the exporter has neither closed the connection nor sent unexpected bytes.
    pub(super) fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let mut read = ReadBuf::new(&mut byte);
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut context, &mut read).is_pending()
    }

    /// Requests `path`. Returns the answer, and the connection if it can be reused.
    pub(super) async fn get(
        self,
        path: &'static str,
        recipient: &Recipient,
    ) -> Result<(HttpAnswer, Option<Self>), GetError> {
        let mut builder = http1::Builder::new();
        builder.read_buf_exact_size(Some(READ_SIZE));
        let opened = builder
            .handshake(TokioIo::new(self.stream))
            .await
            .map_err(|error| unanswered(&error))?;
        let (mut sender, exchange) = opened;
        let mut exchange = Some(exchange);
        let sending = sender.send_request(request(path, recipient));
        let response = drive(&mut exchange, sending).await.map_err(|error| unanswered(&error))?;
        let (head, mut body) = response.into_parts();
        let answer = HttpAnswer { status: head.status, headers: head.headers, body: Vec::new() };
        match drive(&mut exchange, collect(&mut body)).await {
            Ok(body) => {
                let again = exchange.and_then(|exchange| take_idle(exchange, &sender));
                Ok((HttpAnswer { body, ..answer }, again))
            }
            Err(_) if answer.status != StatusCode::OK || answer.is_page() => Ok((answer, None)),
            Err(error) => Err(GetError::Answered(error)),
        }
    }
}

/// The connection after an exchange; `None` if the exporter ends it, or has sent more than the answer.
fn take_idle(
    mut exchange: Exchange,
    sender: &http1::SendRequest<Empty<Bytes>>,
) -> Option<Connection> {
    let is_ready = (&mut exchange).now_or_never().is_none() && sender.is_ready();
    let parts = exchange.into_parts();
    let is_idle = is_ready && parts.read_buf.is_empty();
    is_idle.then(|| Connection { stream: parts.io.into_inner() })
}

/// Drives the connection until `work` completes. Sets `exchange` to `None` if the connection has ended.
async fn drive<T>(exchange: &mut Option<Exchange>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Some(running) = exchange {
        tokio::select! {
            biased;
            done = work.as_mut() => return done,
            _ = running => {}
        }
        // The request gets the same error.
        *exchange = None;
    }
    work.await
}

async fn collect(body: &mut Incoming) -> Result<Vec<u8>, PollError> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| answer_error(&error))?.into_data() else { continue };
        if all.len() + data.len() > MAX_BODY {
            return Err(PollError::TooLong);
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

fn request(path: &'static str, recipient: &Recipient) -> Request<Empty<Bytes>> {
    const AGENT: HeaderValue =
        HeaderValue::from_static(concat!("plimsoll-annotator/", env!("CARGO_PKG_VERSION")));
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(HOST, recipient.host.clone());
    headers.insert(USER_AGENT, AGENT);
    if let Some(value) = &recipient.authorization {
        headers.insert(AUTHORIZATION, value.clone());
    }
    request
}

fn unanswered(error: &hyper::Error) -> GetError {
    GetError::Unanswered(answer_error(error))
}

fn answer_error(error: &hyper::Error) -> PollError {
    match tls_cause(error) {
        Some(cause) => PollError::Tls(cause),
        None => PollError::Broken(Causes(error).innermost()),
    }
}
