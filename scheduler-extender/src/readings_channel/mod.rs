//! Reads the readings of all nodes from the annotator, each time those that are newer than the last answer.
//!
//! Invariants: an answer is applied as a whole or not at all. While none comes, readings grow old, and those of
//! annotations, which are written before that, take their place.

use std::time::Duration;

use api::readings::{MAX_TEXT, PolledReadings};

use crate::Clock;
use crate::annotator_client::{AnnotatorClient, Question, RETRY, Reads, Reply, Url};
use crate::http_client::SetupError;
use crate::metrics::Metrics;
use crate::view::View;

/// The period of reads. A read without news takes some hundred bytes.
const PERIOD: Duration = Duration::from_secs(15);

/// The pause before the first read while the watch has not listed all nodes: readings of nodes that it has not shown
/// are left out.
const UNTIL_LISTED: Duration = Duration::from_secs(1);

const PATH: &str = "/v1/readings";

/// Reads the annotator's answers.
pub(crate) struct ReadingsReader {
    annotator: AnnotatorClient,
    /// The version of the last answer.
    version: Option<String>,
    metrics: Metrics,
}

impl ReadingsReader {
    /// A reader of the annotator at `url`.
    ///
    /// # Errors
    ///
    /// Where no HTTP client can be set up.
    pub(crate) fn new(url: &Url, metrics: Metrics) -> Result<Self, SetupError> {
        let without = "those of annotations count as they get newer";
        let annotator = AnnotatorClient::new(url, "readings", without)?;
        Ok(Self { annotator, version: None, metrics })
    }
}

impl Reads for ReadingsReader {
    async fn read(&mut self, view: &View, clock: &Clock) -> Duration {
        if !view.nodes.is_listed() {
            return UNTIL_LISTED;
        }
        let since = self.version.as_ref().map(|version| format!("?since={version}"));
        let path = format!("{PATH}{}", since.unwrap_or_default());
        let question = Question { path: &path, tag: None, limit: MAX_TEXT };
        let parse = |text: &str| PolledReadings::from_json(text).map_err(|error| error.to_string());
        let read = self.annotator.read(question, parse).await;
        self.metrics.count_readings_read(read.as_ref().err(), clock());
        match read {
            Ok(Reply::New { content, .. }) => {
                view.change(|index| index.apply_polled(&content, clock()));
                self.version = Some(content.version);
                PERIOD
            }
            Ok(Reply::Unchanged) => PERIOD,
            Err(_) => RETRY,
        }
    }
}

#[cfg(test)]
mod tests;
