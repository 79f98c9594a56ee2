//! Time in steps of 10 seconds. Step 0 is midnight of the first day.

use jiff::Timestamp;

/// A time, or a duration, in steps.
pub type Step = u32;

/// Length of a step in seconds.
pub const STEP_SECONDS: u32 = 10;
/// Steps of a minute.
pub const MINUTE: Step = 6;
/// Steps of an hour.
pub const HOUR: Step = 60 * MINUTE;
/// Steps of a day.
pub const DAY: Step = 24 * HOUR;

/// Seconds since the epoch at step 0.
const EPOCH_OF_STEP_0: i64 = 1_800_000_000;

/// The time of a step, for code that takes a time of day.
pub fn timestamp(step: Step) -> Timestamp {
    let seconds = EPOCH_OF_STEP_0 + i64::from(step) * i64::from(STEP_SECONDS);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}
