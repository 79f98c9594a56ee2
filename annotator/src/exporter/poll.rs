//! One poll: requests the statistics of an exporter.
//!
//! Invariant: only [`super::statistics`] interprets answers. The older format is requested only if the exporter has no
//! `/v1/statistics`, never because an answer could not be parsed.

use std::sync::Arc;
use std::time::Duration;

use ::http::StatusCode;
use ::http::header::{DATE, HeaderMap};
use api::pods::NodePods;
use daemon::follow::Current;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};

use super::connections::{ConnectionMetrics, Connections};
use super::endpoint::Endpoint;
use super::error::PollError;
use super::http::{Connection, GetError, HttpAnswer};
use super::statistics::{AnswerContext, Format, Statistics, Wanted};
use super::transport::{Reach, Transport};

/// The exporter's path of pods' use.
const PODS: &str = "/v1/pods";

/// Polls exporters; clones share the connections.
#[derive(Clone)]
pub(crate) struct Poller {
    /// Replaced as a whole when the CA or the token changes.
    transport: Current<Transport>,
    connections: Connections,
    timeout: Duration,
    reach: Reach,
}

impl Poller {
    /// A poller of exporters within `reach` that uses the newest value of `transport` and waits for a complete answer
    /// for at most `timeout`.
    pub(crate) fn new(
        timeout: Duration,
        reach: Reach,
        transport: Current<Transport>,
        metrics: ConnectionMetrics,
    ) -> Self {
        Self { transport, connections: Connections::new(metrics), timeout, reach }
    }

    /// Closes expired idle connections periodically, without end.
    pub(crate) async fn close_idle_connections(self) {
        self.connections.sweep().await;
    }

    /// Requests the use of the node's pods from the exporter at `endpoint`, within `timeout` or the poller's own
    /// timeout, whichever is shorter.
    ///
    /// # Errors
    /// If the exporter does not answer in time or not as documented; [`PollError::Status`] of 404 if it does not have
    /// the path.
    pub(crate) async fn poll_pods(
        &self,
        endpoint: &Endpoint,
        timeout: Duration,
    ) -> Result<NodePods, PollError> {
        limit_time(timeout.min(self.timeout), self.request_pods(endpoint)).await
    }

    async fn request_pods(&self, endpoint: &Endpoint) -> Result<NodePods, PollError> {
        let answer = expect_ok(self.get(endpoint, PODS).await?)?;
        let text = std::str::from_utf8(&answer.body).map_err(|error| wrong_body(PODS, &error))?;
        NodePods::from_json(text).map_err(|error| wrong_body(PODS, &error))
    }

    /// Requests `format` from the exporter at `endpoint`, and [`Format::Flat`] if it does not have the detailed one.
    /// Returns the format of the answer with its wanted metrics. `since_creation` is the time since the Node object was
    /// created.
    ///
    /// # Errors
    /// When the exporter does not answer in time or not as documented.
    pub(crate) async fn poll(
        &self,
        endpoint: &Endpoint,
        format: Format,
        since_creation: Option<SignedDuration>,
        wanted: Wanted<'_>,
    ) -> Result<(Format, Statistics), PollError> {
        limit_time(self.timeout, self.request_statistics(endpoint, format, since_creation, wanted))
            .await
    }

    async fn request_statistics(
        &self,
        endpoint: &Endpoint,
        format: Format,
        since_creation: Option<SignedDuration>,
        wanted: Wanted<'_>,
    ) -> Result<(Format, Statistics), PollError> {
        let answer = self.get(endpoint, format.path()).await?;
        if format == Format::Detailed && is_unknown_path(&answer) {
            let answer = self.get(endpoint, Format::Flat.path()).await?;
            return Ok((Format::Flat, parse(answer, Format::Flat, since_creation, wanted)?));
        }
        Ok((format, parse(answer, format, since_creation, wanted)?))
    }

    /// The answer for `path`, over the kept connection, otherwise over a new one.
    async fn get(&self, endpoint: &Endpoint, path: &'static str) -> Result<HttpAnswer, PollError> {
        let transport = Arc::clone(&self.transport.borrow());
        let recipient = transport.recipient(endpoint)?;
        if let Some(kept) = self.connections.take(&transport, endpoint.address()) {
            match kept.get(path, &recipient).await {
                Ok(answer) => return Ok(self.keep(&transport, endpoint, answer)),
                Err(GetError::Answered(error)) => return Err(error),
                // The exporter has closed it, for example in a restart.
                Err(GetError::Unanswered(_)) => {}
            }
        }
        let new = transport.connect(endpoint, self.reach).await?;
        self.connections.count_opened();
        let answer = new.get(path, &recipient).await?;
        Ok(self.keep(&transport, endpoint, answer))
    }

    fn keep(
        &self,
        transport: &Arc<Transport>,
        endpoint: &Endpoint,
        (answer, connection): (HttpAnswer, Option<Connection>),
    ) -> HttpAnswer {
        if let Some(connection) = connection {
            self.connections.keep(transport, endpoint.address(), connection);
        }
        answer
    }
}

async fn limit_time<T>(
    timeout: Duration,
    poll: impl Future<Output = Result<T, PollError>>,
) -> Result<T, PollError> {
    let answer = tokio::time::timeout(timeout, poll).await;
    answer.unwrap_or(Err(PollError::Timeout(timeout)))
}

fn parse(
    answer: HttpAnswer,
    format: Format,
    since_creation: Option<SignedDuration>,
    wanted: Wanted<'_>,
) -> Result<Statistics, PollError> {
    let answer = expect_ok(answer)?;
    let context = AnswerContext { date: date(&answer.headers), since_creation };
    Statistics::parse_wanted(format, &answer.body, context, wanted)
        .map_err(|error| wrong_body(format.path(), &error))
}

fn wrong_body(path: &'static str, error: &impl ToString) -> PollError {
    PollError::Body { path, problem: error.to_string() }
}

fn expect_ok(answer: HttpAnswer) -> Result<HttpAnswer, PollError> {
    match answer.status {
        StatusCode::OK => Ok(answer),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            Err(PollError::Refused(status.as_u16()))
        }
        other => Err(PollError::Status(other.as_u16())),
    }
}

/// Whether the exporter does not have the path.
fn is_unknown_path(answer: &HttpAnswer) -> bool {
    let is_page = answer.status == StatusCode::OK && answer.is_page();
    answer.status == StatusCode::NOT_FOUND || is_page
}

/// The time of the answer by the node's own clock.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(DATE)?.to_str().ok()?;
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use ::http::header::HeaderValue;

    use super::*;

    #[test]
    fn the_date_of_an_answer_is_read_and_nonsense_is_none() {
        for (text, expected) in [
            ("Fri, 20 Nov 2026 09:00:00 GMT", Some("2026-11-20T09:00:00Z".parse().unwrap())),
            ("", None),
            ("yesterday", None),
            ("Fri, 20 Nov 99999 09:00:00 GMT", None),
            ("2026-11-20", None),
        ] {
            let headers = HeaderMap::from_iter([(DATE, HeaderValue::from_static(text))]);
            assert_eq!(date(&headers), expected, "{text}");
        }
    }
}
