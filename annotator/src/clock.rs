//! The time: the machine's, or one that a test moves by hand.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// The machine's clock may be set while we sleep, so no sleep is longer than this.
const NAP: Duration = Duration::from_secs(30);

/// Where the time comes from.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    Machine,
    Hand(watch::Receiver<Timestamp>),
}

/// What moves a clock by hand.
#[derive(Debug)]
pub struct Hand(watch::Sender<Timestamp>);

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn machine() -> Self {
        Self(Source::Machine)
    }

    /// A clock that stands at `start` until its hand is moved.
    #[must_use]
    pub fn by_hand(start: Timestamp) -> (Self, Hand) {
        let (sender, receiver) = watch::channel(start);
        (Self(Source::Hand(receiver)), Hand(sender))
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Machine => Timestamp::now(),
            Source::Hand(time) => *time.borrow(),
        }
    }

    /// Returns at `at` or later; at once where that is past, never where it is `None`.
    pub async fn wait(&self, at: Option<Timestamp>) {
        match (at, &self.0) {
            (None, _) => std::future::pending().await,
            (Some(at), Source::Machine) => nap_until(at).await,
            (Some(at), Source::Hand(time)) => {
                let reached = time.clone().wait_for(|now| *now >= at).await.is_ok();
                if !reached {
                    // The hand is gone: this time never comes.
                    std::future::pending().await
                }
            }
        }
    }
}

async fn nap_until(at: Timestamp) {
    loop {
        let left = at.duration_since(Timestamp::now());
        if !left.is_positive() {
            return;
        }
        let left = Duration::try_from(left).unwrap_or(NAP);
        tokio::time::sleep(left.min(NAP)).await;
    }
}

impl Hand {
    /// Moves the time on.
    pub fn advance(&self, by: SignedDuration) {
        self.0.send_modify(|now| *now = now.checked_add(by).unwrap_or(*now));
    }
}
