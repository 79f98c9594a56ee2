//! Whether the kubelet is currently allocating ids of ours.
//!
//! A List during an allocation makes the kubelet forget its ids (kubernetes/kubernetes#137534).

use std::time::Duration;

use tokio::time::Instant;

/// Time after GetPreferredAllocation from which no Allocate is expected any more: the kubelet died. A live
/// kubelet calls Allocate at once.
const ABANDONED: Duration = Duration::from_secs(10);
/// Time from the response to Allocate until the kubelet has recorded it. Recording takes microseconds; the
/// rest is a margin for a busy machine.
const RECORDED: Duration = Duration::from_millis(200);

/// The kubelet's last allocation of our resource.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum InFlight {
    #[default]
    None,
    /// GetPreferredAllocation was answered; Allocate follows.
    Preferred(Instant),
    /// Allocate was answered; the kubelet records it.
    Allocated(Instant),
}

impl InFlight {
    /// Whether the kubelet has recorded the allocation by `now`, or abandoned it.
    pub(super) fn is_over(self, now: Instant) -> bool {
        match self {
            Self::None => true,
            Self::Preferred(at) => now.duration_since(at) > ABANDONED,
            Self::Allocated(at) => now.duration_since(at) > RECORDED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_in_flight_from_the_preference_until_the_kubelet_has_recorded_it() {
        let at = Instant::now();
        assert!(InFlight::None.is_over(at));
        assert!(!InFlight::Preferred(at).is_over(at + RECORDED * 2));
        assert!(!InFlight::Allocated(at).is_over(at));
        assert!(InFlight::Allocated(at).is_over(at + RECORDED * 2));
        assert!(InFlight::Preferred(at).is_over(at + ABANDONED * 2), "the kubelet died");
    }
}
