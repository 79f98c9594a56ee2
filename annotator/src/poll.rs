//! Asks a node's exporter for its statistics.
//!
//! Invariant: what an answer holds is judged in [`crate::statistics`] alone. An exporter that has
//! no `/v1/statistics` is asked for the older form; whether it has one is its word, not a guess
//! from an answer that came out wrong.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap};
use reqwest::{Response, StatusCode};
use tokio::sync::watch;

use crate::channel::{Channel, Line, failure};
use crate::endpoint::{Endpoint, NoEndpoint};
use crate::statistics::{Form, Statistics};

/// Largest answer that is read. One value takes 150 bytes in the detailed form, and a node has
/// some tens to some hundreds.
const MAX_BODY: usize = 256 * 1024;

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
        let asking = async { ask(&channel.to(endpoint).await?, form).await };
        let answer = tokio::time::timeout(self.timeout, asking).await;
        answer.unwrap_or(Err(PollError::Timeout(self.timeout)))
    }
}

async fn ask(line: &Line, form: Form) -> Result<(Form, Statistics), PollError> {
    let answer = line.get(form.path()).await?;
    if form == Form::Detailed && is_unknown_there(&answer) {
        let answer = line.get(Form::Flat.path()).await?;
        return Ok((Form::Flat, read(answer, Form::Flat).await?));
    }
    Ok((form, read(answer, form).await?))
}

async fn read(answer: Response, form: Form) -> Result<Statistics, PollError> {
    match answer.status() {
        StatusCode::OK => {}
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Err(PollError::Refused(status.as_u16()));
        }
        other => return Err(PollError::Status(other.as_u16())),
    }
    let date = date(answer.headers());
    let body = body(answer).await?;
    let wrong = |error: serde_json::Error| PollError::Body {
        path: form.path(),
        problem: error.to_string(),
    };
    Statistics::parse(form, &body, date).map_err(wrong)
}

async fn body(mut answer: Response) -> Result<Vec<u8>, PollError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| failure(&error))? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(PollError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Whether the path is unknown to the exporter. Many a one shows its home page for such.
fn is_unknown_there(answer: &Response) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    let page = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    answer.status() == StatusCode::NOT_FOUND || (answer.status() == StatusCode::OK && page)
}

/// The time of the answer, by the clock of who gave it.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(DATE)?.to_str().ok()?;
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

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
