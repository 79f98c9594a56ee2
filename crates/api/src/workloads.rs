//! The answer of the annotator's `GET /v1/workloads`: what pods of each workload were seen to use.
//!
//! The extender reads it. 10,000 workloads with usual names take some 4 MiB.

use jiff::Timestamp;
use placement::estimate::{self, LearnedUse};
use placement::names::limits;
use placement::resources::PerResource;
use placement::workload::WorkloadId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// The most bytes of the text. [`MAX_WORKLOADS`] with the longest names take some 9 MiB.
pub const MAX_TEXT: usize = 16 << 20;

/// The most workloads in an answer.
pub const MAX_WORKLOADS: usize = 10_000;

/// What the pods of all workloads were seen to use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workloads {
    /// The time of the answer, RFC 3339.
    pub time: Timestamp,
    /// The workloads, in no order.
    #[schemars(length(max = MAX_WORKLOADS))]
    pub workloads: Vec<Workload>,
}

/// What the pods of one workload were seen to use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// The namespace.
    #[schemars(length(max = limits::LABEL))]
    pub namespace: String,
    /// The controller's kind; Pod without a controller.
    #[schemars(length(max = limits::LABEL))]
    pub kind: String,
    /// The controller's name. Of pods that run once, the name of an image, `@`, and a hash of the containers' names,
    /// images and requests.
    #[schemars(length(max = limits::NAME))]
    pub name: String,
    /// A hash of the containers' names, images and commands, 16 hexadecimal digits. Of pods that run once, of the pod's
    /// name and the commands, without what differs from run to run.
    #[serde(with = "hexadecimal")]
    #[schemars(with = "String", regex(pattern = "^[0-9a-f]{16}$"))]
    pub template: u64,
    /// When one of its pods was last observed, RFC 3339.
    pub last_seen: Timestamp,
    /// How long its pods were observed, in minutes times pods. What was observed a day before `lastSeen` counts half.
    pub pod_minutes: f64,
    /// CPU, in cores; absent if too little was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Learned>,
    /// Memory, in bytes; absent if too little was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Learned>,
}

/// What the pods of a workload were seen to use of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Learned {
    /// What a pod uses.
    #[serde(rename = "use")]
    pub amount: Distribution,
    /// What a pod uses divided by its request. Absent if its pods request nothing, or very little compared with what
    /// they use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_request: Option<Distribution>,
}

/// Statistics of one pod's use in one minute. Newer minutes weigh more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Why an answer is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadsError {
    /// Too long, or not JSON of the schema.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Too many workloads.
    #[error("{0} workloads, where at most {MAX_WORKLOADS} are accepted")]
    TooMany(usize),
    /// A name longer than any object has.
    #[error("{field} of {length} bytes, where at most {limit} are accepted")]
    LongName {
        /// Which field.
        field: &'static str,
        /// Its bytes.
        length: usize,
        /// Bytes accepted.
        limit: usize,
    },
    /// A statistic that is negative or not finite.
    #[error("a use of {0}, where 0 or more is expected")]
    Amount(String),
}

impl Workloads {
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
    pub fn from_json(text: &str) -> Result<Self, WorkloadsError> {
        let answer: Self = json::read(text, MAX_TEXT)?;
        if answer.workloads.len() > MAX_WORKLOADS {
            return Err(WorkloadsError::TooMany(answer.workloads.len()));
        }
        answer.workloads.iter().try_for_each(Workload::check)?;
        Ok(answer)
    }
}

impl Workload {
    /// What was learned of `id`. Numbers are rounded to four digits, which is more than their accuracy.
    #[must_use]
    pub fn new(
        id: &WorkloadId,
        learned: &PerResource<Option<LearnedUse>>,
        pod_minutes: f64,
        last_seen: Timestamp,
    ) -> Self {
        Self {
            namespace: id.namespace.to_string(),
            kind: id.kind.to_string(),
            name: id.name.to_string(),
            template: id.template,
            last_seen,
            pod_minutes: rounded(pod_minutes),
            cpu: learned.cpu.map(Learned::from),
            memory: learned.memory.map(Learned::from),
        }
    }

    /// The workload's identity.
    #[must_use]
    pub fn id(&self) -> WorkloadId {
        WorkloadId {
            namespace: self.namespace.as_str().into(),
            kind: self.kind.as_str().into(),
            name: self.name.as_str().into(),
            template: self.template,
        }
    }

    /// What was learned.
    #[must_use]
    pub fn learned(&self) -> PerResource<Option<LearnedUse>> {
        PerResource {
            cpu: self.cpu.map(LearnedUse::from),
            memory: self.memory.map(LearnedUse::from),
        }
    }

    fn check(&self) -> Result<(), WorkloadsError> {
        check_length("namespace", &self.namespace, limits::LABEL)?;
        check_length("kind", &self.kind, limits::LABEL)?;
        check_length("name", &self.name, limits::NAME)?;
        for learned in self.cpu.iter().chain(&self.memory) {
            learned.amount.check()?;
            learned.by_request.iter().try_for_each(Distribution::check)?;
        }
        Ok(())
    }
}

fn check_length(field: &'static str, text: &str, limit: usize) -> Result<(), WorkloadsError> {
    let length = text.len();
    if length <= limit { Ok(()) } else { Err(WorkloadsError::LongName { field, length, limit }) }
}

impl Distribution {
    fn check(&self) -> Result<(), WorkloadsError> {
        let Self { mean, p50, p90, p95, p99 } = *self;
        for value in [mean, p50, p90, p95, p99] {
            if !value.is_finite() || value < 0.0 {
                return Err(WorkloadsError::Amount(value.to_string()));
            }
        }
        Ok(())
    }
}

impl From<LearnedUse> for Learned {
    fn from(learned: LearnedUse) -> Self {
        Self { amount: learned.amount.into(), by_request: learned.by_request.map(Into::into) }
    }
}

impl From<Learned> for LearnedUse {
    fn from(learned: Learned) -> Self {
        Self { amount: learned.amount.into(), by_request: learned.by_request.map(Into::into) }
    }
}

impl From<estimate::Distribution> for Distribution {
    fn from(of: estimate::Distribution) -> Self {
        Self {
            mean: rounded(of.mean),
            p50: rounded(of.p50),
            p90: rounded(of.p90),
            p95: rounded(of.p95),
            p99: rounded(of.p99),
        }
    }
}

impl From<Distribution> for estimate::Distribution {
    fn from(of: Distribution) -> Self {
        Self { mean: of.mean, p50: of.p50, p90: of.p90, p95: of.p95, p99: of.p99 }
    }
}

/// Rounds to four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Writes a 64-bit number as a text: in many languages JSON numbers have 53 bits.
mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        number.ok_or_else(|| D::Error::custom("expected 16 hexadecimal digits"))
    }
}
