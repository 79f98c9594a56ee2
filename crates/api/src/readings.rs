//! The answer of the annotator's `GET /v1/readings`: the last readings of all nodes, by columns.
//!
//! The extender reads it. With `?since=VERSION`, the version of an earlier answer, it has only the nodes that were
//! polled since. A node, metric or value that is absent is not known, never 0. An answer with 15,000 nodes and two
//! metrics takes some 600 kB.
//!
//! # Examples
//!
//! ```
//! use api::readings::PolledReadings;
//!
//! let text = r#"{"version":"5f-2","time":"2026-11-22T07:00:00Z","nodes":["a","b"],
//!     "metrics":[{"name":"cpu_busy_avg_5m","values":[0.63012,null],"ages":[12,null]}]}"#;
//! let polled = PolledReadings::from_json(text)?;
//! let (metric, reading) = polled.of_node(0).next().ok_or("no reading")?;
//! assert_eq!((metric.as_str(), reading?.value.get()), ("cpu_busy_avg_5m", 0.63012));
//! assert_eq!(polled.of_node(1).count(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use jiff::{SignedDuration, Timestamp};
use placement::names::limits;
use placement::policy::MAX_METRICS;
use placement::reading::{Reading, ReadingError};
use placement::units::{MetricName, NodeName, Ratio};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// The most bytes of the text. An answer of [`MAX_CELLS`] readings and the longest names takes some 13 MB.
pub const MAX_TEXT: usize = 16 << 20;

/// The most nodes in an answer. What does not fit is in the next one.
pub const MAX_NODES: usize = 15_000;

/// The most nodes times metrics in an answer.
pub const MAX_CELLS: usize = 300_000;

/// The most characters of a version.
pub const MAX_VERSION: usize = 64;

/// The last readings of nodes, by columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolledReadings {
    /// Names this answer: digits, letters and `-`. Sent as `since`, it asks for what is newer. A version that is not
    /// known, as of another process, asks for everything.
    #[schemars(length(max = MAX_VERSION), regex(pattern = "^[0-9A-Za-z-]+$"))]
    pub version: String,
    /// The time of the answer, RFC 3339, to the second.
    pub time: Timestamp,
    /// The nodes that were polled, by name.
    #[schemars(with = "Vec<String>", length(max = MAX_NODES))]
    pub nodes: Vec<NodeName>,
    /// The metrics, each once. Nodes times metrics are at most 300,000.
    #[schemars(length(max = MAX_METRICS))]
    pub metrics: Vec<MetricColumn>,
}

/// The readings of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricColumn {
    /// The metric.
    #[schemars(with = "String", length(max = limits::LABEL))]
    pub name: MetricName,
    /// For each of `nodes` the value, a fraction with five decimals: 0 idle, 1 full. A load average by CPU can be above
    /// 1. `null` if the last poll gave none.
    pub values: Vec<Option<f64>>,
    /// For each of `nodes` how many seconds before `time` it was taken; `null` without a value.
    pub ages: Vec<Option<i64>>,
}

/// Why an answer is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadingsError {
    /// Too long, or not JSON of the schema.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Its version cannot be sent back.
    #[error("a version that is not 1 to {MAX_VERSION} digits, letters and `-`")]
    Version,
    /// Too many nodes or metrics.
    #[error("{nodes} nodes and {metrics} metrics: more than an answer has")]
    TooMany {
        /// Nodes.
        nodes: usize,
        /// Metrics.
        metrics: usize,
    },
    /// A name that no node has.
    #[error("a node's name of {0} bytes, where 1 to {limit} are accepted", limit = limits::NAME)]
    Node(usize),
    /// A name that no metric has, or a metric that stands in it twice.
    #[error("metric {0}: no valid name, or there twice")]
    Metric(usize),
    /// A column of another length than the list of nodes.
    #[error("metric {0}: its columns have not as many entries as there are nodes")]
    Column(usize),
}

impl PolledReadings {
    /// An answer at `now` without nodes.
    #[must_use]
    pub fn new(version: String, now: Timestamp) -> Self {
        let time = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { version, time, nodes: Vec::new(), metrics: Vec::new() }
    }

    /// Adds a node with its readings, each as it is written: the value with five decimals. Returns false, and adds
    /// nothing, if the answer is full. Of more metrics than an answer has, the last ones are left out.
    pub fn push(&mut self, node: NodeName, readings: &[(MetricName, Reading)]) -> bool {
        let (columns, new) = self.columns(readings);
        if self.nodes.len() >= Self::most_nodes(self.metrics.len() + new.len()) {
            return false;
        }
        for metric in new {
            self.metrics.push(MetricColumn { name: metric, values: Vec::new(), ages: Vec::new() });
        }
        let position = self.nodes.len();
        self.nodes.push(node);
        for (column, (_, reading)) in columns.into_iter().zip(readings) {
            if let Some(column) = self.metrics.get_mut(column) {
                column.values.resize(position, None);
                column.values.push(Some(reading.value.get()));
                column.ages.resize(position, None);
                column.ages.push(Some(self.time.as_second() - reading.at.as_second()));
            }
        }
        for column in &mut self.metrics {
            column.values.resize(position + 1, None);
            column.ages.resize(position + 1, None);
        }
        true
    }

    /// How many nodes an answer with so many metrics may have.
    #[must_use]
    pub fn most_nodes(metrics: usize) -> usize {
        MAX_NODES.min(MAX_CELLS / metrics.max(1))
    }

    /// The column of each reading, and the metrics that have none yet and get one, as far as there is room; a reading
    /// without room has a column that does not exist. Nodes have their readings in one order, so that the column is
    /// nearly always the one after that of the reading before.
    fn columns(&self, readings: &[(MetricName, Reading)]) -> (Vec<usize>, Vec<MetricName>) {
        let mut new: Vec<MetricName> = Vec::new();
        let mut next = 0;
        let column_of = |(metric, _): &(MetricName, Reading)| {
            let is_next = self.metrics.get(next).is_some_and(|column| column.name == *metric);
            let known = || self.metrics.iter().position(|column| column.name == *metric);
            let column = is_next.then_some(next).or_else(known).unwrap_or_else(|| {
                let added = new.iter().position(|other| other == metric).unwrap_or(new.len());
                let column = self.metrics.len() + added;
                if added == new.len() && column < MAX_METRICS {
                    new.push(metric.clone());
                }
                column
            });
            next = column + 1;
            column
        };
        (readings.iter().map(column_of).collect(), new)
    }

    /// The readings of the node at a position. A value that is no fraction is an error, as that of an annotation; one
    /// without a time, or with a time that does not exist, is left out.
    pub fn of_node(
        &self,
        position: usize,
    ) -> impl Iterator<Item = (&MetricName, Result<Reading, ReadingError>)> {
        self.metrics.iter().filter_map(move |column| {
            let value = (*column.values.get(position)?)?;
            let age = (*column.ages.get(position)?)?;
            let at = self.time.checked_sub(SignedDuration::from_secs(age)).ok()?;
            let ratio = Ratio::new(value).ok_or_else(|| ReadingError::Value(value.to_string()));
            Some((&column.name, ratio.map(|ratio| Reading::new(ratio, at))))
        })
    }

    /// Writes the answer.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the answer.
    ///
    /// # Errors
    ///
    /// If the text is not of the schema, or exceeds its limits.
    pub fn from_json(text: &str) -> Result<Self, ReadingsError> {
        let answer: Self = json::read(text, MAX_TEXT)?;
        answer.check()?;
        Ok(answer)
    }

    fn check(&self) -> Result<(), ReadingsError> {
        let is_version = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !(1..=MAX_VERSION).contains(&self.version.len()) || !self.version.bytes().all(is_version)
        {
            return Err(ReadingsError::Version);
        }
        let (nodes, metrics) = (self.nodes.len(), self.metrics.len());
        if metrics > MAX_METRICS || nodes > Self::most_nodes(metrics) {
            return Err(ReadingsError::TooMany { nodes, metrics });
        }
        for node in &self.nodes {
            let length = node.as_str().len();
            if !(1..=limits::NAME).contains(&length) {
                return Err(ReadingsError::Node(length));
            }
        }
        for (position, column) in self.metrics.iter().enumerate() {
            let is_repeated =
                self.metrics[..position].iter().any(|other| other.name == column.name);
            if is_repeated || MetricName::parse(column.name.as_str()).is_none() {
                return Err(ReadingsError::Metric(position));
            }
            if column.values.len() != nodes || column.ages.len() != nodes {
                return Err(ReadingsError::Column(position));
            }
        }
        Ok(())
    }
}
