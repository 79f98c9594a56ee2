//! The time: the machine's clock, or one that a test sets.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// The longest sleep. The machine's clock may be set during a sleep, which does not shorten it.
const MAX_SLEEP: Duration = Duration::from_secs(30);

/// The source of the time; clones share it.
#[derive(Debug, Clone)]
pub struct Clock(TimeSource);

#[derive(Debug, Clone)]
enum TimeSource {
    Machine,
    Manual(watch::Receiver<Timestamp>),
}

/// Sets the time of a manual clock.
#[derive(Debug)]
pub struct ManualTime(watch::Sender<Timestamp>);

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn machine() -> Self {
        Self(TimeSource::Machine)
    }

    /// A clock that stands at `start` until [`ManualTime::advance`] is called.
    #[must_use]
    pub fn manual(start: Timestamp) -> (Self, ManualTime) {
        let (sender, receiver) = watch::channel(start);
        (Self(TimeSource::Manual(receiver)), ManualTime(sender))
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            TimeSource::Machine => Timestamp::now(),
            TimeSource::Manual(time) => *time.borrow(),
        }
    }

    /// Returns at `at` or later: at once if `at` is past, never if it is `None`. Returns earlier if the clock was set
    /// back during the wait.
    pub async fn wait(&self, at: Option<Timestamp>) {
        let Some(at) = at else { return std::future::pending().await };
        match &self.0 {
            TimeSource::Machine => sleep_until(at, Timestamp::now).await,
            TimeSource::Manual(time) => {
                let is_reached = time.clone().wait_for(|now| *now >= at).await.is_ok();
                if !is_reached {
                    // `ManualTime` is dropped: the time cannot advance any more.
                    std::future::pending().await
                }
            }
        }
    }
}

/// Returns at `at` by the clock, or after the time that was left at the start, whichever is first.
async fn sleep_until(at: Timestamp, now: impl Fn() -> Timestamp) {
    let mut left = span_until(at, now());
    let mut most = left;
    while !left.is_zero() && !most.is_zero() {
        let pause = left.min(most).min(MAX_SLEEP);
        tokio::time::sleep(pause).await;
        most -= pause;
        left = span_until(at, now());
    }
}

/// The time from `now` to `at`; 0 if `at` is past.
fn span_until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

impl ManualTime {
    /// Advances the time.
    pub fn advance(&self, by: SignedDuration) {
        self.0.send_modify(|now| *now = now.checked_add(by).unwrap_or(*now));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_after_its_time_though_the_clock_was_set_back_meanwhile() {
        let start = Instant::now();
        let set_by = AtomicI64::new(0);
        let wait = sleep_until(Timestamp::from_second(1_000_090).unwrap(), || {
            let elapsed = i64::try_from(start.elapsed().as_secs()).unwrap();
            Timestamp::from_second(1_000_000 + elapsed + set_by.load(Ordering::Relaxed)).unwrap()
        });
        let set_back = async {
            tokio::time::sleep(Duration::from_secs(40)).await;
            set_by.store(-3600, Ordering::Relaxed);
        };
        tokio::join!(wait, set_back);
        assert_eq!(start.elapsed(), Duration::from_secs(90));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_early_where_the_clock_is_set_ahead() {
        let start = Instant::now();
        sleep_until(Timestamp::from_second(3600).unwrap(), || {
            let is_early = start.elapsed() < Duration::from_secs(20);
            Timestamp::from_second(if is_early { 0 } else { 7200 }).unwrap()
        })
        .await;
        assert_eq!(start.elapsed(), MAX_SLEEP);
    }
}
