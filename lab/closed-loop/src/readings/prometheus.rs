//! crane's recording rules, as a Prometheus evaluates them: `avg_over_time(active[5m])` each minute, and
//! `max_over_time(avg_5m[1h])`, `[1d]` each five minutes.

use super::{Samples, SlidingMax};
use crate::time::{DAY, HOUR, MINUTE, Step};

const FIVE_MINUTES: Step = 5 * MINUTE;

/// The rules for one signal of one node, and their last values. Prometheus keeps samples through a node's reboot; while
/// the node is away there is a gap.
#[derive(Debug, Clone)]
pub struct Rules {
    active: Samples,
    hour: SlidingMax,
    day: SlidingMax,
    values: [Option<f64>; 3],
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            active: Samples::new(FIVE_MINUTES),
            hour: SlidingMax::new(HOUR),
            day: SlidingMax::new(DAY),
            values: [None; 3],
        }
    }
}

impl Rules {
    /// Takes the sample of step `now`, if there is one, and evaluates the rules that are due.
    pub fn step(&mut self, now: Step, sample: Option<f64>) {
        match sample {
            Some(value) => self.active.push(now, value),
            None => self.active.forget(now),
        }
        if now.is_multiple_of(MINUTE) {
            let mean = self.active.mean();
            if let Some(mean) = mean {
                self.hour.push(now, mean);
                self.day.push(now, mean);
            }
            self.values[0] = mean;
        }
        if now.is_multiple_of(FIVE_MINUTES) {
            self.values[1] = self.hour.max(now);
            self.values[2] = self.day.max(now);
        }
    }

    /// The last values of `avg_5m`, `max_avg_1h` and `max_avg_1d`.
    pub fn values(&self) -> [Option<f64>; 3] {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_evaluated_at_their_own_times() {
        let mut rules = Rules::default();
        for now in 0..=30 {
            rules.step(now, Some(if now < 7 { 0.9 } else { 0.3 }));
            if now == 5 {
                assert_eq!(rules.values(), [Some(0.9), Some(0.9), Some(0.9)]);
            }
            if now == 12 {
                // 7 samples of 0.9 and 6 of 0.3; the maxima are still those of step 0.
                assert!((rules.values()[0].unwrap() - (7.0 * 0.9 + 6.0 * 0.3) / 13.0).abs() < 1e-9);
            }
        }
        // At step 30 the window holds steps 1 to 30.
        assert!((rules.values()[0].unwrap() - (6.0 * 0.9 + 24.0 * 0.3) / 30.0).abs() < 1e-9);
        assert!((rules.values()[1].unwrap() - 0.9).abs() < 1e-9);
        (31..=90).for_each(|now| rules.step(now, None));
        assert_eq!(rules.values()[0], None);
        assert!(rules.values()[1].is_some(), "maxima keep what was before the gap");
    }
}
