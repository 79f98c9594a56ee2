//! Estimates of pods: from the learned use of their workloads, as the annotator last sent it, and from their specs.
//!
//! Invariant: learned use counts for a bounded time. After that, requests count again, as for an unknown workload. What
//! a list has replaces what was known before. What it lacks stays for that time: an annotator that was started anew
//! has observed few workloads.

use std::collections::HashMap;
use std::sync::Arc;

use api::workloads::MAX_WORKLOADS;
use cluster::Pod;
use jiff::{SignedDuration, Timestamp};
use placement::estimate::{Estimate, LearnedUse, NamespaceRatios, PodProfile};
use placement::names::Names;
use placement::resources::{Amounts, PerResource};
use placement::workload::{HALF_LIFE, WorkloadId, claimed_evidence};

use super::Current;

/// How long learned use counts after it was last received: by then an annotator that was started anew has observed a
/// day's course.
const MAX_AGE: SignedDuration = HALF_LIFE;

/// The learned use of one workload.
type Learned = PerResource<Option<LearnedUse>>;

/// Namespace, kind and name.
type Controller = (Arc<str>, Arc<str>, Arc<str>);

/// The learned use of workloads.
#[derive(Debug, Default)]
pub struct ByWorkload {
    exact: HashMap<WorkloadId, Entry>,
    /// For each controller, the learned use of the template with the most evidence, and that evidence. Not of the
    /// newest template: that may be a single pod with a forged owner.
    best_known: HashMap<Controller, (f64, Learned)>,
    /// For each namespace, the use of its workloads in relation to their requests.
    namespaces: HashMap<Arc<str>, NamespaceRatios>,
}

/// One workload.
#[derive(Debug, Clone, Copy)]
struct Entry {
    learned: Learned,
    /// How much is known of it: see [`claimed_evidence`].
    evidence: f64,
    /// When it was last received; `None` if it is of the last list.
    received_at: Option<Timestamp>,
}

impl ByWorkload {
    /// Adds a workload of a list received at `now`. `pod_minutes`: for how long its pods were observed, weighted at
    /// `last_seen`.
    pub fn insert(
        &mut self,
        workload: WorkloadId,
        learned: Learned,
        pod_minutes: f64,
        last_seen: Timestamp,
        now: Timestamp,
    ) {
        let evidence = claimed_evidence(pod_minutes, last_seen, now);
        self.insert_entry(workload, Entry { learned, evidence, received_at: None });
    }

    /// This list with the entries of an earlier one, received at `received_at`, that it lacks and that are fresh at
    /// `now`. If there are too many, those with the most evidence.
    fn with_earlier(mut self, earlier: &Self, received_at: Timestamp, now: Timestamp) -> Self {
        let mut kept = Vec::new();
        for (workload, entry) in &earlier.exact {
            let received_at = entry.received_at.unwrap_or(received_at);
            let is_fresh = now.duration_since(received_at).abs() <= MAX_AGE;
            if is_fresh && !self.exact.contains_key(workload) {
                kept.push((workload, Entry { received_at: Some(received_at), ..*entry }));
            }
        }
        kept.sort_by(|(_, a), (_, b)| b.evidence.total_cmp(&a.evidence));
        kept.truncate(MAX_WORKLOADS.saturating_sub(self.exact.len()));
        for (workload, entry) in kept {
            self.insert_entry(workload.clone(), entry);
        }
        self
    }

    fn insert_entry(&mut self, workload: WorkloadId, entry: Entry) {
        let Entry { learned, evidence, .. } = entry;
        let best = self.best_known.entry(controller(&workload)).or_insert((evidence, learned));
        if best.0 < evidence {
            *best = (evidence, learned);
        }
        self.namespaces.entry(Arc::clone(&workload.namespace)).or_default().add(&learned);
        self.exact.insert(workload, entry);
    }

    /// The learned use of a workload; for an unknown template, that of the controller's template with the most
    /// evidence.
    fn of(&self, workload: &WorkloadId) -> Learned {
        if let Some(exact) = self.exact.get(workload) {
            return exact.learned;
        }
        let best = self.best_known.get(&controller(workload));
        best.map(|(_, learned)| *learned).unwrap_or_default()
    }

    /// The use of the namespace's workloads in relation to their requests.
    fn in_namespace(&self, namespace: &str) -> PerResource<Option<f64>> {
        self.namespaces.get(namespace).map(NamespaceRatios::means).unwrap_or_default()
    }
}

fn controller(workload: &WorkloadId) -> Controller {
    let WorkloadId { namespace, kind, name, .. } = workload;
    (Arc::clone(namespace), Arc::clone(kind), Arc::clone(name))
}

/// The learned use of all workloads: an immutable list that is replaced as a whole.
#[derive(Debug, Clone, Default)]
pub struct LearnedUses {
    by_workload: Arc<ByWorkload>,
    /// When a list was last received.
    received_at: Timestamp,
}

impl LearnedUses {
    /// Applies a list.
    pub fn set(&mut self, list: ByWorkload, now: Timestamp) {
        self.by_workload = Arc::new(list.with_earlier(&self.by_workload, self.received_at, now));
        self.confirm(now);
    }

    /// Records that the last list is unchanged at `now`.
    pub fn confirm(&mut self, now: Timestamp) {
        self.received_at = now;
    }

    /// How many workloads are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_workload.exact.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all entries if the last list is too old.
    pub fn expire(&mut self, now: Timestamp) {
        // As old, if the clock was set back.
        if now.duration_since(self.received_at).abs() > MAX_AGE {
            self.by_workload = Arc::default();
        }
    }

    /// The learned use of the pod's workload, and the ratios of its namespace.
    fn of(&self, pod: &Pod) -> (Learned, PerResource<Option<f64>>) {
        if self.by_workload.exact.is_empty() {
            return Default::default();
        }
        let learned = pod.workload().map(|workload| self.by_workload.of(&workload));
        (learned.unwrap_or_default(), self.by_workload.in_namespace(pod.namespace()))
    }
}

/// The estimates of a pod; `None` under a policy that estimates nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodEstimates {
    /// By the policy in force.
    pub in_force: Option<Estimate>,
    /// By the shadow policy.
    pub shadow: Option<Estimate>,
}

impl PodEstimates {
    /// The estimate by which a pod counts on its node, for both policies.
    #[must_use]
    pub fn of_either(&self) -> Option<Estimate> {
        self.in_force.or(self.shadow)
    }
}

impl Current {
    /// The estimates of a pod. An annotation that cannot be read is ignored.
    #[must_use]
    pub fn estimates(&self, pod: &Pod, names: &Names) -> PodEstimates {
        let in_force = self.snapshot.policy.policy.estimates;
        if in_force.is_none() && self.shadow_estimates.is_none() {
            return PodEstimates::default();
        }
        let profile = self.profile(pod, names);
        PodEstimates {
            in_force: in_force.map(|rules| profile.estimate(&rules)),
            shadow: self.shadow_estimates.map(|rules| profile.estimate(&rules)),
        }
    }

    /// The amounts of the estimate [of either](PodEstimates::of_either) policy.
    pub(super) fn expected_use(&self, pod: &Pod, names: &Names) -> Option<Amounts> {
        let rules = self.snapshot.policy.policy.estimates.or(self.shadow_estimates)?;
        Some(self.profile(pod, names).estimate(&rules).amounts)
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
        known.insert(workload(1), cores(1.0), 900.0, at(0), at(0));
        known.insert(workload(3), cores(3.0), 460.0, at(day), at(day));
        known.insert(workload(2), cores(2.0), 10.0, at(day + 60), at(day + 60));
        let of = |template| mean(known.of(&workload(template)));
        assert_eq!((of(1), of(2), of(9)), (Some(1.0), Some(2.0), Some(3.0)));
        let elsewhere = WorkloadId { namespace: "b".into(), ..workload(1) };
        assert_eq!(mean(known.of(&elsewhere)), None);
    }

    #[test]
    fn the_next_run_of_a_job_is_estimated_as_the_last() {
        let run = |job: &str, image: &str, namespace: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": format!("{job}-x8d2k"), "namespace": namespace,
                    "generateName": format!("{job}-"), "ownerReferences": [
                        { "controller": true, "kind": "Job", "name": job, "apiVersion": "batch/v1", "uid": job }
                    ] },
                "spec": { "containers": [{ "name": "ci", "image": image, "args": ["--job", job] }] },
            }))
            .unwrap()
        };
        let mut list = ByWorkload::default();
        let last = run("build-8f3a1c9", "shop/ci:8f3a1c9", "a").workload().unwrap();
        list.insert(last, cores(3.0), 10.0, at(0), at(0));
        let mut learned = LearnedUses::default();
        learned.set(list, at(0));
        let of = |pod: Pod| mean(learned.of(&pod).0);
        assert_eq!(of(run("build-0be77d2", "shop/ci:0be77d2", "a")), Some(3.0));
        // Other words, and the same image and requests.
        assert_eq!(of(run("nightly", "shop/ci:0be77d2", "a")), Some(3.0));
        assert_eq!(of(run("build-0be77d2", "shop/train:0be77d2", "a")), None);
        assert_eq!(of(run("build-8f3a1c9", "shop/ci:8f3a1c9", "b")), None);
    }

    #[test]
    fn a_namespace_says_nothing_of_others() {
        let mut known = ByWorkload::default();
        let by_request = Distribution { mean: 0.25, ..Distribution::default() };
        let used = LearnedUse { amount: Distribution::default(), by_request: Some(by_request) };
        for number in 0..5 {
            let id = WorkloadId { name: format!("db-{number}").into(), ..workload(1) };
            known.insert(id, PerResource { cpu: Some(used), memory: None }, 10.0, at(0), at(0));
        }
        assert_eq!(known.in_namespace("a"), PerResource { cpu: Some(0.25), memory: None });
        assert_eq!(known.in_namespace("b"), PerResource::default());
    }

    #[test]
    fn an_entry_that_a_list_lacks_counts_for_a_day_after_it_was_last_received() {
        let mut learned = LearnedUses::default();
        let list = |amounts: &[(u64, f64)]| {
            let mut list = ByWorkload::default();
            for (template, mean) in amounts {
                list.insert(workload(*template), cores(*mean), 10.0, at(0), at(0));
            }
            list
        };
        learned.set(list(&[(1, 1.0), (2, 2.0)]), at(0));
        learned.confirm(at(1_000));
        // Another annotator leads.
        learned.set(list(&[]), at(1_060));
        let mean_of = |learned: &LearnedUses, template| {
            let known = Arc::clone(&learned.by_workload);
            known.exact.get(&workload(template)).and_then(|entry| mean(entry.learned))
        };
        assert_eq!((mean_of(&learned, 1), mean_of(&learned, 2)), (Some(1.0), Some(2.0)));
        let day = MAX_AGE.as_secs();
        learned.set(list(&[(2, 5.0)]), at(1_000 + day));
        assert_eq!((mean_of(&learned, 1), mean_of(&learned, 2)), (Some(1.0), Some(5.0)));
        learned.set(list(&[(2, 6.0)]), at(1_001 + day));
        assert_eq!((mean_of(&learned, 1), mean_of(&learned, 2)), (None, Some(6.0)));
    }

    #[test]
    fn what_the_newest_list_has_counts_at_once() {
        let mut learned = LearnedUses::default();
        for (second, pod_minutes, used) in [(0, 2078.0, 2.0), (60, 2077.0, 2.1), (120, 5.0, 0.2)] {
            let mut list = ByWorkload::default();
            list.insert(workload(1), cores(used), pod_minutes, at(second), at(second));
            learned.set(list, at(second));
            assert_eq!(mean(learned.by_workload.of(&workload(1))), Some(used));
        }
    }

    #[test]
    fn of_too_many_workloads_those_of_the_newest_list_stay_and_then_the_best_known() {
        let mut learned = LearnedUses::default();
        let list = |names: std::ops::Range<usize>| {
            let mut list = ByWorkload::default();
            for number in names {
                let id = WorkloadId { name: format!("w{number}").into(), ..workload(1) };
                list.insert(id, cores(1.0), 10.0 + number as f64, at(0), at(0));
            }
            list
        };
        learned.set(list(0..MAX_WORKLOADS), at(0));
        learned.set(list(MAX_WORKLOADS..MAX_WORKLOADS + 1_000), at(60));
        let known = Arc::clone(&learned.by_workload);
        let has = |number: usize| {
            known
                .exact
                .contains_key(&WorkloadId { name: format!("w{number}").into(), ..workload(1) })
        };
        assert_eq!(learned.len(), MAX_WORKLOADS);
        assert!((MAX_WORKLOADS..MAX_WORKLOADS + 1_000).all(has) && has(1_000) && !has(999));
    }

    #[test]
    fn an_entry_that_is_no_longer_received_counts_for_a_day() {
        let mut learned = LearnedUses::default();
        let mut known = ByWorkload::default();
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "a", "ownerReferences": [
            { "controller": true, "kind": "StatefulSet", "name": "db", "apiVersion": "apps/v1", "uid": "u" }
        ] } }))
        .unwrap();
        let template = pod.workload().unwrap().template;
        known.insert(workload(template), cores(1.0), 10.0, at(0), at(0));
        learned.set(known, at(0));
        learned.confirm(at(1_000));
        let day = MAX_AGE.as_secs();
        learned.expire(at(1_000 + day));
        assert_eq!(mean(learned.of(&pod).0), Some(1.0));
        learned.expire(at(1_001 + day));
        assert_eq!((mean(learned.of(&pod).0), learned.is_empty()), (None, true));
    }
}
