//! One poll: asks an exporter for its statistics.
//!
//! Invariant: what an answer holds is judged in [`super::statistics`] alone. The older format is asked for only where
//! the exporter says that it has no `/v1/statistics`, never because an answer could not be read.

use std::sync::Arc;
use std::time::Duration;

use api::pods::NodePods;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap};
use reqwest::{Response, StatusCode};
use tokio::sync::watch;

use super::endpoint::Endpoint;
use super::error::{MAX_BODY, PollError};
use super::statistics::{AnswerContext, Format, Statistics};
use super::transport::{Connection, Transport, request_error};

/// Where an exporter tells what pods use.
const PODS: &str = "/v1/pods";

/// Asks exporters.
#[derive(Debug, Clone)]
pub struct Poller {
    /// Replaced as a whole when the CA or the token changes, so that no connection made with the old ones is reused.
    transport: watch::Receiver<Arc<Transport>>,
    timeout: Duration,
}

impl Poller {
    /// A poller that uses the newest value of `transport` and waits for a complete answer for at most `timeout`.
    #[must_use]
    pub fn new(timeout: Duration, transport: watch::Receiver<Arc<Transport>>) -> Self {
        Self { transport, timeout }
    }

    /// Asks an exporter what its node's pods use, and waits for at most `timeout`, or the poller's own time where that is
    /// shorter.
    ///
    /// # Errors
    /// When the exporter does not answer in time or not as documented; [`PollError::Status`] of 404 where it does not know
    /// the path.
    pub async fn pods(
        &self,
        connection: &Connection,
        timeout: Duration,
    ) -> Result<NodePods, PollError> {
        let timeout = timeout.min(self.timeout);
        let asking = async {
            let body = body(expect_ok(connection.get(PODS).await?)?).await?;
            let wrong = |problem: String| PollError::Body { path: PODS, problem };
            let text = std::str::from_utf8(&body).map_err(|error| wrong(error.to_string()))?;
            NodePods::from_json(text).map_err(|error| wrong(error.to_string()))
        };
        let answer = tokio::time::timeout(timeout, asking).await;
        answer.unwrap_or(Err(PollError::Timeout(timeout)))
    }

    /// The way to the exporter at `endpoint`, by the credentials in force. Plain HTTP connects with the first request.
    ///
    /// # Errors
    /// When a name cannot be resolved in time.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, PollError> {
        let transport = Arc::clone(&self.transport.borrow());
        let connected = tokio::time::timeout(self.timeout, transport.to(endpoint)).await;
        connected.unwrap_or(Err(PollError::Timeout(self.timeout)))
    }

    /// Asks an exporter for `format`, and for [`Format::Flat`] where it does not know the detailed one.
    /// Returns the format of the answer with it. `since_creation` is the time since the Node object was created.
    ///
    /// # Errors
    /// When the exporter does not answer in time or not as documented.
    pub async fn poll(
        &self,
        connection: &Connection,
        format: Format,
        since_creation: Option<SignedDuration>,
    ) -> Result<(Format, Statistics), PollError> {
        let asking = ask(connection, format, since_creation);
        let answer = tokio::time::timeout(self.timeout, asking).await;
        answer.unwrap_or(Err(PollError::Timeout(self.timeout)))
    }
}

async fn ask(
    connection: &Connection,
    format: Format,
    since_creation: Option<SignedDuration>,
) -> Result<(Format, Statistics), PollError> {
    let answer = connection.get(format.path()).await?;
    if format == Format::Detailed && is_unknown_path(&answer) {
        let answer = connection.get(Format::Flat.path()).await?;
        return Ok((Format::Flat, read(answer, Format::Flat, since_creation).await?));
    }
    Ok((format, read(answer, format, since_creation).await?))
}

async fn read(
    answer: Response,
    format: Format,
    since_creation: Option<SignedDuration>,
) -> Result<Statistics, PollError> {
    let answer = expect_ok(answer)?;
    let context = AnswerContext { date: date(answer.headers()), since_creation };
    let body = body(answer).await?;
    let wrong = |error: serde_json::Error| PollError::Body {
        path: format.path(),
        problem: error.to_string(),
    };
    Statistics::parse(format, &body, context).map_err(wrong)
}

fn expect_ok(answer: Response) -> Result<Response, PollError> {
    match answer.status() {
        StatusCode::OK => Ok(answer),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            Err(PollError::Refused(status.as_u16()))
        }
        other => Err(PollError::Status(other.as_u16())),
    }
}

async fn body(mut answer: Response) -> Result<Vec<u8>, PollError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| request_error(&error))? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(PollError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Whether the exporter does not know the path: 404, or an HTML page, which some exporters show for any other path.
fn is_unknown_path(answer: &Response) -> bool {
    let content_type = answer.headers().get(CONTENT_TYPE);
    let html = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/html"));
    answer.status() == StatusCode::NOT_FOUND || (answer.status() == StatusCode::OK && html)
}

/// The time of the answer by the node's own clock.
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
