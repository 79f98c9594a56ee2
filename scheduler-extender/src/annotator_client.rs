//! A client of the annotator: of the one of its replicas that leads.
//!
//! Only the leader answers; the other replicas say 503. So all addresses of the name are tried in turn, the last
//! successful one first. A single address, as of a Service with a virtual IP, is tried several times, each time over a
//! new connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::{ETAG, HOST, IF_NONE_MATCH};
use daemon::Shutdown;
use reqwest::{Client, StatusCode};

use crate::Clock;
use crate::http_client::{self, AnswerError, SetupError};
use crate::view::View;

/// The pause after a read that failed: an extender that has just started lacks what it would have brought.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// The timeout of a whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a connection. The address of a deleted pod may not answer at all.
const CONNECT: Duration = Duration::from_secs(2);

/// Tries of one read at most. Of two pods behind one virtual IP, the leader is missed in all of 6 tries in one of 64
/// cases.
const TRIES: usize = 6;

/// The annotator's address: `HOST:PORT` of `http://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// Reads the flag.
    ///
    /// # Errors
    ///
    /// Where the text is anything but scheme, host and port.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_host(text).ok_or_else(|| {
            "expected http://HOST:PORT, as in http://annotator.plimsoll.svc:19106".to_owned()
        })
    }

    fn parse_host(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?.trim_end_matches('/');
        if rest.contains(['/', '?', '#', '@']) {
            return None;
        }
        let url = reqwest::Url::parse(text).ok()?;
        Some(Self(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)))
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error("the name cannot be resolved: {0}")]
    Name(String),
    #[error("the name has no address")]
    NoAddress,
    #[error("no replica leads")]
    Standby,
    #[error("status {0}")]
    Status(u16),
    #[error("no text in UTF-8")]
    NoText,
    #[error("{0}")]
    Content(String),
}

impl ReadError {
    /// A word for metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Answer(AnswerError::Connection(_)) | Self::Name(_) | Self::NoAddress => {
                "no_answer"
            }
            Self::Standby => "standby",
            Self::Status(_) => "status",
            Self::Answer(AnswerError::TooLong(_)) | Self::NoText | Self::Content(_) => "refused",
        }
    }
}

/// What is asked for.
pub(crate) struct Question<'q> {
    /// The path with the query.
    pub(crate) path: &'q str,
    /// The ETag of a known answer.
    pub(crate) tag: Option<&'q HeaderValue>,
    /// The most bytes of the answer.
    pub(crate) limit: usize,
}

/// An answer.
pub(crate) enum Reply<T> {
    /// The known one is still right.
    Unchanged,
    New {
        content: T,
        tag: Option<HeaderValue>,
    },
}

/// What is read from the annotator again and again.
pub(crate) trait Reads: Send + Sized {
    /// Reads once, into the view. Returns the pause until the next read.
    fn read(&mut self, view: &View, clock: &Clock) -> impl Future<Output = Duration> + Send;

    /// Keeps the view up to date, until the shutdown.
    ///
    /// # Errors
    ///
    /// None: a failed read is retried.
    fn follow(
        mut self,
        view: Arc<View>,
        clock: Clock,
        shutdown: Shutdown,
    ) -> impl Future<Output = anyhow::Result<()>> + Send {
        async move {
            while let Some(pause) = shutdown.run_until_cancelled(self.read(&view, &clock)).await {
                if shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    break;
                }
            }
            Ok(())
        }
    }
}

/// A client of the annotator.
pub(crate) struct AnnotatorClient {
    client: Client,
    host: String,
    /// What is read, for the log, and what its lack means.
    reads: &'static str,
    without: &'static str,
    /// The address of the last good answer.
    leader: Option<SocketAddr>,
    failing: bool,
}

impl AnnotatorClient {
    /// A client of the annotator at `url`, which `reads` something; `without` it this holds.
    ///
    /// # Errors
    ///
    /// Where no HTTP client can be set up.
    pub(crate) fn new(
        url: &Url,
        reads: &'static str,
        without: &'static str,
    ) -> Result<Self, SetupError> {
        let client = http_client::builder()?
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self { client, host: url.0.clone(), reads, without, leader: None, failing: false })
    }

    /// Asks all addresses until one answers with what `parse` accepts. Logs one line when that begins to fail, and one
    /// when it succeeds again.
    pub(crate) async fn read<T>(
        &mut self,
        question: Question<'_>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Reply<T>, ReadError> {
        let outcome = self.ask_each(&question, parse).await;
        let annotator = &self.host;
        match (&outcome, self.failing) {
            (Err(error), false) => {
                tracing::warn!(annotator, %error, "cannot read {}; {}", self.reads, self.without);
            }
            (Ok(_), true) => tracing::info!(annotator, "{} can be read again", self.reads),
            _ => {}
        }
        self.failing = outcome.is_err();
        outcome
    }

    async fn ask_each<T>(
        &mut self,
        question: &Question<'_>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Reply<T>, ReadError> {
        let mut outcome = Err(ReadError::NoAddress);
        for address in self.addresses().await? {
            outcome = self.ask(address, question, &parse).await;
            if outcome.is_ok() {
                self.leader = Some(address);
                break;
            }
        }
        outcome
    }

    /// The annotator's addresses in the order of tries: the last successful one comes first.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, ReadError> {
        let answer = tokio::net::lookup_host(&self.host).await;
        let mut found: Vec<SocketAddr> =
            answer.map_err(|error| ReadError::Name(error.to_string()))?.collect();
        found.sort_by_key(|address| (Some(*address) != self.leader, *address));
        found.dedup();
        found.truncate(TRIES);
        Ok(match found.as_slice() {
            [only] => vec![*only; TRIES],
            _ => found,
        })
    }

    async fn ask<T>(
        &self,
        address: SocketAddr,
        question: &Question<'_>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Reply<T>, ReadError> {
        let url = format!("http://{address}{}", question.path);
        let mut request = self.client.get(url).header(HOST, &self.host);
        if let Some(tag) = question.tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let answer = request.send().await.map_err(AnswerError::from)?;
        match answer.status() {
            StatusCode::NOT_MODIFIED => return Ok(Reply::Unchanged),
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => return Err(ReadError::Standby),
            other => return Err(ReadError::Status(other.as_u16())),
        }
        let tag = answer.headers().get(ETAG).cloned();
        let body = http_client::body(answer, question.limit).await?;
        let text = str::from_utf8(&body).map_err(|_| ReadError::NoText)?;
        let content = parse(text).map_err(ReadError::Content)?;
        Ok(Reply::New { content, tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotator_is_a_host_behind_plain_http() {
        for (text, host) in
            [("http://a.b:1/", "a.b:1"), ("http://a", "a:80"), ("http://[::1]", "[::1]:80")]
        {
            assert_eq!(Url::parse(text), Ok(Url(host.to_owned())));
        }
        for text in ["https://a:1", "a:1", "http://", "http://a/b", "http://u@a", ""] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }
}
