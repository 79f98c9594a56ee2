//! An exporter's answer: which values may be written on the Node, and why the others may not.
//!
//! Invariants: a [`MetricValue::Usable`] is a number that the exporter sent, from a window that is at least half full,
//! with a newest sample no older than any value that the exporter itself would show. Anything that is not such a number
//! (`null`, a text, a negative number, a missing field) is absent, never 0.
//!
//! A young window cannot be full: before the node booted, or joined the cluster, there was nothing to sample. Half of
//! the time since then is enough for it, so that a new node is not unknown for half a day. The age of a sample is
//! computed from the node's own clock alone (the answer's `Date` header less the value's timestamp) and the time since
//! the boot is a duration, so that a node's wrong clock does no harm.

mod entries;

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use placement::units::{MetricName, Ratio};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use self::entries::Entries;
pub use self::entries::Wanted;
use super::gpus::GpuMeasurements;

/// The smallest coverage of a window whose value is written.
const MIN_COVERAGE: f64 = 0.5;

/// No window counts as young before the node has this age, at which five-minute windows are half full: the first busy
/// seconds after a boot say little about a node.
const MIN_AGE: SignedDuration = SignedDuration::from_secs(150);

/// Larger values are absent: no signal comes near it, in percent or in bytes a second, and it would become an
/// annotation of hundreds of digits.
const MAX_VALUE: f64 = 1e15;

/// The number of sample intervals for which an exporter shows a value after its newest sample.
const MAX_MISSED_SAMPLES: i64 = 3;

/// The longest sample interval that an exporter can have, in seconds.
const MAX_INTERVAL: i64 = 60;

/// Allowed on top of the age of a newest sample: `Date` has whole seconds, and the node's clock may be set between a
/// sample and an answer.
const AGE_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

/// The two formats of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `/v1/statistics`: each value with its timestamp, coverage and window.
    Detailed,
    /// `/statistics`: bare values, as crane's exporters and older versions answer.
    Flat,
}

impl Format {
    /// The path to request.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Detailed => "/v1/statistics",
            Self::Flat => "/statistics",
        }
    }
}

/// An exporter's value of one metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue {
    /// May be written. A fraction: the exporter's percentage divided by 100.
    Usable(Ratio),
    /// Must not be written.
    HeldBack(HoldReason),
}

/// Why a value is held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HoldReason {
    /// Too little of its window holds samples.
    Coverage {
        /// The part that holds samples, 0 to 1.
        coverage: f64,
        /// The shortest time until enough of it does; `None` where the length of the window is not known.
        ready_in: Option<SignedDuration>,
    },
    /// The newest sample has this age, and is older than any value that the exporter would show.
    Age(SignedDuration),
}

impl HoldReason {
    /// All values of the label `reason` in metrics.
    pub const LABELS: [&'static str; 2] = ["coverage", "age"];

    /// The value of the label `reason` in metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Coverage { .. } => "coverage",
            Self::Age(_) => "age",
        }
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coverage { coverage, .. } => write!(
                f,
                "{:.0}% of its window holds samples; half of it must, or half of the node's age",
                100.0 * coverage
            ),
            Self::Age(age) => write!(f, "its newest sample is {} s old", age.as_secs()),
        }
    }
}

/// The context of an answer, except its body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerContext {
    /// The `Date` header: the time of the answer by the node's clock.
    pub date: Option<Timestamp>,
    /// The time since the Node object was created, by the annotator's clock.
    pub since_creation: Option<SignedDuration>,
}

/// An exporter's answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    values: BTreeMap<String, MetricValue>,
    gpus: GpuMeasurements,
    uptime: Option<SignedDuration>,
}

impl Statistics {
    /// The value of a metric; `None` if the answer does not have it, or has no valid value.
    #[must_use]
    pub fn get(&self, metric: &MetricName) -> Option<MetricValue> {
        self.values.get(metric.as_str()).copied()
    }

    /// All values by the name of their metric.
    pub fn iter(&self) -> impl Iterator<Item = (&str, MetricValue)> {
        self.values.iter().map(|(metric, value)| (metric.as_str(), *value))
    }

    /// The measurements of each GPU. Empty in the flat format, which does not name GPUs.
    #[must_use]
    pub fn into_gpus(self) -> GpuMeasurements {
        self.gpus
    }

    /// The time since the node booted, 0 or more; `None` if the exporter does not report it.
    #[must_use]
    pub fn uptime(&self) -> Option<SignedDuration> {
        self.uptime
    }

    /// Parses an answer's body as a whole.
    ///
    /// # Errors
    /// When the body is not JSON of that format.
    pub fn parse(format: Format, body: &[u8], context: AnswerContext) -> serde_json::Result<Self> {
        Self::parse_wanted(format, body, context, Wanted::All)
    }

    /// Parses the wanted values of an answer's body. The rest must be JSON and is skipped.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_wanted(
        format: Format,
        body: &[u8],
        context: AnswerContext,
        wanted: Wanted<'_>,
    ) -> serde_json::Result<Self> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let statistics = match format {
            Format::Detailed => {
                let body = BodySeed(wanted).deserialize(&mut json)?;
                Self::judge(body, context)
            }
            Format::Flat => Self::from_flat(Entries::new(wanted).deserialize(&mut json)?),
        };
        json.end()?;
        Ok(statistics)
    }

    fn judge(body: StatisticsBody, context: AnswerContext) -> Self {
        let limits = ValueLimits::of(&body, context);
        let mut all = Self { uptime: body.uptime(), ..Self::default() };
        for (metric, detail) in body.values {
            let Some(detail) = detail.valid() else { continue };
            let Some(value) = detail.judge(&limits) else { continue };
            if let (MetricValue::Usable(_), Some(Lenient::Valid(gpu))) = (value, &detail.instance) {
                all.gpus.record(&metric, gpu, detail.value);
            }
            all.values.insert(metric, value);
        }
        all
    }

    fn from_flat(values: BTreeMap<String, Lenient<f64>>) -> Self {
        let mut all = Self::default();
        for (metric, number) in values {
            if let Some(value) = number.valid().and_then(fraction) {
                all.values.insert(metric, MetricValue::Usable(value));
            }
        }
        all
    }
}

/// A percentage as a fraction; `None` if it is out of range.
fn fraction(percent: f64) -> Option<Ratio> {
    if percent < MAX_VALUE { Ratio::from_percent(percent) } else { None }
}

/// A JSON value that should be a `T`. An invalid value does not make the rest of the answer unreadable.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lenient<T> {
    Valid(T),
    Invalid(IgnoredAny),
}

impl<T> Lenient<T> {
    fn valid(self) -> Option<T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Invalid(_) => None,
        }
    }
}

/// The body of `/v1/statistics`.
struct StatisticsBody {
    sample_interval_seconds: Option<Lenient<i64>>,
    uptime_seconds: Option<Lenient<f64>>,
    values: BTreeMap<String, Lenient<Detail>>,
}

/// The fields of the body.
#[derive(Deserialize)]
enum Field {
    #[serde(rename = "sampleIntervalSeconds")]
    SampleInterval,
    #[serde(rename = "uptime_seconds")]
    Uptime,
    #[serde(rename = "values")]
    Values,
    #[serde(other)]
    Other,
}

/// Reads the body with its wanted values.
struct BodySeed<'w>(Wanted<'w>);

impl<'de> DeserializeSeed<'de> for BodySeed<'_> {
    type Value = StatisticsBody;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<StatisticsBody, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BodySeed<'_> {
    type Value = StatisticsBody;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with `values`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StatisticsBody, A::Error> {
        let mut sample_interval_seconds = None;
        let mut uptime_seconds = None;
        let mut entries = None;
        while let Some(field) = map.next_key()? {
            match field {
                Field::SampleInterval => sample_interval_seconds = map.next_value()?,
                Field::Uptime => uptime_seconds = map.next_value()?,
                Field::Values => entries = Some(map.next_value_seed(Entries::new(self.0))?),
                Field::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let values = entries.ok_or_else(|| A::Error::missing_field("values"))?;
        Ok(StatisticsBody { sample_interval_seconds, uptime_seconds, values })
    }
}

impl StatisticsBody {
    /// The largest age of a value's newest sample.
    fn max_age(&self) -> SignedDuration {
        let interval = match self.sample_interval_seconds {
            Some(Lenient::Valid(seconds)) => seconds.clamp(1, MAX_INTERVAL),
            _ => MAX_INTERVAL,
        };
        SignedDuration::from_secs(MAX_MISSED_SAMPLES * interval) + AGE_TOLERANCE
    }

    fn uptime(&self) -> Option<SignedDuration> {
        let Some(Lenient::Valid(seconds)) = self.uptime_seconds else { return None };
        SignedDuration::try_from_secs_f64(seconds).ok().filter(|uptime| !uptime.is_negative())
    }
}

/// The limits that decide which values of one answer are usable.
struct ValueLimits {
    /// The time of the answer by the node's clock.
    date: Option<Timestamp>,
    /// The oldest allowed time of a value's newest sample, by the node's clock.
    oldest: Option<Timestamp>,
    /// The time since the node booted or joined the cluster, whichever is shorter.
    age: Option<SignedDuration>,
}

impl ValueLimits {
    fn of(body: &StatisticsBody, context: AnswerContext) -> Self {
        let date = context.date;
        let oldest = date.and_then(|date| date.checked_sub(body.max_age()).ok());
        // Negative if the annotator's clock is behind the API server's; it is unknown then.
        let since_creation = context.since_creation.filter(|span| !span.is_negative());
        let age = body.uptime().into_iter().chain(since_creation).min();
        Self { date, oldest, age }
    }
}

/// One value in the body of `/v1/statistics`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    /// In percent.
    value: f64,
    /// Of the newest sample in the window, by the node's clock.
    timestamp: Timestamp,
    /// The part of the window that holds samples, 0 to 1.
    coverage: f64,
    /// Absent where the value is a single sample.
    window_seconds: Option<u32>,
    /// The GPU (by UUID), disk, interface or mount point that the signal belongs to.
    instance: Option<Lenient<String>>,
}

impl Detail {
    /// `None` if the value or the coverage is out of range.
    fn judge(&self, limits: &ValueLimits) -> Option<MetricValue> {
        let value = fraction(self.value)?;
        if !(0.0..=1.0).contains(&self.coverage) {
            return None;
        }
        let is_too_old = limits.oldest.is_some_and(|oldest| self.timestamp < oldest);
        let age = limits.date.map(|date| date.duration_since(self.timestamp));
        Some(match age {
            Some(age) if is_too_old => MetricValue::HeldBack(HoldReason::Age(age)),
            _ => self.judge_coverage(value, limits.age),
        })
    }

    fn judge_coverage(&self, value: Ratio, age: Option<SignedDuration>) -> MetricValue {
        let coverage = self.coverage;
        if coverage >= MIN_COVERAGE {
            return MetricValue::Usable(value);
        }
        let window = self.window_seconds.map(f64::from);
        let wait = window.map(|window| seconds_to_wait(coverage * window, window, age));
        if wait.is_some_and(|seconds| seconds <= 0.0) {
            return MetricValue::Usable(value);
        }
        let ready_in = wait.map(SignedDuration::from_secs_f64);
        MetricValue::HeldBack(HoldReason::Coverage { coverage, ready_in })
    }
}

/// The seconds until `covered` seconds of samples are enough, if the exporter goes on sampling; 0 or less if they
/// already are. Enough is half of the window, or half of the node's age from [`MIN_AGE`] on.
fn seconds_to_wait(covered: f64, window: f64, age: Option<SignedDuration>) -> f64 {
    let half_of_window = MIN_COVERAGE * window - covered;
    let Some(age) = age.map(|age| age.as_secs_f64()) else { return half_of_window };
    // After t seconds: covered + t ≥ MIN_COVERAGE × (age + t).
    let half_of_age = (MIN_COVERAGE * age - covered) / (1.0 - MIN_COVERAGE);
    half_of_window.min(half_of_age.max(MIN_AGE.as_secs_f64() - age))
}

#[cfg(test)]
mod tests;
