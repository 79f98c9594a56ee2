//! What an exporter said, judged: which values may be written, and what the others lack.
//!
//! Invariants: a value that comes out of here is a number that the exporter sent, of a window at
//! least half full and as new as the exporter itself would have it. Anything else (`null`, a text,
//! a negative number, a field that is missing) is absent. Ages are told by the node's own clock
//! alone, the answer's `Date` against the values' timestamps, so that a clock that is wrong loses
//! nothing.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use placement::units::{MetricName, Ratio};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::measured::Measurements;

/// A window less full than this says too little of the node to place pods by.
const HALF: f64 = 0.5;

/// No signal is near it, in percent or in bytes a second; an annotation of 300 digits helps nobody.
const ABSURD: f64 = 1e15;

/// An exporter shows no value longer than so many of its sample intervals.
const MISSED_SAMPLES: i64 = 3;

/// The longest sample interval that an exporter can have.
const LONGEST_INTERVAL: i64 = 60;

/// `Date` has whole seconds, and a node's clock may be set between two looks at it.
const SLACK: SignedDuration = SignedDuration::from_mins(1);

/// In which form an exporter tells its statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `/v1/statistics`: each value with its time, coverage and window.
    Detailed,
    /// `/statistics`: bare values, as other exporters and older versions tell them.
    Flat,
}

impl Form {
    /// The path to ask for.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Detailed => "/v1/statistics",
            Self::Flat => "/statistics",
        }
    }
}

/// What an exporter said of one metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Said {
    /// Its value, as a fraction.
    Value(Ratio),
    /// A value that is not to be written.
    Lacks(Lack),
}

/// What a value lacks to be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lack {
    /// Less than half of its window holds samples.
    Coverage {
        /// The part that does, from 0 to 1.
        part: f64,
        /// The time until half of it does at the earliest, where the window is known.
        half_in: Option<SignedDuration>,
    },
    /// Its newest sample is older than any value that the exporter would show.
    Age(SignedDuration),
}

impl Lack {
    /// A word for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Coverage { .. } => "coverage",
            Self::Age(_) => "age",
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coverage { part, .. } => {
                write!(f, "{:.0}% of its window holds samples; half must", 100.0 * part)
            }
            Self::Age(age) => write!(f, "its newest sample is {} s old", age.as_secs()),
        }
    }
}

/// What an exporter said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    metrics: BTreeMap<String, Said>,
    cards: Measurements,
}

impl Statistics {
    /// The metric, where the exporter said something of it that can be understood.
    #[must_use]
    pub fn get(&self, metric: &MetricName) -> Option<Said> {
        self.metrics.get(metric.as_str()).copied()
    }

    /// Everything that was understood.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Said)> {
        self.metrics.iter().map(|(metric, said)| (metric.as_str(), *said))
    }

    /// What was measured of each card; the flat form tells nothing of it, for it names no card.
    #[must_use]
    pub fn into_cards(self) -> Measurements {
        self.cards
    }

    /// Reads an answer; `date` is its `Date`, when it was given by the node's own clock.
    ///
    /// # Errors
    /// When the body is not of that form.
    pub fn parse(form: Form, body: &[u8], date: Option<Timestamp>) -> serde_json::Result<Self> {
        match form {
            Form::Detailed => Self::detailed(body, date),
            Form::Flat => Self::flat(body),
        }
    }

    fn detailed(body: &[u8], date: Option<Timestamp>) -> serde_json::Result<Self> {
        let answer: Answer = serde_json::from_slice(body)?;
        let oldest = date.and_then(|date| date.checked_sub(answer.longest_life()).ok());
        let mut all = Self::default();
        for (metric, detail) in answer.values {
            let Some(detail) = detail.read() else { continue };
            let Some(said) = detail.judge(date, oldest) else { continue };
            if let (Said::Value(_), Some(Loosely::Read(card))) = (said, &detail.instance) {
                all.cards.take(&metric, card, detail.value);
            }
            all.metrics.insert(metric, said);
        }
        Ok(all)
    }

    fn flat(body: &[u8]) -> serde_json::Result<Self> {
        let object: BTreeMap<String, Loosely<f64>> = serde_json::from_slice(body)?;
        let said = |(metric, number): (String, Loosely<f64>)| {
            Some((metric, Said::Value(ratio(number.read()?)?)))
        };
        let metrics = object.into_iter().filter_map(said).collect();
        Ok(Self { metrics, ..Self::default() })
    }
}

fn ratio(percent: f64) -> Option<Ratio> {
    Ratio::from_percent(percent).filter(|_| percent < ABSURD)
}

/// What is there if it is a `T`; whatever else it is costs nobody but itself.
#[derive(Deserialize)]
#[serde(untagged)]
enum Loosely<T> {
    Read(T),
    Other(IgnoredAny),
}

impl<T> Loosely<T> {
    fn read(self) -> Option<T> {
        match self {
            Self::Read(read) => Some(read),
            Self::Other(_) => None,
        }
    }
}

/// `/v1/statistics`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    sample_interval_seconds: Option<Loosely<i64>>,
    values: BTreeMap<String, Loosely<Detail>>,
}

impl Answer {
    /// How long the exporter shows a value after its newest sample.
    fn longest_life(&self) -> SignedDuration {
        let seconds = match self.sample_interval_seconds {
            Some(Loosely::Read(seconds)) => seconds.clamp(1, LONGEST_INTERVAL),
            _ => LONGEST_INTERVAL,
        };
        SignedDuration::from_secs(MISSED_SAMPLES * seconds) + SLACK
    }
}

/// One of its values.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    value: f64,
    timestamp: Timestamp,
    coverage: f64,
    window_seconds: Option<u32>,
    /// The card, device or mount that it is of.
    instance: Option<Loosely<String>>,
}

impl Detail {
    fn judge(&self, date: Option<Timestamp>, oldest: Option<Timestamp>) -> Option<Said> {
        let value = ratio(self.value)?;
        if !(0.0..=1.0).contains(&self.coverage) {
            return None;
        }
        let age = date.map(|date| date.duration_since(self.timestamp));
        let age = age.filter(|_| oldest.is_some_and(|oldest| self.timestamp < oldest));
        Some(match age {
            Some(age) => Said::Lacks(Lack::Age(age)),
            None if self.coverage < HALF => Said::Lacks(self.gap()),
            None => Said::Value(value),
        })
    }

    fn gap(&self) -> Lack {
        let part = self.coverage;
        let missing =
            |window: u32| SignedDuration::from_secs_f64((HALF - part) * f64::from(window));
        Lack::Coverage { part, half_in: self.window_seconds.map(missing) }
    }
}

#[cfg(test)]
#[path = "statistics_tests.rs"]
mod tests;
