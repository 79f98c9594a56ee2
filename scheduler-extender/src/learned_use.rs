//! Reads the learned use of workloads from the annotator.
//!
//! Invariant: an answer is applied as a whole or not at all, and the last good one stays; after a day without one, pods
//! are estimated from their requests again.

use std::time::Duration;

use api::workloads::{MAX_TEXT, Workloads};
use axum::http::HeaderValue;
use jiff::Timestamp;

use crate::Clock;
use crate::annotator_client::{AnnotatorClient, Question, RETRY, Reads, Reply, Url};
use crate::http_client::SetupError;
use crate::view::{ByWorkload, View};

/// The period of reads. Pods are observed once a minute.
const PERIOD: Duration = Duration::from_secs(30);

const PATH: &str = "/v1/workloads";

/// Reads the annotator's answers.
pub(crate) struct UseReader {
    annotator: AnnotatorClient,
    /// The ETag of the last good answer.
    tag: Option<HeaderValue>,
}

impl UseReader {
    /// A reader of the annotator at `url`.
    ///
    /// # Errors
    ///
    /// Where no HTTP client can be set up.
    pub(crate) fn new(url: &Url) -> Result<Self, SetupError> {
        let without = "what was read last counts for a day";
        let annotator = AnnotatorClient::new(url, "learned use", without)?;
        Ok(Self { annotator, tag: None })
    }
}

impl Reads for UseReader {
    async fn read(&mut self, view: &View, clock: &Clock) -> Duration {
        let question = Question { path: PATH, tag: self.tag.as_ref(), limit: MAX_TEXT };
        let read = self.annotator.read(question, |text| parse(text, clock())).await;
        match read {
            Ok(Reply::New { content, tag }) => {
                self.tag = tag;
                view.change_learned(|learned| learned.set(content, clock()));
                PERIOD
            }
            Ok(Reply::Unchanged) => {
                view.change_learned(|learned| learned.confirm(clock()));
                PERIOD
            }
            Err(_) => {
                view.change_learned(|learned| learned.expire(clock()));
                if view.current().learned.is_empty() {
                    // With the tag, an unchanged list would be answered without content.
                    self.tag = None;
                }
                RETRY
            }
        }
    }
}

fn parse(text: &str, now: Timestamp) -> Result<ByWorkload, String> {
    let answer = Workloads::from_json(text).map_err(|error| error.to_string())?;
    let mut learned = ByWorkload::default();
    for workload in &answer.workloads {
        let id = workload.id();
        learned.insert(id, workload.learned(), workload.pod_minutes, workload.last_seen, now);
    }
    Ok(learned)
}
