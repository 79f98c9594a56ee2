//! Whether units are withheld, since pods come that bypass the extender. Pure: `now` is a parameter.
//!
//! A kube-scheduler that lost the extender's configuration binds GPU pods by itself. They have no claim, so each is
//! refused, and its ReplicaSet makes another one at once, without bound (kubernetes/kubernetes#108152). So after some
//! refusals no unit is offered for a while: kube-scheduler finds no room, and the pods wait. Then a few units are
//! offered, and the next pod shows whether the extender is asked again.
//!
//! Invariants: only pods that a scheduler bound count, since a pod that names its node itself asks no scheduler for
//! room; a pod with a claim ends it at once.

use std::collections::VecDeque;
use std::time::Duration;

use placement::units::Units;
use tokio::time::Instant;

/// Refusals within [`WINDOW`] after which units are withheld.
const REFUSALS: usize = 3;
/// Time in which they count.
const WINDOW: Duration = Duration::from_secs(60);
/// Time for which units are withheld first. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest time for which units are withheld, and the time without refusals after which the first applies again.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Time for which a pod is waited for while few units are offered. The kubelet tells the API server of them within 10 s
/// by default, and kube-scheduler tries a waiting pod again within another 10 s.
const PROBE: Duration = Duration::from_secs(60);

/// Which ids the kubelet is told to be Healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Offer {
    /// All that pods hold, and all free ones of GPUs that take pods.
    #[default]
    All,
    /// All that pods hold, and of each GPU that takes pods this many free ones at most.
    Few(Units),
    /// None, not even those that pods hold.
    Nothing,
}

/// Counts refusals and withholds units.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    state: State,
    /// How long units are withheld next.
    pause: Duration,
}

#[derive(Debug, Clone)]
enum State {
    /// All units are offered.
    Offering {
        /// When pods were refused, the oldest first.
        refused: VecDeque<Instant>,
        /// Since when; `None` if units were never withheld, or since a pod with a claim.
        since: Option<Instant>,
    },
    /// No unit is offered, for `pause` and until then. `units` are those of a pod that was refused.
    Withholding { until: Instant, pause: Duration, units: Units },
    /// A few units are offered.
    Probing { until: Instant, units: Units },
}

impl Default for Breaker {
    fn default() -> Self {
        let state = State::Offering { refused: VecDeque::new(), since: None };
        Self { state, pause: FIRST_PAUSE }
    }
}

impl Breaker {
    /// A pod that a scheduler bound without a claim was refused. It asked for these units.
    pub(super) fn refused(&mut self, units: Units, now: Instant) {
        self.tick(now);
        match &mut self.state {
            State::Offering { refused, since } => {
                if since.is_some_and(|since| now - since >= LONGEST_PAUSE) {
                    self.pause = FIRST_PAUSE;
                }
                refused.retain(|at| now - *at < WINDOW);
                refused.push_back(now);
                if refused.len() >= REFUSALS {
                    self.withhold(units, now);
                }
            }
            // It was bound before kube-scheduler saw that there is no room.
            State::Withholding { .. } => {}
            State::Probing { .. } => self.withhold(units, now),
        }
    }

    /// All units are offered, and nothing is remembered: a pod with a claim was admitted or waits to be, so the
    /// extender binds pods; or the kubelet has restarted, and needs the ids that pods hold.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Ends what is over by now.
    pub(super) fn tick(&mut self, now: Instant) {
        match self.state {
            State::Withholding { until, units, .. } if now >= until => {
                self.state = State::Probing { until: now + PROBE, units };
            }
            State::Probing { until, .. } if now >= until => {
                self.state = State::Offering { refused: VecDeque::new(), since: Some(now) };
            }
            _ => {}
        }
    }

    /// When [`Breaker::tick`] has something to end; `None` while all units are offered.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        match self.state {
            State::Offering { .. } => None,
            State::Withholding { until, .. } | State::Probing { until, .. } => Some(until),
        }
    }

    /// For how long no unit is offered in all; `None` while some are.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self.state {
            State::Withholding { pause, .. } => Some(pause),
            State::Offering { .. } | State::Probing { .. } => None,
        }
    }

    /// Which ids are offered now.
    pub(crate) fn offer(&self) -> Offer {
        match self.state {
            State::Offering { .. } => Offer::All,
            State::Withholding { .. } => Offer::Nothing,
            State::Probing { units, .. } => Offer::Few(units),
        }
    }

    fn withhold(&mut self, units: Units, now: Instant) {
        let pause = self.pause;
        self.state = State::Withholding { until: now + pause, pause, units };
        self.pause = LONGEST_PAUSE.min(pause * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Units = Units(1);

    /// What happens at a second.
    #[derive(Clone, Copy)]
    enum Step {
        /// A pod of this many units is refused.
        Refused(u32),
        /// A pod with a claim comes.
        Claimed,
        /// Nothing but that the time is looked at.
        Tick,
    }
    use Step::{Claimed, Refused, Tick};

    /// The offer after each step.
    fn offers(steps: &[(u64, Step)]) -> Vec<Offer> {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        let mut offers = Vec::new();
        for (second, step) in steps {
            let now = start + Duration::from_secs(*second);
            match step {
                Refused(units) => breaker.refused(Units(*units), now),
                Claimed => breaker.reset(),
                Tick => breaker.tick(now),
            }
            offers.push(breaker.offer());
        }
        offers
    }

    /// The offer after the last step.
    fn offer(steps: &[(u64, Step)]) -> Offer {
        *offers(steps).last().unwrap()
    }

    #[test]
    fn three_refusals_within_a_minute_withhold_all_units() {
        for (steps, expected) in [
            (&[(0, Refused(1)), (1, Refused(1))][..], Offer::All),
            (&[(0, Refused(1)), (1, Refused(1)), (59, Refused(1))], Offer::Nothing),
            (&[(0, Refused(1)), (1, Refused(1)), (60, Refused(1))], Offer::All),
            (
                &[(0, Refused(1)), (1, Refused(1)), (60, Refused(1)), (60, Refused(1))],
                Offer::Nothing,
            ),
            (&[(0, Refused(1)), (1, Refused(1)), (2, Claimed), (3, Refused(1))], Offer::All),
        ] {
            assert_eq!(offer(steps), expected, "{} steps", steps.len());
        }
    }

    #[test]
    fn after_a_minute_as_many_units_of_each_gpu_are_offered_as_a_refused_pod_asked_for() {
        let steps = [(0, Refused(1)), (0, Refused(1)), (0, Refused(4)), (59, Tick), (60, Tick)];
        let few = Offer::Few(Units(4));
        assert_eq!(offers(&steps)[2..], [Offer::Nothing, Offer::Nothing, few]);
    }

    #[test]
    fn pods_that_were_bound_before_do_not_withhold_units_for_longer() {
        let late = [(0, Refused(1)), (0, Refused(1)), (0, Refused(1)), (9, Refused(1)), (60, Tick)];
        assert_eq!(offer(&late), Offer::Few(ONE));
    }

    #[test]
    fn a_quiet_minute_ends_withholding_and_a_refusal_doubles_it() {
        let first = [(0, Refused(1)), (0, Refused(1)), (0, Refused(1)), (60, Tick)];
        let then = |steps: &[(u64, Step)]| offer(&[&first, steps].concat());
        assert_eq!(then(&[(119, Tick)]), Offer::Few(ONE));
        assert_eq!(then(&[(120, Tick)]), Offer::All);
        assert_eq!(then(&[(61, Refused(1)), (180, Tick)]), Offer::Nothing);
        assert_eq!(then(&[(61, Refused(1)), (181, Tick)]), Offer::Few(ONE));
    }

    #[test]
    fn a_pod_with_a_claim_is_the_end_at_any_time() {
        let first = [(0, Refused(1)), (0, Refused(1)), (0, Refused(1))];
        assert_eq!(offer(&[&first[..], &[(1, Claimed)]].concat()), Offer::All);
        assert_eq!(offer(&[&first[..], &[(60, Tick), (61, Claimed)]].concat()), Offer::All);
        let again = [(1, Claimed), (2, Refused(1)), (2, Refused(1)), (2, Refused(1)), (62, Tick)];
        assert_eq!(offer(&[&first[..], &again].concat()), Offer::Few(ONE), "a minute again");
    }

    /// How long units are withheld each time, if each probe is answered by a pod after 20 s.
    fn pauses(breaker: &mut Breaker, mut now: Instant, times: usize) -> Vec<u64> {
        let mut pauses = Vec::new();
        for _ in 0..times {
            while breaker.offer() != Offer::Nothing {
                breaker.refused(ONE, now);
            }
            let until = breaker.next_tick().unwrap();
            pauses.push((until - now).as_secs());
            assert_eq!(breaker.pause(), Some(until - now));
            breaker.tick(until);
            now = until + Duration::from_secs(20);
        }
        pauses
    }

    #[test]
    fn the_time_doubles_up_to_ten_minutes_and_is_a_minute_again_after_ten_quiet_ones() {
        let mut breaker = Breaker::default();
        let start = Instant::now();
        assert_eq!(pauses(&mut breaker, start, 6), [60, 120, 240, 480, 600, 600]);
        let quiet = breaker.next_tick().unwrap();
        breaker.tick(quiet);
        assert_eq!(breaker.offer(), Offer::All);
        let mut soon = breaker.clone();
        assert_eq!(pauses(&mut soon, quiet + Duration::from_secs(599), 1), [600]);
        assert_eq!(pauses(&mut breaker, quiet + Duration::from_secs(600), 1), [60]);
    }

    #[test]
    fn the_time_of_the_next_change_is_known() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        assert_eq!(breaker.next_tick(), None);
        (0..REFUSALS).for_each(|_| breaker.refused(ONE, start));
        assert_eq!(breaker.next_tick(), Some(start + FIRST_PAUSE));
        breaker.tick(start + FIRST_PAUSE);
        assert_eq!(breaker.next_tick(), Some(start + FIRST_PAUSE + PROBE));
        breaker.reset();
        assert_eq!(breaker.next_tick(), None);
    }
}
