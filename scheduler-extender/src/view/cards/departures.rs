//! Pods that are gone while they may have processes.

use std::sync::{MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use placement::units::{NodeName, PodUid};

use super::CardBook;

/// A pod that is gone, and that no report of its node has shown.
pub(super) struct Departure {
    node: NodeName,
    pod: PodUid,
    at: Timestamp,
}

impl Departure {
    /// Whether the time for a report of it is over. A time far ahead is of a clock that was set back.
    fn is_over(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() >= UNREPORTED
    }
}

/// The time in which a device plugin reports a pod that it has given a card: its pause between two reports, its writes, and the watch.
const UNREPORTED: SignedDuration = SignedDuration::from_secs(10);

impl CardBook {
    /// As [`CardBook::forget`], of a pod that may have processes, as after a deletion by force. It counts for as long as its node's reports
    /// show it; one that none has shown yet, for some seconds.
    pub fn depart(&self, uid: &PodUid, now: Timestamp) {
        let Some(record) = self.end(uid) else { return };
        for node in &record.get().nodes {
            let departs = self.change_with_cpu(node, |ledger| {
                self.cpus.remove(node, uid);
                ledger.depart(uid)
            });
            if departs {
                let (node, pod) = (node.clone(), uid.clone());
                let mut departures = self.departures();
                // One that was shown again by an older list counts from now on.
                departures.retain(|before| (&before.node, &before.pod) != (&node, &pod));
                departures.push(Departure { node, pod, at: now });
            }
        }
        record.remove();
    }

    /// Gives back what departed pods held, where the time for a report of them is over.
    pub fn end_departures(&self, now: Timestamp) {
        let over: Vec<Departure> = self.departures().extract_if(.., |it| it.is_over(now)).collect();
        for Departure { node, pod, .. } in over {
            self.ledgers.change(&node, |ledger| ledger.end_departure(&pod));
        }
    }

    // No change of the list can panic half way.
    fn departures(&self) -> MutexGuard<'_, Vec<Departure>> {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
