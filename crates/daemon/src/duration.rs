//! Durations in flags: `10s`, `500ms`, `1m30s`, `1.5h`.
//!
//! The grammar is jiff's "friendly" format with units from nanoseconds to hours, which the load policy uses too.
//! It reads what Go's `time.Duration` prints, so policies and flags of Kubernetes programs can be copied.

use std::time::Duration;

use jiff::fmt::friendly::SpanParser;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration; write it like 500ms, 10s, 1m30s or 24h")]
pub struct DurationError(String);

/// Why a text is no duration above 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PositiveError {
    /// It is no duration at all.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// It is 0.
    #[error("{0:?}: expected a duration above 0, as in 500ms or 10s")]
    Zero(String),
}

/// Parses a duration of 0 or more; for clap's `value_parser`.
///
/// # Errors
/// When the text is negative, has no unit, or a unit above hours.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// assert_eq!(daemon::duration("1m30s"), Ok(Duration::from_secs(90)));
/// assert_eq!(daemon::duration("0.5s"), Ok(Duration::from_millis(500)));
/// assert!(daemon::duration("10").is_err());
/// ```
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let parsed = SpanParser::new().parse_unsigned_duration(text);
    parsed.map_err(|_| DurationError(text.to_owned()))
}

/// Parses a duration above 0, for waits and periods; for clap's `value_parser`.
///
/// # Errors
/// When the text is no [`duration`], or 0.
pub fn positive_duration(text: &str) -> Result<Duration, PositiveError> {
    let parsed = duration(text)?;
    if parsed.is_zero() { Err(PositiveError::Zero(text.to_owned())) } else { Ok(parsed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_prints_them_are_read() {
        let parsed = |text| duration(text).map(|duration| duration.as_micros());
        assert_eq!(parsed("10s"), Ok(10_000_000));
        assert_eq!(parsed("1m30s"), Ok(90_000_000));
        assert_eq!(parsed("24h"), Ok(86_400_000_000));
        assert_eq!(parsed("24h0m0s"), Ok(86_400_000_000));
        assert_eq!(parsed("1s500ms"), Ok(1_500_000));
        assert_eq!(parsed("1.5h"), Ok(5_400_000_000));
        assert_eq!(parsed("0.25s"), Ok(250_000));
        assert_eq!(parsed("12µs"), Ok(12));
        assert_eq!(parsed("0s"), Ok(0));
    }

    #[test]
    fn text_without_a_unit_or_with_a_unit_of_days_is_refused() {
        let too_long = ["99999999999999999999s", "18446744073709551615h"];
        let others = ["", "10", "s", "-1s", "1d", "1w", "1é", "..5s", "3mm", "soon", "PT3M"];
        for text in others.into_iter().chain(too_long) {
            assert_eq!(duration(text), Err(DurationError(text.to_owned())));
        }
    }

    #[test]
    fn zero_is_no_positive_duration_and_is_told_apart_from_nonsense() {
        assert_eq!(positive_duration("1500ms"), Ok(Duration::from_millis(1_500)));
        assert_eq!(positive_duration("0s"), Err(PositiveError::Zero("0s".to_owned())));
        assert_eq!(positive_duration("0h0ms"), Err(PositiveError::Zero("0h0ms".to_owned())));
        let nonsense = positive_duration("-1s").unwrap_err();
        assert_eq!(nonsense, PositiveError::Duration(DurationError("-1s".to_owned())));
    }
}
