//! When pods were bound to a node of late, and how hot that makes it.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use crate::policy::HotRule;

/// Bindings kept at most; crane keeps 1,024 for the whole cluster.
const KEPT: usize = 1024;

/// Times at which pods were bound to one node, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bindings {
    times: VecDeque<Timestamp>,
}

impl Bindings {
    /// Notes a binding, and forgets those older than `horizon`.
    pub fn record(&mut self, at: Timestamp, horizon: SignedDuration) {
        let place = self.times.partition_point(|other| *other <= at);
        self.times.insert(place, at);
        let newest = self.times.back().copied().unwrap_or(at);
        while self.times.len() > KEPT
            || self.times.front().is_some_and(|old| newest.duration_since(*old) > horizon)
        {
            self.times.pop_front();
        }
    }

    /// Takes one binding of this time back.
    pub fn forget(&mut self, at: Timestamp) {
        let place = self.times.partition_point(|other| *other < at);
        if self.times.get(place) == Some(&at) {
            self.times.remove(place);
        }
    }

    /// Bindings later than `now - range`.
    pub fn within(&self, range: SignedDuration, now: Timestamp) -> usize {
        let old = self.times.partition_point(|at| now.duration_since(*at) >= range);
        self.times.len() - old
    }

    /// crane's hot value: the sum over the rules of ⌊bindings within range ÷ count⌋.
    pub fn hot_value(&self, rules: &[HotRule], now: Timestamp) -> u64 {
        rules
            .iter()
            .map(|rule| self.within(rule.range, now) as u64 / u64::from(rule.count.max(1)))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn hot_value_adds_the_floors_of_each_rule() {
        let rules = [
            HotRule { range: SignedDuration::from_mins(5), count: 5 },
            HotRule { range: SignedDuration::from_mins(1), count: 2 },
        ];
        let mut bindings = Bindings::default();
        (0..11).for_each(|i| bindings.record(at(i * 20), SignedDuration::from_mins(5)));
        // All 11 lie within 5 minutes of second 200: ⌊11/5⌋; three within the last minute: ⌊3/2⌋.
        assert_eq!(bindings.hot_value(&rules, at(200)), 2 + 1);
    }

    #[test]
    fn bindings_beyond_the_horizon_are_forgotten() {
        let mut bindings = Bindings::default();
        bindings.record(at(0), SignedDuration::from_secs(60));
        bindings.record(at(61), SignedDuration::from_secs(60));
        assert_eq!(bindings.times.len(), 1);
    }

    #[test]
    fn what_was_taken_back_counts_no_more() {
        let mut bindings = Bindings::default();
        (0..3).for_each(|i| bindings.record(at(i), SignedDuration::from_mins(5)));
        bindings.forget(at(1));
        bindings.forget(at(7));
        assert_eq!(bindings.within(SignedDuration::from_mins(5), at(10)), 2);
    }

    #[test]
    fn a_late_binding_is_counted_in_its_place() {
        let mut bindings = Bindings::default();
        bindings.record(at(50), SignedDuration::from_mins(5));
        bindings.record(at(10), SignedDuration::from_mins(5));
        assert_eq!(bindings.within(SignedDuration::from_secs(30), at(60)), 1);
    }
}
