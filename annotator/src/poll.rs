//! Asks a node's exporter for its statistics.
//!
//! Invariant: a reading that comes out of here is a number that the exporter sent. What it sent as
//! anything else (`null`, a text, a negative number) is absent.
//!
//! Whoever may annotate Nodes can make this program send a GET to any host and port of their
//! choice (the override exists for exporters behind a proxy or on another network). The damage is
//! kept small: host and port only, the path is ours, redirects are not followed, no proxy and no
//! credentials are used, and only numbers under the names in the policy are ever repeated.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::NodeFacts;
use placement::units::{MetricName, Ratio};
use reqwest::redirect;
use serde_json::Value;

/// Largest answer that is read; a real one has under 1 KiB.
const MAX_BODY: usize = 64 * 1024;

/// Connections are kept for exporters that are asked again soon. With the usual period of 3 minutes
/// none is: thousands of idle connections would save one handshake a poll.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Where an exporter answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    address: String,
}

impl Endpoint {
    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Why it is not known where a node's exporter answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// The node has no address.
    #[error("the Node has no InternalIP; its annotation `{0}` can name the exporter as host:port")]
    NoAddress(String),
    /// The operator's annotation is no address.
    #[error("the Node's annotation `{key}`: {error}")]
    Annotation {
        /// The annotation's key.
        key: String,
        /// What is wrong with it.
        error: cluster::ExporterError,
    },
}

/// Where the node's exporter answers: where the operator's annotation says, or else at its
/// InternalIP and `port`. `key` is the annotation's.
///
/// # Errors
/// When the annotation is no `host:port`, or there is neither.
pub fn endpoint(facts: &NodeFacts, port: u16, key: &str) -> Result<Endpoint, NoEndpoint> {
    let address = match (&facts.exporter, facts.internal_ip) {
        (Some(Ok(address)), _) => address.clone(),
        (Some(Err(error)), _) => {
            return Err(NoEndpoint::Annotation { key: key.to_owned(), error: error.clone() });
        }
        // Brackets an IPv6 address.
        (None, Some(ip)) => std::net::SocketAddr::new(ip, port).to_string(),
        (None, None) => return Err(NoEndpoint::NoAddress(key.to_owned())),
    };
    Ok(Endpoint { address })
}

/// What an exporter said: fractions by metric.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics(BTreeMap<String, Ratio>);

impl Statistics {
    /// The metric, where the exporter gave a number for it.
    #[must_use]
    pub fn get(&self, metric: &MetricName) -> Option<Ratio> {
        self.0.get(metric.as_str()).copied()
    }

    /// Reads a JSON object of percentages.
    ///
    /// # Errors
    /// When the text is no JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, PollError> {
        let wrong = |error: serde_json::Error| PollError::Body(error.to_string());
        let object: BTreeMap<String, Value> = serde_json::from_slice(body).map_err(wrong)?;
        let ratio = |value: &Value| value.as_f64().and_then(Ratio::from_percent);
        let known = object.into_iter().filter_map(|(key, value)| Some((key, ratio(&value)?)));
        Ok(Self(known.collect()))
    }
}

/// Why an exporter gave no statistics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    /// It is not known where to ask.
    #[error(transparent)]
    NoEndpoint(#[from] NoEndpoint),
    /// Nobody accepts connections there.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke, or what came is not HTTP.
    #[error("broken answer: {0}")]
    Broken(String),
    /// Not 200.
    #[error("status {0} where 200 was expected")]
    Status(u16),
    /// The body is absurdly long.
    #[error("more than {MAX_BODY} bytes")]
    TooLong,
    /// Not a JSON object.
    #[error("not a JSON object of numbers: {0}")]
    Body(String),
}

impl PollError {
    /// A word for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoEndpoint(_) => "no_address",
            Self::Connect(_) => "connect",
            Self::Timeout(_) => "timeout",
            Self::Broken(_) => "broken",
            Self::Status(_) => "status",
            Self::TooLong => "too_long",
            Self::Body(_) => "body",
        }
    }
}

/// Asks exporters.
#[derive(Debug, Clone)]
pub struct Poller {
    client: reqwest::Client,
    timeout: Duration,
}

impl Poller {
    /// One that waits for a whole answer for at most `timeout`.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new(timeout: Duration) -> reqwest::Result<Self> {
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEEP_ALIVE)
            .user_agent(concat!("plimsoll-annotator/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client, timeout })
    }

    /// Asks the exporter at `endpoint`.
    ///
    /// # Errors
    /// When it does not answer with a JSON object.
    pub async fn poll(&self, endpoint: &Endpoint) -> Result<Statistics, PollError> {
        let url = format!("http://{}/statistics", endpoint.address);
        let response = self.client.get(url).send().await.map_err(|e| self.failure(&e))?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(PollError::Status(response.status().as_u16()));
        }
        Statistics::parse(&self.body(response).await?)
    }

    async fn body(&self, mut response: reqwest::Response) -> Result<Vec<u8>, PollError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.failure(&e))? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(PollError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn failure(&self, error: &reqwest::Error) -> PollError {
        if error.is_timeout() {
            PollError::Timeout(self.timeout)
        } else if error.is_connect() {
            PollError::Connect(innermost(error))
        } else {
            PollError::Broken(innermost(error))
        }
    }
}

/// The outer errors repeat the URL and say that something failed; the cause is the last one.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<Statistics, PollError> {
        Statistics::parse(body.as_bytes())
    }

    fn get(statistics: &Statistics, metric: &str) -> Option<f64> {
        statistics.get(&metric.into()).map(Ratio::get)
    }

    #[test]
    fn percent_becomes_a_fraction() {
        let statistics = parse(r#"{"cpu_usage_avg_5m": 63.012, "mem_usage_avg_5m": 0}"#).unwrap();
        assert!((get(&statistics, "cpu_usage_avg_5m").unwrap() - 0.63012).abs() < 1e-12);
        assert_eq!(get(&statistics, "mem_usage_avg_5m"), Some(0.0));
    }

    #[test]
    fn what_is_no_measure_is_absent_and_never_zero() {
        let body = r#"{"a": null, "b": -1, "c": "7", "d": [7], "e": {"f": 7}, "g": true, "h": 7}"#;
        let statistics = parse(body).unwrap();
        assert_eq!(statistics.0.len(), 1);
        assert_eq!(get(&statistics, "h"), Some(0.07));
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for body in ["", "[1]", "7", "null", "{\"a\": NaN}", "{\"a\": 1", "<html>"] {
            assert!(matches!(parse(body), Err(PollError::Body(_))), "{body}");
        }
    }
}
