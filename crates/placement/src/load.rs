//! A node's load under a policy: may it take a pod, how good is it, how hot.
//!
//! The rules are crane's: a missing or stale reading never rejects a node, but scores nothing;
//! recent bindings cost 10 of 100 points a degree; DaemonSet pods pass the filter.

mod bindings;
mod filter;
mod score;

pub use bindings::Bindings;
pub use filter::{Overload, filter};
pub use score::{LoadScore, Percent, Term, explain, score};

use jiff::{SignedDuration, Timestamp};

use crate::names;
use crate::policy::{HotRule, LoadPolicy};
use crate::reading::{Reading, ReadingCodec};
use crate::units::MetricName;

/// How long crane honours a `node_hot_value` annotation.
const HOT_NOTE_MAX_AGE: SignedDuration = SignedDuration::from_mins(5);

/// What is known of one node's load, laid out for one policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeLoad {
    /// One reading per [`LoadPolicy::metrics`] slot; `None` where there is none.
    readings: Box<[Option<Reading>]>,
    /// crane's own count, where its annotator runs beside ours.
    noted_hot: Option<(u64, Timestamp)>,
    /// Pods bound to the node of late.
    pub bindings: Bindings,
}

impl NodeLoad {
    /// Reads a node's annotations through `annotation` (key to text). Texts that do not parse count
    /// as missing and are handed to `refused` with their key.
    pub fn from_annotations<'a>(
        policy: &LoadPolicy,
        codec: &ReadingCodec,
        annotation: impl Fn(&str) -> Option<&'a str>,
        mut refused: impl FnMut(&str, crate::reading::ReadingError),
    ) -> Self {
        let read = |key: &str| codec.decode(annotation(key)?).map_err(|e| refused(key, e)).ok();
        let readings = policy.metrics.iter().map(MetricName::as_str).map(read).collect();
        let noted_hot = annotation(names::HOT_VALUE).and_then(|text| codec.decode_count(text).ok());
        Self { readings, noted_hot, bindings: Bindings::default() }
    }

    /// The reading in `slot` while it is fresh.
    fn fresh(
        &self,
        slot: usize,
        max_age: Option<SignedDuration>,
        now: Timestamp,
    ) -> Option<Reading> {
        let reading = (*self.readings.get(slot)?)?;
        reading.is_fresh(now, max_age?).then_some(reading)
    }

    /// Degrees of heat from recent bindings: what we counted ourselves, or crane's note if higher.
    pub fn hot_value(&self, rules: &[HotRule], now: Timestamp) -> u64 {
        let counted = self.bindings.hot_value(rules, now);
        let noted = self.noted_hot.filter(|(_, at)| now.duration_since(*at) < HOT_NOTE_MAX_AGE);
        noted.map_or(counted, |(hot, _)| hot.max(counted))
    }
}

/// Whether the filter applies to a pod at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodKind {
    /// Owned by a DaemonSet: bound to its node, however loaded that is.
    Daemon,
    /// Any other pod.
    Ordinary,
}
