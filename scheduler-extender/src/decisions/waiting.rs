//! Since when pods wait whose objects do not say so, as those that had scheduling gates: since they were first asked about here.
//!
//! Invariants: bounded, whatever is asked; a pod that is not asked about for a quarter of an hour begins anew. kube-scheduler tries
//! each waiting pod again every 5 minutes at least, so only pods that are gone, or that another replica is asked about, are forgotten.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cluster::{Pod, Wait};
use jiff::{SignedDuration, Timestamp};
use placement::names::limits;
use placement::units::PodUid;

/// Pods at most: 3 MiB of them. Where there are more, each of the others begins to wait once there is room.
const MAX_PODS: usize = 20_000;

/// A pod that is not asked about for so long is forgotten.
const FORGET_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// Pods whose objects do not say since when they wait.
#[derive(Debug, Default)]
pub struct WaitingPods(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    pods: HashMap<PodUid, Asked>,
    swept_at: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    first: Timestamp,
    last: Timestamp,
}

impl WaitingPods {
    /// For how long kube-scheduler, which asks about the pod now, has found no node for it.
    pub fn asked(&self, pod: &Pod, now: Timestamp) -> SignedDuration {
        match pod.wait() {
            Wait::None => SignedDuration::ZERO,
            Wait::Since(since) => now.duration_since(since),
            Wait::Unknown => self.waiting().asked(pod.uid(), now),
        }
    }

    /// The same, where something else asks.
    pub fn seen(&self, pod: &Pod, now: Timestamp) -> SignedDuration {
        match pod.wait() {
            Wait::None => SignedDuration::ZERO,
            Wait::Since(since) => now.duration_since(since),
            Wait::Unknown => {
                let asked = self.waiting().pods.get(&pod.uid()).copied();
                asked.map(|asked| now.duration_since(asked.first)).unwrap_or_default()
            }
        }
    }

    // Every change is whole before the lock is let go, but for a panic of the allocator.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn asked(&mut self, pod: PodUid, now: Timestamp) -> SignedDuration {
        if now.duration_since(self.swept_at).abs() >= FORGET_AFTER {
            self.pods.retain(|_, asked| now.duration_since(asked.last).abs() < FORGET_AFTER);
            self.swept_at = now;
        }
        if let Some(asked) = self.pods.get_mut(&pod) {
            asked.last = now;
            return now.duration_since(asked.first);
        }
        if self.pods.len() < MAX_PODS && (1..=limits::UID).contains(&pod.as_str().len()) {
            self.pods.insert(pod, Asked { first: now, last: now });
        }
        SignedDuration::ZERO
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
    fn a_pod_that_had_gates_waits_since_it_was_first_asked_about() {
        let waiting = WaitingPods::default();
        let asked = |reason, second| waiting.asked(&ungated("u", reason), at(second)).as_secs();
        assert_eq!(waiting.seen(&ungated("u", "Unschedulable"), at(0)).as_secs(), 0);
        assert_eq!((asked("SchedulingGated", 0), asked("Unschedulable", 10)), (0, 10));
        assert_eq!(asked("Unschedulable", 5 * MINUTE), 5 * MINUTE);
        assert_eq!(waiting.seen(&ungated("u", "Unschedulable"), at(400)).as_secs(), 400);
    }

    #[test]
    fn a_pod_without_gates_waits_since_its_condition_says() {
        let mut pod = json!({ "metadata": { "uid": "u", "generation": 1 } });
        pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "lastTransitionTime": at(0).to_string() }]);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let waiting = WaitingPods::default();
        assert_eq!(waiting.asked(&pod, at(90)).as_secs(), 90);
        assert_eq!(waiting.seen(&pod, at(90)).as_secs(), 90);
        assert!(waiting.waiting().pods.is_empty());
    }

    #[test]
    fn a_pod_that_is_not_asked_about_begins_anew() {
        let waiting = WaitingPods::default();
        let asked =
            |uid, second| waiting.asked(&ungated(uid, "Unschedulable"), at(second)).as_secs();
        asked("u", 0);
        assert_eq!(asked("u", 10 * MINUTE), 10 * MINUTE);
        assert_eq!(asked("other", 20 * MINUTE), 0);
        assert_eq!(asked("u", 24 * MINUTE), 24 * MINUTE);
        assert_eq!(asked("u", 40 * MINUTE), 0);
    }

    #[test]
    fn memory_is_bounded_and_names_that_no_pod_has_take_none() {
        let waiting = WaitingPods::default();
        waiting.asked(&ungated(&"u".repeat(64), "Unschedulable"), at(0));
        assert!(waiting.waiting().pods.is_empty());
        for number in 0..MAX_PODS + 10 {
            waiting.waiting().asked(PodUid::from(format!("u{number}")), at(0));
        }
        assert_eq!(waiting.waiting().pods.len(), MAX_PODS);
        // There is room again once those are gone.
        waiting.asked(&ungated("late", "Unschedulable"), at(16 * MINUTE));
        assert_eq!(waiting.waiting().pods.len(), 1);
    }
}
