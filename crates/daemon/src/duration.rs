//! Durations as flags give them: `10s`, `500ms`, `1m30s`, `24h`.

use std::time::Duration;

/// Why a duration does not parse.
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
    #[error("{0:?} is no time at all: expected a duration above 0, as in 500ms or 10s")]
    Zero(String),
}

/// Parses a duration; for clap's `value_parser`.
///
/// # Errors
/// When the text is no list of whole numbers with the units ms, s, m, h.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError(text.to_owned());
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (part, after) = leading(rest).ok_or_else(error)?;
        total = total.checked_add(part).ok_or_else(error)?;
        rest = after;
    }
    if text.is_empty() { Err(error()) } else { Ok(total) }
}

/// A duration above 0, for waits and periods; for clap's `value_parser`.
///
/// # Errors
/// When the text is no [`duration`], or 0.
pub fn positive_duration(text: &str) -> Result<Duration, PositiveError> {
    let parsed = duration(text)?;
    if parsed.is_zero() { Err(PositiveError::Zero(text.to_owned())) } else { Ok(parsed) }
}

/// The first number with its unit, and what follows.
fn leading(text: &str) -> Option<(Duration, &str)> {
    let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit = &rest[..rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len())];
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let part = number.parse::<u64>().ok()?.checked_mul(millis)?;
    Some((Duration::from_millis(part), &rest[unit.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        let parsed = |text| duration(text).map(|duration| duration.as_millis());
        assert_eq!(parsed("10s"), Ok(10_000));
        assert_eq!(parsed("1m30s"), Ok(90_000));
        assert_eq!(parsed("24h"), Ok(86_400_000));
        assert_eq!(parsed("1s500ms"), Ok(1_500));
        assert_eq!(parsed("0s"), Ok(0));
    }

    #[test]
    fn a_number_without_a_unit_and_other_nonsense_is_refused() {
        for text in ["", "10", "s", "1.5s", "-1s", "1d", "1é", "99999999999999999999s", "10s "] {
            assert_eq!(duration(text), Err(DurationError(text.to_owned())));
        }
        assert!(duration("18446744073709551615h").is_err());
    }

    #[test]
    fn nothing_is_no_wait_and_is_told_apart_from_nonsense() {
        assert_eq!(positive_duration("1500ms"), Ok(Duration::from_millis(1_500)));
        assert_eq!(positive_duration("0s"), Err(PositiveError::Zero("0s".to_owned())));
        assert_eq!(positive_duration("0h0ms"), Err(PositiveError::Zero("0h0ms".to_owned())));
        let nonsense = positive_duration("-1s").unwrap_err();
        assert_eq!(nonsense, PositiveError::Duration(DurationError("-1s".to_owned())));
    }
}
