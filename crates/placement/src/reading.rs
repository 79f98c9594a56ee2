//! One value of one metric at one time, and its annotation codec.
//!
//! Invariant: what [`ReadingCodec::encode`] writes, [`ReadingCodec::decode`] reads back to five
//! decimals and the second. Where a reading came from is nobody's business here.
//!
//! The text is crane's: a fraction with five decimals, a comma, and a local time with a literal `Z`
//! (crane formats `2006-01-02T15:04:05Z` in the zone of its `TZ`, not in UTC). The zone is
//! therefore a setting of the codec; ours is UTC unless crane's own components stay beside us.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::units::Ratio;

const TIME_FORMAT: &str = "%Y-%m-%dT%H:%M:%SZ";

/// One value of one metric, with what a reader needs to judge it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The value as a fraction: 0 idle, 1 full.
    pub value: Ratio,
    /// When it was taken.
    pub at: Timestamp,
    /// How much of the metric's window the value rests on, where the source says so.
    pub coverage: Option<Ratio>,
}

impl Reading {
    /// A reading whose source tells no coverage.
    pub fn new(value: Ratio, at: Timestamp) -> Self {
        Self { value, at, coverage: None }
    }

    /// Whether the reading still counts: strictly younger than `max_age`, as in crane. A reading
    /// from the future counts as fresh, since clocks of two machines differ.
    pub fn is_fresh(&self, now: Timestamp, max_age: SignedDuration) -> bool {
        now.duration_since(self.at) < max_age
    }
}

/// Why an annotation's text is not a reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// Not exactly one comma.
    #[error("expected `<value>,<time>`, e.g. `0.63012,2026-11-20T09:00:00Z`, found `{0}`")]
    Shape(String),
    /// The value is no finite number, or negative.
    #[error("expected a number of at least 0 before the comma, found `{0}`")]
    Value(String),
    /// The time does not parse, or does not exist in the codec's zone.
    #[error("expected a time like `2026-11-20T09:00:00Z` after the comma, found `{0}`")]
    Time(String),
}

/// Reads and writes readings as node annotations, in one time zone.
#[derive(Debug, Clone)]
pub struct ReadingCodec {
    zone: TimeZone,
}

impl Default for ReadingCodec {
    fn default() -> Self {
        Self::new(TimeZone::UTC)
    }
}

impl ReadingCodec {
    /// A codec whose times are local to `zone`.
    pub fn new(zone: TimeZone) -> Self {
        Self { zone }
    }

    /// `0.63012,2026-11-20T09:00:00Z`.
    pub fn encode(&self, reading: &Reading) -> String {
        format!("{:.5},{}", reading.value.get(), self.encode_time(reading.at))
    }

    /// Reads what [`ReadingCodec::encode`] or crane's annotator wrote.
    ///
    /// # Errors
    ///
    /// Says which half of the text is wrong and what was expected there.
    pub fn decode(&self, text: &str) -> Result<Reading, ReadingError> {
        let (value, time) = split(text)?;
        let ratio = value.parse().ok().and_then(Ratio::new);
        let ratio = ratio.ok_or_else(|| ReadingError::Value(clip(value)))?;
        Ok(Reading::new(ratio, self.decode_time(time)?))
    }

    /// `2,2026-11-20T09:00:00Z`, the form of `node_hot_value`.
    pub fn encode_count(&self, count: u64, at: Timestamp) -> String {
        format!("{count},{}", self.encode_time(at))
    }

    /// Reads what [`ReadingCodec::encode_count`] or crane wrote.
    ///
    /// # Errors
    ///
    /// As [`ReadingCodec::decode`].
    pub fn decode_count(&self, text: &str) -> Result<(u64, Timestamp), ReadingError> {
        let (count, time) = split(text)?;
        let count = count.parse().map_err(|_| ReadingError::Value(clip(count)))?;
        Ok((count, self.decode_time(time)?))
    }

    fn encode_time(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime(TIME_FORMAT).to_string()
    }

    fn decode_time(&self, text: &str) -> Result<Timestamp, ReadingError> {
        let wrong = |_| ReadingError::Time(clip(text));
        let civil: DateTime =
            strtime::parse(TIME_FORMAT, text).and_then(|t| t.to_datetime()).map_err(wrong)?;
        self.zone.to_timestamp(civil).map_err(wrong)
    }
}

fn split(text: &str) -> Result<(&str, &str), ReadingError> {
    let shape = || ReadingError::Shape(clip(text));
    let (value, time) = text.split_once(',').ok_or_else(shape)?;
    if time.contains(',') { Err(shape()) } else { Ok((value, time)) }
}

/// Annotations are untrusted: an error repeats at most 64 characters of one.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}
