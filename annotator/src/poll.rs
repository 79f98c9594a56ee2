//! Asks a node's exporter for its statistics.
//!
//! Invariant: what an answer holds is judged in [`crate::statistics`] alone. An exporter that has
//! no `/v1/statistics` is asked for the older form; whether it has one is its word, not a guess
//! from an answer that came out wrong.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use tokio::sync::watch;

use crate::endpoint::{Endpoint, NoEndpoint};
use crate::statistics::{Form, Statistics};
use crate::tls::{Trust, is_tls};

/// Largest answer that is read. One value takes 150 bytes in the detailed form, and a node has
/// some tens to some hundreds.
const MAX_BODY: usize = 256 * 1024;

/// Connections are kept for exporters that are asked again soon. With the usual period of 3 minutes
/// none is: thousands of idle connections would save one handshake a poll.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

const WE: HeaderValue =
    HeaderValue::from_static(concat!("plimsoll-annotator/", env!("CARGO_PKG_VERSION")));

/// Why an exporter gave no statistics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    /// It is not known where to ask.
    #[error(transparent)]
    NoEndpoint(#[from] NoEndpoint),
    /// Nobody accepts connections there.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The server did not prove that it is an exporter of ours, or speaks no TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke, or what came is not HTTP.
    #[error("broken answer: {0}")]
    Broken(String),
    /// It wants a token, or another one.
    #[error("status {0}: it does not take our token; see --exporter-token-file")]
    Refused(u16),
    /// Not 200.
    #[error("status {0} where 200 was expected")]
    Status(u16),
    /// The body is absurdly long.
    #[error("more than {MAX_BODY} bytes")]
    TooLong,
    /// Not the JSON that was asked for.
    #[error("{path} is not as documented: {problem}")]
    Body {
        /// What was asked for.
        path: &'static str,
        /// Where and what.
        problem: String,
    },
}

impl PollError {
    /// A word for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoEndpoint(_) => "no_address",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Broken(_) => "broken",
            Self::Refused(_) => "refused",
            Self::Status(_) => "status",
            Self::TooLong => "too_long",
            Self::Body { .. } => "body",
        }
    }
}

/// Asks exporters.
#[derive(Debug, Clone)]
pub struct Poller {
    /// Replaced as a whole when whom we trust changes: connections of before are not used again.
    channel: watch::Receiver<Arc<Channel>>,
    timeout: Duration,
}

/// How exporters are reached: by HTTP/1.1, without a proxy, and no redirect is followed.
#[derive(Debug)]
pub struct Channel {
    client: legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    scheme: &'static str,
    token: Option<HeaderValue>,
}

impl Channel {
    /// Without TLS.
    ///
    /// # Errors
    /// When the TLS library refuses even to be left alone.
    pub fn plain() -> Result<Self, rustls::Error> {
        Trust::nobody().map(|nobody| Self::new(nobody, "http"))
    }

    /// Over TLS, to whom we trust.
    #[must_use]
    pub fn secure(trust: Trust) -> Self {
        Self::new(trust, "https")
    }

    fn new(trust: Trust, scheme: &'static str) -> Self {
        let Trust { tls, name, token } = trust;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let name = Arc::new(FixedServerNameResolver::new(name));
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEEP_ALIVE)
            .build(HttpsConnector::new(tcp, tls, scheme == "https", name));
        Self { client, scheme, token }
    }

    async fn get(&self, endpoint: &Endpoint, form: Form) -> Result<Response<Incoming>, PollError> {
        let uri = format!("{}://{}{}", self.scheme, endpoint.address(), form.path());
        let mut request = Request::get(uri).header(USER_AGENT, WE);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::new()).map_err(|e| PollError::Broken(e.to_string()))?;
        self.client.request(request).await.map_err(|error| failure(&error))
    }

    async fn ask(&self, endpoint: &Endpoint, form: Form) -> Result<(Form, Statistics), PollError> {
        let answer = self.get(endpoint, form).await?;
        if form == Form::Detailed && is_unknown_there(&answer) {
            let answer = self.get(endpoint, Form::Flat).await?;
            return Ok((Form::Flat, read(answer, Form::Flat).await?));
        }
        Ok((form, read(answer, form).await?))
    }
}

impl Poller {
    /// One that asks over the channel of the moment, and waits for a whole answer for at most
    /// `timeout`.
    #[must_use]
    pub fn new(timeout: Duration, channel: watch::Receiver<Arc<Channel>>) -> Self {
        Self { channel, timeout }
    }

    /// Asks the exporter at `endpoint`, in the older form where it does not know the other. Tells in
    /// which form it answered.
    ///
    /// # Errors
    /// When it does not answer as documented.
    pub async fn poll(
        &self,
        endpoint: &Endpoint,
        form: Form,
    ) -> Result<(Form, Statistics), PollError> {
        let channel = Arc::clone(&self.channel.borrow());
        let answer = tokio::time::timeout(self.timeout, channel.ask(endpoint, form)).await;
        answer.unwrap_or(Err(PollError::Timeout(self.timeout)))
    }
}

async fn read(answer: Response<Incoming>, form: Form) -> Result<Statistics, PollError> {
    match answer.status() {
        StatusCode::OK => {}
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(PollError::Refused(status.as_u16()));
        }
        other => return Err(PollError::Status(other.as_u16())),
    }
    let date = date(answer.headers());
    let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => PollError::TooLong,
        false => PollError::Broken(innermost(&*error)),
    })?;
    let wrong = |error: serde_json::Error| PollError::Body {
        path: form.path(),
        problem: error.to_string(),
    };
    Statistics::parse(form, &body.to_bytes(), date).map_err(wrong)
}

fn failure(error: &legacy::Error) -> PollError {
    if is_tls(error) {
        PollError::Tls(innermost(error))
    } else if error.is_connect() {
        PollError::Connect(innermost(error))
    } else {
        PollError::Broken(innermost(error))
    }
}

/// Whether the path is unknown to the exporter. Many a one shows its home page for such.
fn is_unknown_there(answer: &Response<Incoming>) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    let page = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    answer.status() == StatusCode::NOT_FOUND || (answer.status() == StatusCode::OK && page)
}

/// The time of the answer, by the clock of who gave it.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(DATE)?.to_str().ok()?;
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// The outer errors repeat the URL and say that something failed; the cause is the last one.
fn innermost(error: &dyn Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_an_answer_is_read_and_nonsense_is_none() {
        let date = |text: &'static str| {
            super::date(&HeaderMap::from_iter([(DATE, HeaderValue::from_static(text))]))
        };
        let expected = "2026-11-20T09:00:00Z".parse().unwrap();
        assert_eq!(date("Fri, 20 Nov 2026 09:00:00 GMT"), Some(expected));
        for nonsense in ["", "yesterday", "Fri, 20 Nov 99999 09:00:00 GMT", "2026-11-20"] {
            assert_eq!(date(nonsense), None, "{nonsense}");
        }
    }
}
