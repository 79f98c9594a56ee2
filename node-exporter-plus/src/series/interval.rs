//! Time since the boot, and the slots that it is cut into.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A point in time, as the time since the machine's boot, suspension included (CLOCK_BOOTTIME). It never jumps, and a
/// restarted process counts from the same boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl Moment {
    /// The time that has passed since `earlier`; 0 if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The present time on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The clock of samples and windows.
    pub boot: Moment,
    /// The clock of timestamps on the wire. It can jump.
    pub wall: SystemTime,
}

impl Now {
    /// The wall clock's time at an earlier moment, by what the wall clock says now.
    #[must_use]
    pub fn wall_at(&self, moment: Moment) -> SystemTime {
        self.wall.checked_sub(self.boot.since(moment)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Reads both clocks; a parameter, so that tests set the time.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// The number of a sample interval since the boot. At one second a `u32` lasts for 136 years.
pub(crate) type Slot = u32;

/// The first of the `window` slots (at least one) that end at `newest`.
pub(super) fn first_of(newest: Slot, window: u32) -> Slot {
    newest.saturating_sub(window.saturating_sub(1))
}

/// The time between two samples: whole seconds that divide a minute, so that full minutes fall on samples.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use node_exporter_plus::series::{Interval, Moment};
///
/// let interval: Interval = "10s".parse()?;
/// let at = |seconds| Moment(Duration::from_secs(seconds));
/// assert!(interval.separates(at(19), at(20)));
/// assert!(interval.is_stale(at(100), at(131)));
/// assert!("7s".parse::<Interval>().is_err());
/// # Ok::<(), node_exporter_plus::series::IntervalError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    seconds: u32,
}

/// Why a duration cannot be a sample interval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no sample interval: give 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60 seconds, as in 10s"
)]
pub struct IntervalError(String);

impl Interval {
    /// A value is stale once it is older than so many intervals.
    pub(super) const STALE_AFTER: u32 = 3;

    /// An interval of this length.
    ///
    /// # Errors
    /// When the duration does not divide a minute into whole seconds.
    pub fn new(duration: Duration) -> Result<Self, IntervalError> {
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        let whole = duration.subsec_nanos() == 0;
        if whole && seconds > 0 && 60 % seconds == 0 {
            Ok(Self { seconds })
        } else {
            Err(IntervalError(format!("{duration:?}")))
        }
    }

    /// Its length.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }

    /// The time from `now` to the start of the next slot.
    #[must_use]
    pub fn until_next(self, now: Moment) -> Duration {
        let next = u64::from(self.slot(now)) + 1;
        Moment(Duration::from_secs(next * u64::from(self.seconds))).since(now)
    }

    /// Whether `later` is in a later slot than `earlier`.
    #[must_use]
    pub fn separates(self, earlier: Moment, later: Moment) -> bool {
        self.slot(later) > self.slot(earlier)
    }

    /// Whether a sample taken at `taken` is stale at `now`.
    #[must_use]
    pub fn is_stale(self, taken: Moment, now: Moment) -> bool {
        now > self.expiry(taken)
    }

    /// The slot that a moment falls into.
    pub(crate) fn slot(self, moment: Moment) -> Slot {
        let slot = moment.0.as_secs() / u64::from(self.seconds);
        Slot::try_from(slot).unwrap_or(Slot::MAX)
    }

    /// How many slots a window holds; at least one.
    pub(super) fn slots(self, window: Duration) -> u32 {
        let slots = window.as_secs() / u64::from(self.seconds);
        u32::try_from(slots).unwrap_or(u32::MAX).max(1)
    }

    /// Whether a window is a whole number of slots.
    #[must_use]
    pub fn divides(self, window: Duration) -> bool {
        window.as_secs().is_multiple_of(u64::from(self.seconds))
    }

    /// Until when a sample taken at `taken` is not stale.
    #[must_use]
    pub fn expiry(self, taken: Moment) -> Moment {
        Moment(taken.0.saturating_add(self.duration() * Self::STALE_AFTER))
    }

    /// The start of a slot.
    pub(crate) fn start(self, slot: Slot) -> Moment {
        Moment(self.duration() * slot)
    }

    pub(super) fn slots_per_minute(self) -> u32 {
        60 / self.seconds
    }

    /// Whether a full minute since the boot is the start of this slot.
    pub(super) fn starts_minute(self, slot: Slot) -> bool {
        slot.is_multiple_of(self.slots_per_minute())
    }
}

impl FromStr for Interval {
    type Err = IntervalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let interval = daemon::duration(text).ok().and_then(|duration| Self::new(duration).ok());
        interval.ok_or_else(|| IntervalError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    #[test]
    fn only_divisors_of_a_minute_are_intervals() {
        for good in ["1s", "10s", "15s", "60s", "1m"] {
            assert!(good.parse::<Interval>().is_ok(), "{good}");
        }
        for bad in ["0s", "7s", "500ms", "1s1ms", "90s", "2m", "ten", ""] {
            assert!(bad.parse::<Interval>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_next_slot_begins_on_a_multiple_of_the_interval() {
        let interval: Interval = "10s".parse().unwrap();
        assert_eq!(interval.until_next(at(12_300)), Duration::from_millis(7_700));
        assert_eq!(interval.until_next(at(20_000)), Duration::from_secs(10));
        assert!(interval.separates(at(19_999), at(20_000)));
        assert!(!interval.separates(at(20_000), at(29_999)));
    }

    #[test]
    fn three_missed_samples_make_a_value_stale() {
        let interval: Interval = "10s".parse().unwrap();
        assert!(!interval.is_stale(at(5_000), at(35_000)));
        assert!(interval.is_stale(at(5_000), at(35_001)));
        assert!(!interval.is_stale(at(35_000), at(5_000)));
    }

    #[test]
    fn minutes_start_on_every_sixth_slot_of_ten_seconds() {
        let interval: Interval = "10s".parse().unwrap();
        let starts: Vec<u32> = (0..13).filter(|slot| interval.starts_minute(*slot)).collect();
        assert_eq!(starts, [0, 6, 12]);
    }
}
