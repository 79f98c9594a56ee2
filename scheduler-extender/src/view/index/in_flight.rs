//! The node on which each in-flight pod counts.
//!
//! kube-scheduler sends the requests for the next pod within a millisecond, and binds the previous pod some
//! milliseconds later; only then does the watch show the binding. Of 50 pods created at once, 26 went to the coldest of
//! 50 nodes before the watch showed the first binding. Until then, the pod counts on its most probable node.
//!
//! Invariants: a pod counts on one node at most; the number of entries is bounded, and the entry of a pod that is never
//! bound expires.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::load::{IN_FLIGHT_MAX_AGE, VOLUMES_BIND_WITHIN, is_in_flight};
use placement::names::limits;
use placement::resources::Amounts;
use placement::shares::SharedTable;
use placement::units::{NodeName, PodUid};

use crate::tables::Table;
use crate::view::snapshot::PodUids;

/// An in-flight pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InFlightPod {
    /// The node where it will probably be bound.
    pub(super) node: NodeName,
    /// Its estimated use.
    pub(super) uses: Amounts,
    at: Timestamp,
    /// How long it counts.
    lasts: SignedDuration,
}

/// A text that is no UID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidUid;

/// The in-flight pods of the whole cluster.
#[derive(Debug, Clone)]
pub(super) struct InFlightPods {
    pods: SharedTable<PodUid, InFlightPod>,
    /// The UIDs of all entries, shared with snapshots.
    uids: Arc<PodUids>,
    /// Second of the last sweep.
    swept: i64,
}

impl Default for InFlightPods {
    fn default() -> Self {
        Self { pods: Table::InFlight.empty(), uids: Arc::default(), swept: 0 }
    }
}

impl InFlightPods {
    /// Adds a pod, or replaces its entry. Returns the entry that is displaced by it.
    ///
    /// # Errors
    ///
    /// Where the UID is too long to be one.
    pub(super) fn insert(
        &mut self,
        (namespace, pod): (&str, &PodUid),
        node: &NodeName,
        uses: Amounts,
        now: Timestamp,
    ) -> Result<Option<(PodUid, InFlightPod)>, InvalidUid> {
        self.sweep(now);
        if pod.as_str().len() > limits::UID {
            return Err(InvalidUid);
        }
        let (node, lasts) = (node.clone(), IN_FLIGHT_MAX_AGE);
        let entry = InFlightPod { node, uses, at: now, lasts };
        let lost = self.pods.insert(namespace, pod.clone(), entry);
        let uids = Arc::make_mut(&mut self.uids);
        if let Some((lost, _)) = &lost {
            uids.remove(lost);
        }
        uids.insert(pod.clone());
        Ok(lost)
    }

    /// A pod has volumes that are bound before it is, so that its entry stays for longer. Returns its node; `None` for
    /// a pod without an entry.
    pub(super) fn wait_for_volumes(&mut self, pod: &PodUid) -> Option<NodeName> {
        let pod = self.pods.get_mut(pod)?;
        pod.lasts = VOLUMES_BIND_WITHIN;
        Some(pod.node.clone())
    }

    /// The node where a pod will probably be bound; `None` for a pod without an entry.
    pub(super) fn node(&self, pod: &PodUid) -> Option<&NodeName> {
        self.pods.get(pod).map(|pod| &pod.node)
    }

    /// Removes and returns a pod's entry.
    pub(super) fn remove(&mut self, pod: &PodUid) -> Option<InFlightPod> {
        let entry = self.pods.remove(pod)?;
        Arc::make_mut(&mut self.uids).remove(pod);
        Some(entry)
    }

    /// The UIDs of all entries.
    pub(super) fn uids(&self) -> &Arc<PodUids> {
        &self.uids
    }

    /// Drops expired entries, once a second at most.
    fn sweep(&mut self, now: Timestamp) {
        let second = now.as_second();
        if self.swept != second {
            self.swept = second;
            self.pods.retain(|_, pod| is_in_flight(pod.at, pod.lasts, now));
            // A set keeps its room when entries leave it, and each copy has as much.
            let (entries, room) = (self.pods.len(), self.uids.capacity());
            if entries < self.uids.len() || room > 4 * entries.max(64) {
                self.uids = Arc::new(self.pods.iter().map(|(uid, _)| uid.clone()).collect());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn insert(in_flight: &mut InFlightPods, pod: &str, node: &str, second: i64) -> bool {
        let pod = PodUid::from(pod);
        in_flight.insert(("ns", &pod), &node.into(), Amounts::default(), at(second)).is_ok()
    }

    #[test]
    fn a_pod_in_another_attempt_is_in_flight_to_its_newest_node_alone() {
        let (mut in_flight, pod) = (InFlightPods::default(), PodUid::from("p"));
        assert!(insert(&mut in_flight, "p", "a", 0) && insert(&mut in_flight, "p", "b", 1));
        assert_eq!(in_flight.remove(&pod).map(|pod| pod.node), Some("b".into()));
        assert_eq!(in_flight.remove(&pod), None);
    }

    #[test]
    fn a_pod_that_is_never_bound_is_dropped_and_a_fresh_one_is_not() {
        let mut in_flight = InFlightPods::default();
        insert(&mut in_flight, "never", "a", 0);
        insert(&mut in_flight, "again", "b", 29);
        insert(&mut in_flight, "new", "c", 30);
        assert_eq!(in_flight.uids().len(), 2);
        assert_eq!(in_flight.remove(&"never".into()), None);
        assert_eq!(in_flight.remove(&"again".into()).map(|pod| pod.node), Some("b".into()));
    }

    #[test]
    fn pods_that_wait_for_volumes_stay_longer() {
        let mut in_flight = InFlightPods::default();
        insert(&mut in_flight, "volume", "a", 0);
        assert_eq!(in_flight.wait_for_volumes(&"volume".into()), Some("a".into()));
        assert_eq!(in_flight.wait_for_volumes(&"other".into()), None);
        insert(&mut in_flight, "new", "b", 599);
        assert_eq!(in_flight.pods.len(), 2);
        insert(&mut in_flight, "next", "b", 600);
        assert_eq!(in_flight.node(&"volume".into()), None);
    }

    #[test]
    fn a_pod_of_before_a_clock_was_set_back_is_dropped() {
        let mut in_flight = InFlightPods::default();
        insert(&mut in_flight, "ahead", "a", 3_600);
        insert(&mut in_flight, "new", "b", 0);
        assert_eq!(in_flight.remove(&"ahead".into()), None);
        assert!(in_flight.remove(&"new".into()).is_some());
    }

    #[test]
    fn neither_many_pods_nor_a_long_uid_take_memory() {
        let mut in_flight = InFlightPods::default();
        assert!(!insert(&mut in_flight, &"u".repeat(1 << 20), "a", 0));
        for n in 0..2 * Table::InFlight.most() {
            insert(&mut in_flight, &format!("p{n}"), "a", 0);
        }
        assert_eq!(in_flight.pods.len(), Table::InFlight.most());
        let is_entry = |pod: &PodUid| in_flight.node(pod).is_some();
        assert_eq!(
            in_flight.uids().iter().filter(|pod| is_entry(pod)).count(),
            in_flight.pods.len()
        );
        assert_eq!(in_flight.uids().len(), in_flight.pods.len());
        insert(&mut in_flight, "later", "a", 31);
        assert_eq!(in_flight.uids().len(), 1);
        assert!(in_flight.uids().capacity() < 512, "{}", in_flight.uids().capacity());
    }
}
