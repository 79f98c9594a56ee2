//! Deleted pods that may still have processes.

use std::sync::{MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use placement::units::{NodeName, PodUid};

use super::CardBook;

/// A deleted pod that is in no report of its node yet.
pub(super) struct Departure {
    node: NodeName,
    pod: PodUid,
    at: Timestamp,
}

impl Departure {
    /// Whether the time for a report of it is over. A time far in the future means that the clock was set back.
    fn is_over(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() >= UNREPORTED
    }
}

/// The time within which a device plugin's report contains a pod with a card: its reporting interval, the write and the watch.
const UNREPORTED: SignedDuration = SignedDuration::from_secs(10);

impl CardBook {
    /// As [`CardBook::forget`], for a pod that may still have processes, as after a deletion by force. It counts while its node's
    /// reports contain it; if none has contained it yet, for [`UNREPORTED`].
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
                // For a pod that an older list has shown again, the time starts again.
                departures.retain(|before| (&before.node, &before.pod) != (&node, &pod));
                departures.push(Departure { node, pod, at: now });
            }
        }
        record.remove();
    }

    /// Releases the units of departed pods for which the time for a report is over.
    pub fn end_departures(&self, now: Timestamp) {
        let over: Vec<Departure> = self.departures().extract_if(.., |it| it.is_over(now)).collect();
        for Departure { node, pod, .. } in over {
            self.ledgers.change(&node, |ledger| ledger.end_departure(&pod));
        }
    }

    // A panic leaves no partial change of the list.
    fn departures(&self) -> MutexGuard<'_, Vec<Departure>> {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
