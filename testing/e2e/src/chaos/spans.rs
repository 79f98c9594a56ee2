//! Owns when containers had GPUs, and whether a GPU was ever overbooked, also between two looks.
//!
//! Invariant: a span is proven at both ends. It begins with the start of a process, which the kernel keeps, and lasts
//! to the last look that found that process running.

use std::collections::BTreeMap;

use super::GPU_UNITS;

/// What one container had, and when. Times are those of the kernel: hundredths of a second since boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its GPUs.
    pub gpus: Vec<String>,
    /// Its units, on all of them together.
    pub units: u64,
    /// When its first process started, rounded down.
    pub started: u64,
    /// When that was last seen.
    pub seen: u64,
}

impl Span {
    /// The first time at which the process surely ran.
    fn begins(&self) -> u64 {
        self.started + 1
    }

    fn holds(&self, gpu: &str, at: u64) -> bool {
        self.begins() <= at && at <= self.seen && self.gpus.iter().any(|own| own == gpu)
    }
}

/// The most units beyond its own that each GPU had at one time; without those that never had.
pub fn overbooked(spans: &[Span]) -> BTreeMap<String, u64> {
    let mut most: BTreeMap<String, u64> = BTreeMap::new();
    // What is held grows only where a span begins.
    for span in spans {
        for gpu in &span.gpus {
            let at = span.begins();
            let there = spans.iter().filter(|other| other.holds(gpu, at));
            let held: u64 = there.map(|other| other.units / other.gpus.len() as u64).sum();
            let over = held.saturating_sub(GPU_UNITS);
            let known = most.entry(gpu.clone()).or_default();
            *known = over.max(*known);
        }
    }
    most.retain(|_, over| *over > 0);
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(gpu: &str, units: u64, started: u64, seen: u64) -> Span {
        Span { gpus: vec![gpu.to_owned()], units, started, seen }
    }

    #[test]
    fn a_container_that_was_seen_after_the_start_of_the_next_overbooks_its_gpu() {
        let spans = [span("a", 16, 100, 205), span("a", 3, 200, 900), span("b", 16, 0, 900)];
        assert_eq!(overbooked(&spans), [("a".to_owned(), 3)].into());
    }

    #[test]
    fn one_after_the_other_is_no_overlap_and_neither_is_the_same_hundredth_of_a_second() {
        assert!(overbooked(&[span("a", 16, 100, 150), span("a", 16, 151, 300)]).is_empty());
        assert!(overbooked(&[span("a", 16, 100, 150), span("a", 16, 150, 300)]).is_empty());
    }

    #[test]
    fn each_of_several_gpus_has_an_equal_part() {
        let both = Span { gpus: vec!["a".to_owned(), "b".to_owned()], ..span("", 8, 0, 100) };
        assert!(overbooked(&[both.clone(), span("a", 12, 0, 100)]).is_empty());
        let over = overbooked(&[both, span("b", 13, 0, 100)]);
        assert_eq!(over, [("b".to_owned(), 1)].into());
    }
}
