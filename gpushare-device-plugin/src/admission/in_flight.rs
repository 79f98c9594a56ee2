//! Whether the kubelet is allocating ids of ours right now.
//!
//! While it is, a List makes it forget them (kubernetes/kubernetes#137534).

use std::time::Duration;

use tokio::time::Instant;

/// Time from GetPreferredAllocation after which no Allocate will follow: the kubelet died. It calls
/// Allocate at once otherwise.
const ABANDONED: Duration = Duration::from_secs(10);
/// Time from the answer to Allocate until the kubelet has surely recorded it. It takes microseconds; the
/// rest is for a busy machine.
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
    /// Whether the kubelet has recorded the allocation by `now`, or given it up.
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
