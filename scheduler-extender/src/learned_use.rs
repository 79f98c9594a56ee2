//! Reads the learned use of workloads from the annotator.
//!
//! Only its leader has it; the other replicas answer 503. So all addresses of the name are tried in turn, the last
//! successful one first. A single address, as of a Service with a virtual IP, is tried several times, each time over a
//! new connection.
//!
//! Invariant: an answer is applied as a whole or not at all, and the last good one stays; after a day without one, pods
//! are estimated from their requests again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::workloads::{MAX_TEXT, Workloads, WorkloadsError};
use axum::http::HeaderValue;
use axum::http::header::{ETAG, HOST, IF_NONE_MATCH};
use daemon::Shutdown;
use reqwest::{Client, StatusCode};

use crate::Clock;
use crate::http_client::{self, AnswerError, SetupError};
use crate::view::{ByWorkload, View};

/// The period of reads. Pods are observed once a minute.
const PERIOD: Duration = Duration::from_secs(30);

/// The pause after a failed read: an extender that has just started estimates pods from their requests meanwhile.
const RETRY: Duration = Duration::from_secs(5);

/// The timeout of a whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a connection. The address of a deleted pod may not answer at all.
const CONNECT: Duration = Duration::from_secs(2);

/// Tries in one period at most. Of two pods behind one virtual IP, the leader is missed in all of 6 tries in one of 64
/// cases.
const TRIES: usize = 6;

const PATH: &str = "/v1/workloads";

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
enum ReadError {
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
    #[error(transparent)]
    Content(#[from] WorkloadsError),
}

/// Reads the annotator's answers.
pub(crate) struct Reader {
    client: Client,
    host: String,
    /// The address of the last good answer.
    leader: Option<SocketAddr>,
    /// The ETag of the last good answer.
    tag: Option<HeaderValue>,
    failing: bool,
}

impl Reader {
    /// A reader of the annotator at `url`.
    ///
    /// # Errors
    ///
    /// Where no HTTP client can be set up.
    pub(crate) fn new(url: &Url) -> Result<Self, SetupError> {
        let client = http_client::builder()?
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self { client, host: url.0.clone(), leader: None, tag: None, failing: false })
    }

    /// Keeps the view's learned use up to date, until the shutdown.
    ///
    /// # Errors
    ///
    /// None: a failed read is retried.
    pub(crate) async fn follow(
        mut self,
        view: Arc<View>,
        clock: Clock,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        loop {
            let read = shutdown.run_until_cancelled(self.read(&clock)).await;
            let Some(read) = read else { return Ok(()) };
            self.log(&read);
            let pause = if read.is_ok() { PERIOD } else { RETRY };
            match read {
                Ok(Some(list)) => view.change_learned(|learned| learned.set(list, clock())),
                Ok(None) => view.change_learned(|learned| learned.confirm(clock())),
                Err(_) => {
                    view.change_learned(|learned| learned.expire(clock()));
                    if view.current().learned.is_empty() {
                        // With the tag, an unchanged list would be answered without content.
                        self.tag = None;
                    }
                }
            }
            if shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Logs one line when reads begin to fail, and one when they succeed again.
    fn log(&mut self, read: &Result<Option<ByWorkload>, ReadError>) {
        match (read, self.failing) {
            (Err(error), false) => {
                let annotator = &self.host;
                tracing::warn!(annotator, %error, "cannot read learned use; what was read last counts for a day");
            }
            (Ok(_), true) => tracing::info!(annotator = self.host, "learned use can be read again"),
            _ => {}
        }
        self.failing = read.is_err();
    }

    /// Tries all addresses until one answers. `None` where nothing has changed.
    async fn read(&mut self, clock: &Clock) -> Result<Option<ByWorkload>, ReadError> {
        let mut outcome = Err(ReadError::NoAddress);
        for address in self.addresses().await? {
            outcome = self.read_from(address, clock).await;
            if outcome.is_ok() {
                self.leader = Some(address);
                break;
            }
        }
        outcome
    }

    /// The annotator's addresses in the order of tries: the last successful one comes first.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, ReadError> {
        let found = tokio::net::lookup_host(&self.host).await;
        let mut found: Vec<SocketAddr> =
            found.map_err(|error| ReadError::Name(error.to_string()))?.collect();
        found.sort_by_key(|address| (Some(*address) != self.leader, *address));
        found.dedup();
        found.truncate(TRIES);
        Ok(match found.as_slice() {
            [only] => vec![*only; TRIES],
            _ => found,
        })
    }

    async fn read_from(
        &mut self,
        address: SocketAddr,
        clock: &Clock,
    ) -> Result<Option<ByWorkload>, ReadError> {
        let request = self.client.get(format!("http://{address}{PATH}"));
        let mut request = request.header(HOST, &self.host);
        if let Some(tag) = &self.tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let answer = request.send().await.map_err(AnswerError::from)?;
        match answer.status() {
            StatusCode::NOT_MODIFIED => return Ok(None),
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => return Err(ReadError::Standby),
            other => return Err(ReadError::Status(other.as_u16())),
        }
        let tag = answer.headers().get(ETAG).cloned();
        let body = http_client::body(answer, MAX_TEXT).await?;
        let text = str::from_utf8(&body).map_err(|_| ReadError::NoText)?;
        let answer = Workloads::from_json(text)?;
        let mut learned = ByWorkload::default();
        for workload in &answer.workloads {
            learned.insert(
                workload.id(),
                workload.learned(),
                workload.pod_minutes,
                workload.last_seen,
                clock(),
            );
        }
        self.tag = tag;
        Ok(Some(learned))
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
