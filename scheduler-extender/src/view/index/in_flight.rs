//! The node on which each in-flight pod counts.
//!
//! kube-scheduler sends the requests for the next pod within a millisecond, and binds the previous pod some
//! milliseconds later; only then does the watch show the binding. Of 50 pods created at once, 26 went to the coldest of
//! 50 nodes before the watch showed the first binding. Until then, the pod counts on its most probable node.
//!
//! Invariants: a pod counts on one node at most; the number of entries is bounded, and the entry of a pod that is never
//! bound expires.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use placement::load::{IN_FLIGHT_MAX_AGE, VOLUMES_BIND_WITHIN, is_in_flight};
use placement::names::limits;
use placement::resources::Amounts;
use placement::units::{NodeName, PodUid};

/// Entries at most. kube-scheduler has some hundred pods between Filter and binding (478 were measured).
const MAX_PODS: usize = 4096;

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

/// The in-flight pods of the whole cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlightPods {
    pods: HashMap<PodUid, InFlightPod>,
    /// Second of the last sweep.
    swept: i64,
}

impl InFlightPods {
    /// Adds a pod, or replaces its entry. Returns false if it was not added, for want of room or of a valid UID.
    pub(super) fn insert(
        &mut self,
        pod: &PodUid,
        node: &NodeName,
        uses: Amounts,
        now: Timestamp,
    ) -> bool {
        self.sweep(now);
        if pod.as_str().len() > limits::UID || self.pods.len() >= MAX_PODS {
            return false;
        }
        let (node, lasts) = (node.clone(), IN_FLIGHT_MAX_AGE);
        self.pods.insert(pod.clone(), InFlightPod { node, uses, at: now, lasts });
        true
    }

    /// A pod has volumes that are bound before it is, so that its entry stays for longer, unless half of all entries
    /// do. Returns its node if it does.
    pub(super) fn wait_for_volumes(&mut self, pod: &PodUid) -> Option<NodeName> {
        let waiting = self.pods.values().filter(|pod| pod.lasts == VOLUMES_BIND_WITHIN).count();
        let pod = self.pods.get_mut(pod).filter(|_| waiting < MAX_PODS / 2)?;
        pod.lasts = VOLUMES_BIND_WITHIN;
        Some(pod.node.clone())
    }

    /// The node where a pod will probably be bound; `None` for a pod without an entry.
    pub(super) fn node(&self, pod: &PodUid) -> Option<&NodeName> {
        self.pods.get(pod).map(|pod| &pod.node)
    }

    /// Removes and returns a pod's entry.
    pub(super) fn remove(&mut self, pod: &PodUid) -> Option<InFlightPod> {
        self.pods.remove(pod)
    }

    /// Drops expired entries, once a second at most.
    fn sweep(&mut self, now: Timestamp) {
        let second = now.as_second();
        if self.swept != second {
            self.swept = second;
            self.pods.retain(|_, pod| is_in_flight(pod.at, pod.lasts, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn a_pod_in_another_attempt_is_in_flight_to_its_newest_node_alone() {
        let (mut in_flight, pod) = (InFlightPods::default(), PodUid::from("p"));
        assert!(in_flight.insert(&pod, &"a".into(), Amounts::default(), at(0)));
        assert!(in_flight.insert(&pod, &"b".into(), Amounts::default(), at(1)));
        assert_eq!(in_flight.remove(&pod).map(|pod| pod.node), Some("b".into()));
        assert_eq!(in_flight.remove(&pod), None);
    }

    #[test]
    fn a_pod_that_is_never_bound_is_dropped_and_a_fresh_one_is_not() {
        let mut in_flight = InFlightPods::default();
        in_flight.insert(&"never".into(), &"a".into(), Amounts::default(), at(0));
        in_flight.insert(&"again".into(), &"b".into(), Amounts::default(), at(29));
        in_flight.insert(&"new".into(), &"c".into(), Amounts::default(), at(30));
        assert_eq!(in_flight.remove(&"never".into()), None);
        assert_eq!(in_flight.remove(&"again".into()).map(|pod| pod.node), Some("b".into()));
    }

    #[test]
    fn pods_that_wait_for_volumes_stay_longer_and_leave_room_for_others() {
        let mut in_flight = InFlightPods::default();
        let pods = (0..MAX_PODS).map(|n| PodUid::from(format!("p{n}")));
        let stay = pods.filter(|pod| {
            in_flight.insert(pod, &"a".into(), Amounts::default(), at(0))
                && in_flight.wait_for_volumes(pod).is_some()
        });
        assert_eq!(stay.count(), MAX_PODS / 2);
        in_flight.insert(&"new".into(), &"b".into(), Amounts::default(), at(599));
        assert_eq!(in_flight.pods.len(), MAX_PODS / 2 + 1);
        in_flight.insert(&"next".into(), &"b".into(), Amounts::default(), at(600));
        assert_eq!(in_flight.pods.len(), 2);
    }

    #[test]
    fn a_pod_of_before_a_clock_was_set_back_is_dropped() {
        let mut in_flight = InFlightPods::default();
        in_flight.insert(&"ahead".into(), &"a".into(), Amounts::default(), at(3_600));
        in_flight.insert(&"new".into(), &"b".into(), Amounts::default(), at(0));
        assert_eq!(in_flight.remove(&"ahead".into()), None);
        assert!(in_flight.remove(&"new".into()).is_some());
    }

    #[test]
    fn neither_many_pods_nor_a_long_uid_take_memory() {
        let mut in_flight = InFlightPods::default();
        assert!(!in_flight.insert(
            &"u".repeat(1 << 20).into(),
            &"a".into(),
            Amounts::default(),
            at(0)
        ));
        for n in 0..2 * MAX_PODS {
            in_flight.insert(&format!("p{n}").into(), &"a".into(), Amounts::default(), at(0));
        }
        assert_eq!(in_flight.pods.len(), MAX_PODS);
    }
}
