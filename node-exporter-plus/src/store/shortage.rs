//! Logs shortages of memory: each kind once, and again after it had ended.

use super::{Entry, MAX_SIGNALS};
use crate::series::Signal;

/// The current shortages.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// Whether a signal was dropped in this round.
    dropped: bool,
    dropped_logged: bool,
    reduced_logged: bool,
}

impl Shortage {
    /// Notes that a signal was dropped: there are [`MAX_SIGNALS`].
    pub(super) fn signal_dropped(&mut self) {
        self.dropped = true;
    }

    /// Logs what is new at the end of a round.
    pub(super) fn log(&mut self, entries: &[Entry], memory_limit: usize) {
        let reduced: Vec<&Signal> =
            entries.iter().filter(|entry| entry.reduced).map(|entry| &entry.signal).collect();
        if let (Some(first), false) = (reduced.first(), self.reduced_logged) {
            tracing::warn!(
                signals = reduced.len(),
                first = first.name(),
                memory_limit_mib = memory_limit >> 20,
                "no room for their windows: only their newest samples are kept; ask for fewer values, or a longer \
                 --sample-interval, or raise the container's memory limit and memoryLimit in --config.file"
            );
        }
        if self.dropped && !self.dropped_logged {
            tracing::warn!(
                most = MAX_SIGNALS,
                "no room for more signals: some devices are not shown"
            );
        }
        let dropped_logged = std::mem::take(&mut self.dropped);
        *self = Self { dropped: false, dropped_logged, reduced_logged: !reduced.is_empty() };
    }
}
