//! What the pods on a node declare of network and disk.
//!
//! Invariant: a pod counts once, with what it declared last. A pod counts for no more than the node can do, so that one
//! pod takes one node's room at most, whatever it declares.

use jiff::{SignedDuration, Timestamp};

use super::recent_pods::part_of;
use crate::demand::{Demand, Rates};

/// The pods on one node that declare something. Each is known by a number of the caller's choice.
///
/// # Examples
///
/// ```
/// use placement::demand::{Demand, Rates};
/// use placement::load::DeclaredPods;
///
/// let mut pods = DeclaredPods::default();
/// pods.set(1, Rates { egress: 400, ..Rates::NONE }, None);
/// pods.set(2, Rates { egress: 900_000, ..Rates::NONE }, None);
/// // On a node that can send 1,000 bytes a second.
/// assert_eq!(pods.sum(Demand::Egress, 1_000.0), 1_400.0);
/// pods.remove(2);
/// assert_eq!(pods.sum(Demand::Egress, 1_000.0), 400.0);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeclaredPods(Vec<DeclaredPod>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeclaredPod {
    key: u64,
    declares: Rates,
    /// When all of its containers had started; `None` while they have not.
    started_at: Option<Timestamp>,
}

impl DeclaredPods {
    /// Sets what a pod declares, and when all of its containers had started; a pod that declares nothing is removed.
    /// Returns whether anything changed.
    pub fn set(&mut self, key: u64, declares: Rates, started_at: Option<Timestamp>) -> bool {
        if declares.is_none() {
            return self.remove(key);
        }
        let next = DeclaredPod { key, declares, started_at };
        match self.0.iter_mut().find(|pod| pod.key == key) {
            Some(known) if *known == next => return false,
            Some(known) => *known = next,
            None => self.0.push(next),
        }
        true
    }

    /// Removes a pod. Returns whether it was there.
    pub fn remove(&mut self, key: u64) -> bool {
        let at = self.0.iter().position(|pod| pod.key == key);
        at.map(|at| self.0.swap_remove(at)).is_some()
    }

    /// What a pod declares, and when all of its containers had started; `None` where it declares nothing.
    pub fn get(&self, key: u64) -> Option<(Rates, Option<Timestamp>)> {
        let pod = self.0.iter().find(|pod| pod.key == key)?;
        Some((pod.declares, pod.started_at))
    }

    /// The pods that declare something.
    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|pod| pod.key)
    }

    /// How many pods declare something.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What all pods declare of `demand` together, each `most` at most: bytes a second.
    pub fn sum(&self, demand: Demand, most: f64) -> f64 {
        self.0.iter().map(|pod| pod.counted(demand, most)).sum()
    }

    /// What they declare that a measurement taken at `read_at` does not show, if it shows all of a pod
    /// `visible_after` the start of its containers.
    pub(super) fn unseen(
        &self,
        demand: Demand,
        most: f64,
        read_at: Timestamp,
        visible_after: SignedDuration,
    ) -> f64 {
        let unseen = |pod: &DeclaredPod| match pod.started_at {
            Some(at) => 1.0 - part_of(read_at.duration_since(at), visible_after),
            None => 1.0,
        };
        self.0.iter().map(|pod| unseen(pod) * pod.counted(demand, most)).sum()
    }
}

impl DeclaredPod {
    fn counted(&self, demand: Demand, most: f64) -> f64 {
        (*self.declares.get(demand) as f64).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn sends(egress: u64) -> Rates {
        Rates { egress, ..Rates::NONE }
    }

    #[test]
    fn a_pod_counts_once_with_what_it_declared_last() {
        let mut pods = DeclaredPods::default();
        assert!(pods.set(1, sends(100), None));
        assert!(!pods.set(1, sends(100), None));
        assert!(pods.set(1, sends(300), None));
        assert_eq!((pods.len(), pods.sum(Demand::Egress, 1e9)), (1, 300.0));
        assert_eq!(pods.sum(Demand::Ingress, 1e9), 0.0);
        assert!(pods.set(1, Rates::NONE, None) && pods.is_empty());
        assert!(!pods.remove(1));
    }

    #[test]
    fn a_measurement_shows_a_pod_from_the_start_of_its_containers() {
        let (minute, read_at) = (SignedDuration::from_mins(1), at(600));
        let mut pods = DeclaredPods::default();
        pods.set(1, sends(100), Some(at(0)));
        pods.set(2, sends(100), Some(at(570)));
        pods.set(3, sends(100), None);
        assert_eq!(pods.unseen(Demand::Egress, 1e9, read_at, minute), 150.0);
        assert_eq!(pods.unseen(Demand::Egress, 50.0, read_at, minute), 75.0);
    }
}
