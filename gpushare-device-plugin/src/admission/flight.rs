//! Where ids are on their way into the kubelet's record.
//!
//! Invariant: while they are, nobody here Lists, since that makes the kubelet forget them
//! (kubernetes/kubernetes#137534).

use std::time::Duration;

use tokio::time::Instant;

/// The kubelet allocates right after it has asked for a preference, unless it has died.
const ABANDONED: Duration = Duration::from_secs(10);
/// The kubelet writes down what Allocate answered within microseconds; this leaves it a busy machine.
const LANDED: Duration = Duration::from_millis(200);

/// The last ids that were asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Flight {
    #[default]
    None,
    /// Preferred; Allocate is to follow.
    Preferred(Instant),
    /// Allocated; the kubelet writes that down in no time.
    Allocated(Instant),
}

impl Flight {
    pub(super) fn is_over(self, now: Instant) -> bool {
        match self {
            Self::None => true,
            Self::Preferred(at) => now.duration_since(at) > ABANDONED,
            Self::Allocated(at) => now.duration_since(at) > LANDED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_were_preferred_are_on_their_way_until_allocated_and_written_down() {
        let at = Instant::now();
        assert!(Flight::None.is_over(at));
        assert!(!Flight::Preferred(at).is_over(at + LANDED * 2));
        assert!(!Flight::Allocated(at).is_over(at));
        assert!(Flight::Allocated(at).is_over(at + LANDED * 2));
        assert!(Flight::Preferred(at).is_over(at + ABANDONED * 2), "the kubelet died");
    }
}
