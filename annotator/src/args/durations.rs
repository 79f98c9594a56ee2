//! Durations of flags that 0 disables.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Accepts 0, and durations in this range of `seconds`. The error is the text `expected`.
pub(super) fn zero_or(
    seconds: RangeInclusive<u64>,
    expected: &'static str,
    text: &str,
) -> Result<Duration, String> {
    let duration = daemon::duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() || seconds.contains(&duration.as_secs()) {
        Ok(duration)
    } else {
        Err(expected.to_owned())
    }
}
