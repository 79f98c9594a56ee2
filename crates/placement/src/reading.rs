//! One value of one metric at one time, and its annotation codec.
//!
//! Invariant: what [`ReadingCodec::encode`] writes, [`ReadingCodec::decode`] reads back to five
//! decimals and the second. Missing is never zero: a text that is no reading is an error.
//!
//! The text is crane's: a fraction with five decimals, a comma, and a local time with a literal `Z`
//! (crane formats `2006-01-02T15:04:05Z` in the zone of its `TZ`, not in UTC). The zone is
//! therefore a setting of the codec: UTC, unless crane's own components run beside ours.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::policy::metric;
use crate::units::{MetricName, Ratio};

/// How far ahead of the reader's clock a reading may be. Clocks of two machines differ by seconds;
/// a time zone, the usual cause of more, by at least a quarter of an hour.
pub(crate) const MAX_AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// For how long crane's readers honour a hot value.
pub const HOT_VALUE_MAX_AGE: SignedDuration = SignedDuration::from_mins(5);

/// The largest plausible fraction of a `*_usage_*` or `cpu_busy_*` metric. Rounding takes a full node a little above
/// 1; a writer of percentages is above this from 1.1% on.
const MAX_USAGE: f64 = 1.1;

/// One value of one metric, and when it was taken.
///
/// # Examples
///
/// ```
/// use jiff::SignedDuration;
/// use placement::reading::ReadingCodec;
///
/// let reading = ReadingCodec::default().decode("0.63012,2026-11-20T09:00:00Z")?;
/// assert_eq!(reading.value.get(), 0.63012);
/// let two_minutes_later = reading.at + SignedDuration::from_mins(2);
/// assert!(reading.is_fresh(two_minutes_later, SignedDuration::from_mins(8)));
/// # Ok::<(), placement::reading::ReadingError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The value as a fraction: 0 idle, 1 full. Infinite where crane's annotator wrote `+Inf`.
    pub value: Ratio,
    /// When it was taken, to the second.
    pub at: Timestamp,
}

impl Reading {
    /// A reading of `value`, taken at `at`.
    pub fn new(value: Ratio, at: Timestamp) -> Self {
        Self { value, at }
    }

    /// The reading as its readers get it: its value has five decimals.
    #[must_use]
    pub fn as_written(self) -> Self {
        let read = number(&decimals(self.value)).and_then(Ratio::or_infinite);
        Self { value: read.unwrap_or(self.value), ..self }
    }

    /// Whether the reading counts at `now`: strictly younger than `max_age`, as in crane, and at most
    /// [`MAX_AHEAD`] ahead of `now`.
    pub fn is_fresh(&self, now: Timestamp, max_age: SignedDuration) -> bool {
        is_fresh(self.at, now, max_age)
    }

    /// Checks whether the reading is plausible, which its text alone does not show.
    ///
    /// # Errors
    ///
    /// [`Implausible::Ahead`] where the reading is more than [`MAX_AHEAD`] ahead of `now`,
    /// [`Implausible::NotAFraction`] where a usage is finite and far above 1. `+Inf` passes: crane's
    /// annotator writes it for a division by zero, and its filter rejects the node.
    pub fn check(self, metric: &MetricName, now: Timestamp) -> Result<Self, Implausible> {
        if is_far_ahead(self.at, now) {
            return Err(Implausible::Ahead(self.at.duration_since(now)));
        }
        let value = self.value.get();
        if is_usage(metric) && value.is_finite() && value > MAX_USAGE {
            return Err(Implausible::NotAFraction(value));
        }
        Ok(self)
    }
}

/// The newer of two readings of one metric; of two of one time the second. One that is more than [`MAX_AHEAD`] ahead of
/// `now`, as after the clock was set back, gives way to one that is not.
#[must_use]
pub fn newest(one: Option<Reading>, other: Option<Reading>, now: Timestamp) -> Option<Reading> {
    let counts = |reading: &Reading| !is_far_ahead(reading.at, now);
    match (one.filter(counts), other.filter(counts)) {
        (Some(one), Some(other)) => Some(if one.at > other.at { one } else { other }),
        (known, newer) => newer.or(known).or(other).or(one),
    }
}

/// Whether something of the time `at` counts at `now`: younger than `max_age`, at most [`MAX_AHEAD`] ahead.
pub fn is_fresh(at: Timestamp, now: Timestamp, max_age: SignedDuration) -> bool {
    now.duration_since(at) < max_age && !is_far_ahead(at, now)
}

/// Whether `at` is more than [`MAX_AHEAD`] after `now`: a wrong clock or another time zone wrote it.
pub fn is_far_ahead(at: Timestamp, now: Timestamp) -> bool {
    at.duration_since(now) > MAX_AHEAD
}

/// Whether a metric is a part of a whole. `load_usage` is the load average by CPU, and has no upper
/// bound.
fn is_usage(metric: &MetricName) -> bool {
    let name = metric.as_str();
    metric::split(name).is_some() && !name.starts_with("load_usage_")
}

/// Why a well-formed reading is implausible. It counts as missing.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Implausible {
    /// Its time is so far ahead of the reader's clock.
    #[error(
        "its time is {} s ahead: does its writer use another time zone (--time-zone), or is a clock wrong?",
        .0.as_secs()
    )]
    Ahead(SignedDuration),
    /// A usage far above 1.
    #[error("{0} is no fraction of 1: does its writer write percentages?")]
    NotAFraction(f64),
}

impl Implausible {
    /// A word for metrics: `ahead` or `not-a-fraction`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Ahead(_) => "ahead",
            Self::NotAFraction(_) => "not-a-fraction",
        }
    }
}

/// crane's count of recent bindings, as its own annotator writes it: `node_hot_value`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotValueNote {
    /// Each whole one costs 10 of 100 points. Not negative, finite. crane reads a float.
    pub value: f64,
    /// When it was counted.
    pub at: Timestamp,
}

/// Why an annotation's text is not a reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// Not exactly one comma.
    #[error("expected `<value>,<time>`, e.g. `0.63012,2026-11-20T09:00:00Z`, found `{0}`")]
    Shape(String),
    /// The value is not a number, or negative.
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
        format!("{},{}", decimals(reading.value), self.encode_time(reading.at))
    }

    /// Reads what [`ReadingCodec::encode`] or crane's annotator wrote.
    ///
    /// # Errors
    ///
    /// Says which half of the text is wrong and what was expected there.
    pub fn decode(&self, text: &str) -> Result<Reading, ReadingError> {
        let (value, time) = split(text)?;
        Ok(Reading::new(ratio(value, Ratio::or_infinite)?, self.decode_time(time)?))
    }

    /// `2,2026-11-20T09:00:00Z`, the form of `node_hot_value`.
    pub fn encode_count(&self, count: u64, at: Timestamp) -> String {
        format!("{count},{}", self.encode_time(at))
    }

    /// Reads `node_hot_value`, from [`ReadingCodec::encode_count`] or crane.
    ///
    /// # Errors
    ///
    /// As [`ReadingCodec::decode`]; an infinite value is refused too.
    pub fn decode_hot_value(&self, text: &str) -> Result<HotValueNote, ReadingError> {
        let (value, time) = split(text)?;
        Ok(HotValueNote { value: ratio(value, Ratio::new)?.get(), at: self.decode_time(time)? })
    }

    fn encode_time(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    fn decode_time(&self, text: &str) -> Result<Timestamp, ReadingError> {
        let civil = civil(text).and_then(|civil| self.zone.to_timestamp(civil).ok());
        civil.ok_or_else(|| ReadingError::Time(clip(text)))
    }
}

/// A time as Go's `time.ParseInLocation("2006-01-02T15:04:05Z")` reads it: the hour may have one digit,
/// and a fraction of a second may follow the seconds. The fraction is cut off.
fn civil(text: &str) -> Option<DateTime> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let hour_digits = if clock.find(':') == Some(1) { 1 } else { 2 };
    let [hour, minute, second] = numbers(clock, ':', [hour_digits, 2, 2])?;
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    DateTime::new(
        year,
        month.try_into().ok()?,
        day.try_into().ok()?,
        hour.try_into().ok()?,
        minute.try_into().ok()?,
        second.try_into().ok()?,
        0,
    )
    .ok()
}

/// Three decimal numbers of exactly so many digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i16; 3]> {
    let mut parts = text.split(separator);
    let mut found = [0; 3];
    for (number, digits) in found.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

/// A decimal number, or an infinity in words. Digits beyond the range of a float, as in `1e400`, are an error in Go,
/// and crane ignores them; Rust reads them as infinity.
fn number(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    let in_range = number.is_finite() || !text.bytes().any(|byte| byte.is_ascii_digit());
    in_range.then_some(number)
}

fn ratio(text: &str, of: impl Fn(f64) -> Option<Ratio>) -> Result<Ratio, ReadingError> {
    number(text).and_then(of).ok_or_else(|| ReadingError::Value(clip(text)))
}

fn decimals(value: Ratio) -> String {
    format!("{:.5}", value.get())
}

fn split(text: &str) -> Result<(&str, &str), ReadingError> {
    match text.split_once(',') {
        Some((value, time)) if !time.contains(',') => Ok((value, time)),
        _ => Err(ReadingError::Shape(clip(text))),
    }
}

/// Annotations are untrusted: an error repeats at most 64 characters of one.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}
