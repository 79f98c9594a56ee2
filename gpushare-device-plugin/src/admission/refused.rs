//! The pods that this process refused.
//!
//! The kubelet fails a refused pod for good, so a UID stays here. It still lists the pod while the pod is being
//! deleted, and reports the refusal to the API server only later.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use placement::units::PodUid;

use super::refusal::Refusal;

/// The largest number of pods that are remembered; the oldest are dropped. A refused pod is listed for seconds.
const MAX_PODS: usize = 4096;

/// The refused pods by UID.
#[derive(Debug, Default)]
pub(crate) struct RefusedPods(Mutex<Refused>);

#[derive(Debug, Default)]
struct Refused {
    pods: HashMap<PodUid, Refusal>,
    /// The oldest first.
    order: VecDeque<PodUid>,
}

impl RefusedPods {
    /// Adds a pod; its first refusal stays.
    pub(crate) fn add(&self, pod: &PodUid, refusal: &Refusal) {
        let mut refused = self.lock();
        if refused.pods.contains_key(pod) {
            return;
        }
        refused.pods.insert(pod.clone(), refusal.clone());
        refused.order.push_back(pod.clone());
        if refused.order.len() > MAX_PODS
            && let Some(oldest) = refused.order.pop_front()
        {
            refused.pods.remove(&oldest);
        }
    }

    /// Why that pod was refused; `None` if it was not.
    pub(crate) fn get(&self, pod: &PodUid) -> Option<Refusal> {
        self.lock().pods.get(pod).cloned()
    }

    // A panic cannot leave more behind than a pod that is never dropped.
    fn lock(&self) -> MutexGuard<'_, Refused> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_size(size: usize) -> Refusal {
        Refusal::NoPodAsks { size }
    }

    fn pod(number: usize) -> PodUid {
        PodUid::from(number.to_string().as_str())
    }

    #[test]
    fn the_first_refusal_of_a_pod_stays_and_the_oldest_pods_are_dropped() {
        let refused = RefusedPods::default();
        (0..=MAX_PODS).for_each(|number| refused.add(&pod(number), &of_size(number)));
        refused.add(&pod(1), &of_size(0));
        assert_eq!(refused.get(&pod(0)), None);
        assert_eq!(refused.get(&pod(1)), Some(of_size(1)));
        assert_eq!(refused.get(&pod(MAX_PODS)), Some(of_size(MAX_PODS)));
    }
}
