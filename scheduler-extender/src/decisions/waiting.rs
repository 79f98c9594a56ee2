//! How long pods have been waiting whose objects do not show it, such as pods that had scheduling gates: since
//! kube-scheduler's first request for them.
//!
//! Invariants: memory is bounded, and each namespace has a share of it; a pod without a request for 15 minutes starts
//! again at 0. kube-scheduler retries each waiting pod every 5 minutes at least, so only pods that were deleted, or
//! whose requests go to another replica, are dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cluster::{Pod, Wait};
use jiff::{SignedDuration, Timestamp};
use placement::names::limits;
use placement::shares::SharedTable;
use placement::units::PodUid;

use crate::tables::Table;

/// A pod without a request for this time is dropped.
const FORGET_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// Request times of pods whose objects do not show since when they wait.
#[derive(Debug, Default)]
pub struct WaitingPods(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    pods: SharedTable<PodUid, RequestTimes>,
    swept_at: Timestamp,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { pods: Table::Waiting.empty(), swept_at: Timestamp::default() }
    }
}

/// The times of kube-scheduler's first and last request for a pod.
#[derive(Debug, Clone, Copy)]
struct RequestTimes {
    first: Timestamp,
    last: Timestamp,
}

impl WaitingPods {
    /// How long the pod has been waiting for a node. Records kube-scheduler's request at `now`.
    pub fn record_request(&self, pod: &Pod, now: Timestamp) -> SignedDuration {
        match pod.wait() {
            Wait::None => SignedDuration::ZERO,
            Wait::Since(since) => now.duration_since(since),
            Wait::Unknown => self.waiting().record_request(pod.namespace(), pod.uid(), now),
        }
    }

    /// As [`WaitingPods::record_request`], without recording a request.
    pub fn waited(&self, pod: &Pod, now: Timestamp) -> SignedDuration {
        match pod.wait() {
            Wait::None => SignedDuration::ZERO,
            Wait::Since(since) => now.duration_since(since),
            Wait::Unknown => {
                let times = self.waiting().pods.get(&pod.uid()).copied();
                times.map(|times| now.duration_since(times.first)).unwrap_or_default()
            }
        }
    }

    // Every change is complete when the lock is released, except after a panic of the allocator.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn record_request(&mut self, namespace: &str, pod: PodUid, now: Timestamp) -> SignedDuration {
        if now.duration_since(self.swept_at).abs() >= FORGET_AFTER {
            self.pods.retain(|_, times| now.duration_since(times.last).abs() < FORGET_AFTER);
            self.swept_at = now;
        }
        if let Some(times) = self.pods.get_mut(&pod) {
            times.last = now;
            return now.duration_since(times.first);
        }
        if (1..=limits::UID).contains(&pod.as_str().len()) && self.makes_room_for(namespace) {
            self.pods.insert(namespace, pod, RequestTimes { first: now, last: now });
        }
        SignedDuration::ZERO
    }

    /// Makes room for a pod of this namespace: another one loses the pod that has waited least. The wait of a pod of
    /// the namespace that would lose one itself starts once there is room.
    fn makes_room_for(&mut self, namespace: &str) -> bool {
        let Some(loses) = self.pods.gives_way_to(namespace) else { return true };
        if **loses == *namespace {
            return false;
        }
        let newest = self.pods.of(loses).next_back().map(|(pod, _)| pod.clone());
        newest.is_some_and(|pod| self.pods.remove(&pod).is_some())
    }
}

#[cfg(test)]
impl crate::tables::Tabled for WaitingPods {
    fn add(&mut self, namespace: &str, name: &str) {
        self.waiting().record_request(namespace, name.into(), Timestamp::UNIX_EPOCH);
    }

    fn has(&self, name: &str) -> bool {
        self.waiting().pods.get(&name.into()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINUTE: i64 = 60;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_165_200 + second).unwrap()
    }

    /// A pod that had gates for an hour before second 0.
    fn ungated(uid: &str, reason: &str) -> Pod {
        let condition = json!({ "type": "PodScheduled", "status": "False", "reason": reason,
            "lastTransitionTime": at(-60 * MINUTE).to_string() });
        let pod = json!({ "metadata": { "uid": uid, "generation": 2 }, "status": { "conditions": [condition] } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_that_had_gates_waits_since_its_first_request() {
        let waiting = WaitingPods::default();
        let waited =
            |reason, second| waiting.record_request(&ungated("u", reason), at(second)).as_secs();
        assert_eq!(waiting.waited(&ungated("u", "Unschedulable"), at(0)).as_secs(), 0);
        assert_eq!((waited("SchedulingGated", 0), waited("Unschedulable", 10)), (0, 10));
        assert_eq!(waited("Unschedulable", 5 * MINUTE), 5 * MINUTE);
        assert_eq!(waiting.waited(&ungated("u", "Unschedulable"), at(400)).as_secs(), 400);
    }

    #[test]
    fn a_pod_without_gates_waits_since_its_condition_says() {
        let mut pod = json!({ "metadata": { "uid": "u", "generation": 1 } });
        pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "lastTransitionTime": at(0).to_string() }]);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let waiting = WaitingPods::default();
        assert_eq!(waiting.record_request(&pod, at(90)).as_secs(), 90);
        assert_eq!(waiting.waited(&pod, at(90)).as_secs(), 90);
        assert!(waiting.waiting().pods.is_empty());
    }

    #[test]
    fn a_pod_without_requests_starts_again_at_0() {
        let waiting = WaitingPods::default();
        let waited = |uid, second| {
            waiting.record_request(&ungated(uid, "Unschedulable"), at(second)).as_secs()
        };
        waited("u", 0);
        assert_eq!(waited("u", 10 * MINUTE), 10 * MINUTE);
        assert_eq!(waited("other", 20 * MINUTE), 0);
        assert_eq!(waited("u", 24 * MINUTE), 24 * MINUTE);
        assert_eq!(waited("u", 40 * MINUTE), 0);
    }

    #[test]
    fn memory_is_bounded_and_names_that_no_pod_has_take_none() {
        let waiting = WaitingPods::default();
        waiting.record_request(&ungated(&"u".repeat(64), "Unschedulable"), at(0));
        assert!(waiting.waiting().pods.is_empty());
        for number in 0..Table::Waiting.most() + 10 {
            waiting.waiting().record_request("", PodUid::from(format!("u{number}")), at(0));
        }
        assert_eq!(waiting.waiting().pods.len(), Table::Waiting.most());
        // There is room again once those are gone.
        waiting.record_request(&ungated("late", "Unschedulable"), at(16 * MINUTE));
        assert_eq!(waiting.waiting().pods.len(), 1);
    }
}
