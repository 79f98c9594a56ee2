//! What pods will probably use: what their workloads were seen to use, as last told, and what their specs say.
//!
//! Invariant: what was told counts for a bounded time. After that, requests count again, as for a workload of which nothing
//! is known. A list replaces what it names: an annotator that has just begun to lead knows few workloads, and what the one
//! before it knew of the others stays.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use api::workloads::MAX_WORKLOADS;
use arc_swap::ArcSwap;
use cluster::Pod;
use jiff::{SignedDuration, Timestamp};
use placement::estimate::{Estimate, EstimateRules, LearnedUse, NamespaceRatios, PodProfile};
use placement::names::Names;
use placement::resources::{Amounts, PerResource};
use placement::workload::{HALF_LIFE, WorkloadId, evidence};

use super::View;

/// For how long learned use counts after it was told last.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// What pods of one workload were seen to use.
type Learned = PerResource<Option<LearnedUse>>;

/// Namespace, kind and name.
type Controller = (Arc<str>, Arc<str>, Arc<str>);

/// What workloads were seen to use.
#[derive(Debug, Default)]
pub struct ByWorkload {
    exact: HashMap<WorkloadId, Told>,
    /// Of each controller's template of which most is known, with how much that is. Not of the one that was seen last: that
    /// may be a single pod that forges its owner.
    best_known: HashMap<Controller, (f64, Learned)>,
    /// What the workloads of each namespace use by their requests.
    namespaces: HashMap<Arc<str>, NamespaceRatios>,
}

/// What was told of one workload.
#[derive(Debug, Clone, Copy)]
struct Told {
    learned: Learned,
    /// How much is known of it: see [`evidence`].
    evidence: f64,
    /// When it was last told; `None` where the last list has it.
    told_at: Option<Timestamp>,
}

impl ByWorkload {
    /// Adds a workload whose pods were observed for so many minutes, as they weigh at `last_seen`.
    pub fn insert(
        &mut self,
        workload: WorkloadId,
        learned: Learned,
        pod_minutes: f64,
        last_seen: Timestamp,
    ) {
        let evidence = evidence(pod_minutes, last_seen, HALF_LIFE);
        self.insert_told(workload, Told { learned, evidence, told_at: None });
    }

    /// Adds what an earlier list had, told at `told_at`, and this one lacks, where it is fresh enough at `now`.
    fn keep(&mut self, earlier: &Self, told_at: Timestamp, now: Timestamp) {
        for (workload, told) in &earlier.exact {
            let told_at = told.told_at.unwrap_or(told_at);
            let is_fresh = now.duration_since(told_at) <= MAX_AGE;
            if is_fresh && self.exact.len() < MAX_WORKLOADS && !self.exact.contains_key(workload) {
                self.insert_told(workload.clone(), Told { told_at: Some(told_at), ..*told });
            }
        }
    }

    fn insert_told(&mut self, workload: WorkloadId, told: Told) {
        let Told { learned, evidence, .. } = told;
        let best = self.best_known.entry(controller(&workload)).or_insert((evidence, learned));
        if best.0 < evidence {
            *best = (evidence, learned);
        }
        self.namespaces.entry(Arc::clone(&workload.namespace)).or_default().add(&learned);
        self.exact.insert(workload, told);
    }

    /// What pods of that workload use; of a template that is not known, what the controller's best known one used.
    fn of(&self, workload: &WorkloadId) -> Learned {
        let best = || self.best_known.get(&controller(workload)).map(|(_, learned)| learned);
        let exact = self.exact.get(workload).map(|told| &told.learned);
        exact.or_else(best).copied().unwrap_or_default()
    }

    /// What workloads of that namespace use by their requests.
    fn in_namespace(&self, namespace: &str) -> PerResource<Option<f64>> {
        self.namespaces.get(namespace).map(NamespaceRatios::means).unwrap_or_default()
    }
}

fn controller(workload: &WorkloadId) -> Controller {
    let WorkloadId { namespace, kind, name, .. } = workload;
    (Arc::clone(namespace), Arc::clone(kind), Arc::clone(name))
}

/// What each workload was seen to use, as one immutable value that is swapped as a whole.
#[derive(Default)]
pub struct LearnedUses {
    by_workload: ArcSwap<ByWorkload>,
    /// Second of the last telling.
    told_at: AtomicI64,
}

impl LearnedUses {
    /// Takes over a list.
    pub fn set(&self, mut by_workload: ByWorkload, now: Timestamp) {
        let told_at = Timestamp::from_second(self.told_at.load(Ordering::Relaxed));
        by_workload.keep(&self.by_workload.load(), told_at.unwrap_or(Timestamp::MIN), now);
        self.by_workload.store(by_workload.into());
        self.confirm(now);
    }

    /// They were told again, unchanged.
    pub fn confirm(&self, now: Timestamp) {
        self.told_at.store(now.as_second(), Ordering::Relaxed);
    }

    /// How many workloads are known.
    pub fn len(&self) -> usize {
        self.by_workload.load().exact.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops them all once they are too old.
    pub fn expire(&self, now: Timestamp) {
        let age = now.as_second().saturating_sub(self.told_at.load(Ordering::Relaxed));
        if age > MAX_AGE.as_secs() && !self.is_empty() {
            self.by_workload.store(Arc::default());
        }
    }

    /// What is known of the pod's workload, and of its namespace.
    fn of(&self, pod: &Pod) -> (Learned, PerResource<Option<f64>>) {
        let told = self.by_workload.load();
        if told.exact.is_empty() {
            return Default::default();
        }
        let learned = pod.workload().map(|workload| told.of(&workload)).unwrap_or_default();
        (learned, told.in_namespace(pod.namespace()))
    }
}

/// What a pod will probably use; `None` by a policy that estimates no pods.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodEstimates {
    /// By the policy in force.
    pub in_force: Option<Estimate>,
    /// By the shadow policy.
    pub shadow: Option<Estimate>,
}

impl PodEstimates {
    /// For pods that both policies see on their nodes: a policy that estimates no pods leaves it out of account.
    #[must_use]
    pub fn of_either(&self) -> Option<Estimate> {
        self.in_force.or(self.shadow)
    }
}

impl View {
    /// Has pods estimated as the shadow policy does it too.
    pub fn set_shadow_estimates(&self, rules: Option<EstimateRules>) {
        self.shadow_estimates.store(rules.map(Arc::new));
    }

    /// What a pod will probably use. An annotation that cannot be read says nothing.
    pub fn estimates(&self, pod: &Pod, names: &Names) -> PodEstimates {
        let in_force = self.load.read().policy.policy.estimates;
        let shadow = self.shadow_estimates.load();
        if in_force.is_none() && shadow.is_none() {
            return PodEstimates::default();
        }
        let profile = self.profile(pod, names);
        PodEstimates {
            in_force: in_force.map(|rules| profile.estimate(&rules)),
            shadow: shadow.as_ref().map(|rules| profile.estimate(rules)),
        }
    }

    /// The amounts of the estimate that is [of either](PodEstimates::of_either) policy, and what of them is known by measuring
    /// the pod's workload.
    pub(super) fn expected_and_measured(
        &self,
        pod: &Pod,
        names: &Names,
    ) -> Option<(Amounts, Amounts)> {
        let in_force = self.load.read().policy.policy.estimates;
        let rules = in_force.or_else(|| self.shadow_estimates.load().as_deref().copied())?;
        let profile = self.profile(pod, names);
        Some((profile.estimate(&rules).amounts, profile.measured(&rules)))
    }

    fn profile(&self, pod: &Pod, names: &Names) -> PodProfile {
        let (learned, in_namespace) = self.learned.of(pod);
        let annotated = pod.expected_use(names).unwrap_or_default();
        PodProfile { resources: pod.resources(), annotated, learned, in_namespace }
    }
}

#[cfg(test)]
mod tests {
    use placement::estimate::Distribution;
    use serde_json::json;

    use super::*;

    fn workload(template: u64) -> WorkloadId {
        WorkloadId {
            namespace: "a".into(),
            kind: "StatefulSet".into(),
            name: "db".into(),
            template,
        }
    }

    fn cores(mean: f64) -> Learned {
        let amount = Distribution { mean, ..Distribution::default() };
        PerResource { cpu: Some(LearnedUse { amount, by_request: None }), memory: None }
    }

    fn mean(learned: Learned) -> Option<f64> {
        learned.cpu.map(|cpu| cpu.amount.mean)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_new_template_is_estimated_as_its_controllers_best_known_one() {
        let day = HALF_LIFE.as_secs();
        let mut known = ByWorkload::default();
        // An earlier template, the one that runs, and a pod with a forged owner.
        known.insert(workload(1), cores(1.0), 900.0, at(0));
        known.insert(workload(3), cores(3.0), 460.0, at(day));
        known.insert(workload(2), cores(2.0), 10.0, at(day + 60));
        let of = |template| mean(known.of(&workload(template)));
        assert_eq!((of(1), of(2), of(9)), (Some(1.0), Some(2.0), Some(3.0)));
        let elsewhere = WorkloadId { namespace: "b".into(), ..workload(1) };
        assert_eq!(mean(known.of(&elsewhere)), None);
    }

    #[test]
    fn a_namespace_says_nothing_of_others() {
        let mut known = ByWorkload::default();
        let by_request = Distribution { mean: 0.25, ..Distribution::default() };
        let used = LearnedUse { amount: Distribution::default(), by_request: Some(by_request) };
        for number in 0..5 {
            let id = WorkloadId { name: format!("db-{number}").into(), ..workload(1) };
            known.insert(id, PerResource { cpu: Some(used), memory: None }, 10.0, at(0));
        }
        assert_eq!(known.in_namespace("a"), PerResource { cpu: Some(0.25), memory: None });
        assert_eq!(known.in_namespace("b"), PerResource::default());
    }

    #[test]
    fn what_a_list_lacks_counts_for_an_hour_after_it_was_told_last() {
        let learned = LearnedUses::default();
        let list = |amounts: &[(u64, f64)]| {
            let mut list = ByWorkload::default();
            for (template, mean) in amounts {
                list.insert(workload(*template), cores(*mean), 10.0, at(0));
            }
            list
        };
        learned.set(list(&[(1, 1.0), (2, 2.0)]), at(0));
        learned.confirm(at(1_000));
        // Another annotator leads.
        learned.set(list(&[]), at(1_060));
        let mean_of = |template| {
            let known = learned.by_workload.load();
            known.exact.get(&workload(template)).and_then(|told| mean(told.learned))
        };
        assert_eq!((mean_of(1), mean_of(2)), (Some(1.0), Some(2.0)));
        learned.set(list(&[(2, 5.0)]), at(4_600));
        assert_eq!((mean_of(1), mean_of(2)), (Some(1.0), Some(5.0)));
        learned.set(list(&[(2, 6.0)]), at(4_601));
        assert_eq!((mean_of(1), mean_of(2)), (None, Some(6.0)));
    }

    #[test]
    fn what_is_told_no_more_counts_for_an_hour() {
        let learned = LearnedUses::default();
        let mut known = ByWorkload::default();
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "a", "ownerReferences": [
            { "controller": true, "kind": "StatefulSet", "name": "db", "apiVersion": "apps/v1", "uid": "u" }
        ] } }))
        .unwrap();
        let template = pod.workload().unwrap().template;
        known.insert(workload(template), cores(1.0), 10.0, at(0));
        learned.set(known, at(0));
        learned.confirm(at(1_000));
        learned.expire(at(4_600));
        assert_eq!(mean(learned.of(&pod).0), Some(1.0));
        learned.expire(at(4_601));
        assert_eq!((mean(learned.of(&pod).0), learned.is_empty()), (None, true));
    }
}
