//! One query and its answer: an instant vector with a value for each node.
//!
//! Invariants: answers are bounded; a value that is no finite number of 0 or more, or that a node has twice, is absent,
//! never 0.

use std::collections::HashMap;
use std::time::Duration;

use daemon::Causes;
use http::StatusCode;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use placement::reading::Reading;
use placement::units::Ratio;
use reqwest::{Response, Url};
use serde::Deserialize;

use super::access::{Access, TIMEOUT};
use crate::exporter::tls::tls_cause;
use crate::source::host;

/// The path of instant queries.
const PATH: &str = "/api/v1/query";

/// Prometheus's own timeout of a query, shorter than ours.
const EVALUATION: &str = "25s";

/// The largest answer, in bytes. A series takes some 150.
const MAX_ANSWER: usize = 16 << 20;

/// The longest part of an error's text that is shown, in characters.
const MAX_MESSAGE: usize = 300;

/// Larger values are absent: no signal comes near it in percent, and it would become an annotation of hundreds of
/// digits.
const MAX_VALUE: f64 = 1e15;

/// Why a query failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    /// The connection was refused, or the host is unreachable or unknown.
    #[error("cannot connect: {0}; see --prometheus-url")]
    Connect(String),
    /// The server's certificate was not accepted, or the server does not speak TLS.
    #[error("TLS: {0}; see --prometheus-ca-file")]
    Tls(String),
    /// No complete answer in time.
    #[error("no answer within {0:?}: does the query read too many series?")]
    Timeout(Duration),
    /// The connection broke, or the answer is not HTTP.
    #[error("broken answer: {0}")]
    Broken(String),
    /// Status 401 or 403.
    #[error("status {0}: it wants a token, or another one; see --prometheus-token-file")]
    Refused(u16),
    /// Another status than 200, with Prometheus's error text.
    #[error("status {0}: {1}")]
    Status(u16, String),
    /// The answer is longer than 16 MiB.
    #[error("more than {MAX_ANSWER} bytes: does the query give one value for each node?")]
    TooLong,
    /// The answer is no instant vector.
    #[error("the answer is no instant vector: {0}")]
    Body(String),
    /// There are series, and none names its node.
    #[error("no series of the answer has the label `{0}`; see --prometheus-node-label")]
    NoLabel(String),
}

impl QueryError {
    /// The value of the label `outcome` in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Broken(_) => "broken",
            Self::Refused(_) => "refused",
            Self::Status(..) => "status",
            Self::TooLong => "too_long",
            Self::Body(_) => "body",
            Self::NoLabel(_) => "no_label",
        }
    }
}

impl From<reqwest::Error> for QueryError {
    fn from(error: reqwest::Error) -> Self {
        let cause = Causes(&error).innermost();
        if error.is_timeout() {
            Self::Timeout(TIMEOUT)
        } else if let Some(cause) = tls_cause(&error) {
            Self::Tls(cause)
        } else if error.is_connect() {
            Self::Connect(cause)
        } else {
            Self::Broken(cause)
        }
    }
}

/// A value of one node, as the query gave it, and the time of the query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    value: f64,
    at: Timestamp,
}

/// The values of one query by node.
pub(super) type Samples = HashMap<String, Sample>;

/// Sends `query`; the values of `label` are the nodes.
pub(super) async fn send_query(
    access: &Access,
    url: &Url,
    query: &str,
    label: &str,
) -> Result<Samples, QueryError> {
    let mut asked = url.clone();
    asked.set_path(&format!("{}{PATH}", url.path().trim_end_matches('/')));
    asked.query_pairs_mut().append_pair("query", query).append_pair("timeout", EVALUATION);
    let mut request = access.client.get(asked);
    if let Some(value) = &access.authorization {
        request = request.header(AUTHORIZATION, value.clone());
    }
    let answer = request.send().await?;
    match answer.status() {
        StatusCode::OK => samples(&body(answer).await?, label),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            Err(QueryError::Refused(status.as_u16()))
        }
        other => Err(QueryError::Status(other.as_u16(), message(&body(answer).await?))),
    }
}

async fn body(mut answer: Response) -> Result<Vec<u8>, QueryError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(QueryError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The error text of an answer: Prometheus's, or that of a proxy before it.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct ErrorBody {
        error: String,
    }
    let text = match serde_json::from_slice(body) {
        Ok(ErrorBody { error }) => error,
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    text.chars().take(MAX_MESSAGE).collect()
}

/// An answer's body.
#[derive(Deserialize)]
struct QueryResult {
    data: Vector,
}

/// An instant vector. Another type of result is an error.
#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Vector {
    Vector(Vec<Series>),
}

#[derive(Deserialize)]
struct Series {
    metric: HashMap<String, String>,
    /// The time of the query in Unix seconds, and the value as text.
    value: (f64, String),
}

/// The values of an answer by the node that `label` names, with or without a port.
fn samples(body: &[u8], label: &str) -> Result<Samples, QueryError> {
    let result: QueryResult =
        serde_json::from_slice(body).map_err(|error| QueryError::Body(error.to_string()))?;
    let Vector::Vector(all) = result.data;
    let is_empty = all.is_empty();
    let mut samples: HashMap<String, Option<Sample>> = HashMap::with_capacity(all.len());
    for series in all {
        let Some(node) = series.metric.get(label) else { continue };
        let sample = sample(&series.value);
        // Two series of one node are ambiguous.
        samples.entry(host(node).to_owned()).and_modify(|known| *known = None).or_insert(sample);
    }
    if !is_empty && samples.is_empty() {
        return Err(QueryError::NoLabel(label.to_owned()));
    }
    Ok(samples.into_iter().filter_map(|(node, sample)| Some((node, sample?))).collect())
}

fn sample((at, text): &(f64, String)) -> Option<Sample> {
    let value: f64 = text.parse().ok()?;
    let at = seconds(*at)?;
    (0.0..MAX_VALUE).contains(&value).then_some(Sample { value, at })
}

fn seconds(unix: f64) -> Option<Timestamp> {
    if !unix.is_finite() {
        return None;
    }
    // A cast saturates, and a time that far away is refused.
    Timestamp::from_millisecond((unix * 1000.0) as i64).ok()
}

/// Converts values in percent to readings with the times of their nodes' newest samples, or with the time of the query
/// if `times` is `None`. A node without a time has no reading.
pub(super) fn readings(values: &Samples, times: Option<&Samples>) -> HashMap<String, Reading> {
    let mut readings = HashMap::with_capacity(values.len());
    for (node, sample) in values {
        let newest_sample = match times {
            Some(times) => times.get(node).and_then(|time| seconds(time.value)),
            None => Some(sample.at),
        };
        if let (Some(at), Some(value)) = (newest_sample, Ratio::from_percent(sample.value)) {
            // No value is newer than the query that gave it.
            readings.insert(node.clone(), Reading::new(value, at.min(sample.at)));
        }
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_795_165_200;

    fn answer(series: &[(&str, &str)]) -> Samples {
        let all = series
            .iter()
            .map(|(node, value)| json!({"metric": {"instance": node}, "value": [NOW, value]}));
        let all: Vec<_> = all.collect();
        let body = json!({"status": "success", "data": {"resultType": "vector", "result": all}});
        samples(body.to_string().as_bytes(), "instance").unwrap()
    }

    #[test]
    fn what_is_no_number_of_zero_or_more_is_absent_and_never_zero() {
        let texts = ["NaN", "+Inf", "-Inf", "-1", "", "x", "1e300"];
        assert_eq!(answer(&texts.map(|text| (text, text))), Samples::new());
        assert_eq!(answer(&[("a:1", "5"), ("a:2", "6"), ("a:3", "7")]), Samples::new());
        assert_eq!(answer(&[("a:1", "0"), ("b:1", "5")]).len(), 2);
    }

    #[test]
    fn a_reading_has_the_time_of_its_nodes_newest_sample_and_none_has_another() {
        let values = answer(&[("a", "50"), ("b", "50"), ("c", "50")]);
        let old = (NOW - 30).to_string();
        let ahead = (NOW + 900).to_string();
        let times = answer(&[("a", &old), ("b", &ahead)]);
        let found = readings(&values, Some(&times));
        assert_eq!((found["a"], found["b"]), (half(NOW - 30), half(NOW)));
        assert_eq!(found.get("c"), None);
        assert_eq!(readings(&values, None)["c"], half(NOW));
    }

    fn half(second: i64) -> Reading {
        Reading::new(Ratio::new(0.5).unwrap(), Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn an_answer_that_is_no_vector_or_names_no_node_is_an_error() {
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}"#;
        assert!(matches!(samples(scalar.as_bytes(), "instance"), Err(QueryError::Body(_))));
        let sum = r#"{"data":{"resultType":"vector","result":[{"metric":{},"value":[1,"2"]}]}}"#;
        let error = samples(sum.as_bytes(), "instance").unwrap_err();
        assert_eq!(error, QueryError::NoLabel("instance".to_owned()));
        let empty = r#"{"data":{"resultType":"vector","result":[]}}"#;
        assert_eq!(samples(empty.as_bytes(), "instance"), Ok(Samples::new()));
    }

    #[test]
    fn an_errors_text_is_prometheuss_and_bounded() {
        let body = br#"{"status":"error","errorType":"bad_data","error":"1:5: parse error"}"#;
        assert_eq!(message(body), "1:5: parse error");
        assert_eq!(message(b"<html>Bad Gateway\n"), "<html>Bad Gateway");
        assert_eq!(message("x".repeat(9_999).as_bytes()).len(), MAX_MESSAGE);
    }
}
