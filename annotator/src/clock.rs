//! The time: the machine's clock, or one that a test sets.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// The longest sleep. The machine's clock may be set during a sleep, which does not shorten it.
const MAX_SLEEP: Duration = Duration::from_secs(30);

/// Where the time comes from; clones share it.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
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
        Self(Source::Machine)
    }

    /// A clock that stands at `start` until [`ManualTime::advance`] is called.
    #[must_use]
    pub fn manual(start: Timestamp) -> (Self, ManualTime) {
        let (sender, receiver) = watch::channel(start);
        (Self(Source::Manual(receiver)), ManualTime(sender))
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Machine => Timestamp::now(),
            Source::Manual(time) => *time.borrow(),
        }
    }

    /// Returns at `at` or later: at once where that is past, never where it is `None`.
    pub async fn wait(&self, at: Option<Timestamp>) {
        match (at, &self.0) {
            (None, _) => std::future::pending().await,
            (Some(at), Source::Machine) => sleep_until(at).await,
            (Some(at), Source::Manual(time)) => {
                let reached = time.clone().wait_for(|now| *now >= at).await.is_ok();
                if !reached {
                    // The time cannot advance any more.
                    std::future::pending().await
                }
            }
        }
    }
}

async fn sleep_until(at: Timestamp) {
    loop {
        let left = at.duration_since(Timestamp::now());
        if !left.is_positive() {
            return;
        }
        let left = Duration::try_from(left).unwrap_or(MAX_SLEEP);
        tokio::time::sleep(left.min(MAX_SLEEP)).await;
    }
}

impl ManualTime {
    /// Moves the time on.
    pub fn advance(&self, by: SignedDuration) {
        self.0.send_modify(|now| *now = now.checked_add(by).unwrap_or(*now));
    }
}
