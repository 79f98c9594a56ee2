//! What a pod will probably use, before any reading shows it.
//!
//! Invariant: the estimate of a pod follows from its own spec and annotation, and from what pods of its own workload used, or
//! else workloads of its own namespace; nothing that is written in another namespace bears on it.
//!
//! In this order: the pod's own annotation, what its workload was seen to use, its request times what its namespace's
//! workloads use of theirs, requests and limits times factors (as in Koordinator's `LoadAwareScheduling`), a small default.
//! No estimate is above the pod's limit. Unlike in Koordinator, a limit counts for no more than some times the request: quotas
//! bound requests, and often nothing bounds limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::{Amounts, PerResource, PodResources, Resource};

/// How many times its request (or the default, where that is more) a pod's own annotation may say that it uses, and how much
/// of its limit counts. Requests count against quotas, annotations against nothing and limits only against quotas that name
/// them: an author could otherwise keep any node free.
const MOST_OF_REQUEST: f64 = 4.0;

/// From so many workloads on a namespace says what another one will use: fewer differ too much from each other.
const MIN_WORKLOADS: u32 = 5;

/// No workload counts for more than this by request in its namespace's mean: one that asks for next to nothing would
/// outweigh all others. So no mean is above it: whatever workloads an author makes up, no unknown one is estimated above
/// its request, which counts against quotas. The median would withstand more of them, but sums of estimates need means.
const MOST_IN_A_MEAN: f64 = 1.0;

/// How pods without a reading are estimated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimateRules {
    /// Whether learned use counts.
    pub learned: bool,
    /// Which part of the learned use counts.
    pub statistic: Statistic,
    /// What part of its request (or limit, where that is higher, but at most four times as much) a pod of an unknown workload
    /// is taken to use.
    pub factors: PerResource<f64>,
    /// What a pod that names neither is taken to use.
    pub fallback: Amounts,
}

/// Koordinator's factors and defaults: 85% and 70%, 250 thousandths of a core and 200 MiB. Of learned use the mean: estimates
/// of several pods are added up, and quantiles of a sum are not sums of quantiles.
impl Default for EstimateRules {
    fn default() -> Self {
        Self {
            learned: true,
            statistic: Statistic::Mean,
            factors: PerResource { cpu: 0.85, memory: 0.70 },
            fallback: Amounts { cpu: 0.25, memory: 200.0 * f64::from(1 << 20) },
        }
    }
}

/// A part of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Statistic {
    /// The mean.
    Mean,
    /// The median.
    P50,
    /// The 90th percentile.
    P90,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
}

impl Statistic {
    /// Its name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
        }
    }
}

/// The statistics of a distribution that are kept of learned use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Distribution {
    /// One of its statistics.
    pub fn get(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Mean => self.mean,
            Statistic::P50 => self.p50,
            Statistic::P90 => self.p90,
            Statistic::P95 => self.p95,
            Statistic::P99 => self.p99,
        }
    }
}

/// What the pods of one workload were seen to use of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LearnedUse {
    /// Use of a pod: cores, or bytes.
    pub amount: Distribution,
    /// Use of a pod by its request: 1 is all of it. `None` where its pods request nothing.
    pub by_request: Option<Distribution>,
}

/// What the workloads of a namespace use by their requests: the mean, where each workload counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NamespaceRatios(PerResource<Ratios>);

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Ratios {
    sum: f64,
    workloads: u32,
}

impl NamespaceRatios {
    /// Adds a workload.
    pub fn add(&mut self, learned: &PerResource<Option<LearnedUse>>) {
        self.0.cpu.add(learned.cpu);
        self.0.memory.add(learned.memory);
    }

    /// The means; `None` of fewer than five workloads.
    #[must_use]
    pub fn means(&self) -> PerResource<Option<f64>> {
        PerResource::of(|resource| self.0.get(resource).mean())
    }
}

impl Ratios {
    fn add(&mut self, learned: Option<LearnedUse>) {
        if let Some(by_request) = learned.and_then(|learned| learned.by_request) {
            self.sum += by_request.mean.min(MOST_IN_A_MEAN);
            self.workloads += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.workloads >= MIN_WORKLOADS).then(|| self.sum / f64::from(self.workloads))
    }
}

/// What an estimate is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateSource {
    /// The pod's own annotation.
    Annotation,
    /// What its workload was seen to use.
    Learned,
    /// Its request, and what workloads of its namespace use of theirs.
    Namespace,
    /// Its request, or its limit where that is higher, but no more than some times the request.
    Request,
    /// It names neither.
    Fallback,
}

/// What a pod will probably use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Cores and bytes.
    pub amounts: Amounts,
    /// What each was made from.
    pub sources: PerResource<EstimateSource>,
}

/// Everything that an estimate follows from.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodProfile {
    /// What the pod's spec asks for.
    pub resources: PodResources,
    /// What its own annotation says that it uses.
    pub annotated: PerResource<Option<f64>>,
    /// What its workload was seen to use.
    pub learned: PerResource<Option<LearnedUse>>,
    /// What workloads of its namespace use by their requests ([`NamespaceRatios::means`]).
    pub in_namespace: PerResource<Option<f64>>,
}

impl PodProfile {
    /// What the pod will probably use.
    pub fn estimate(&self, rules: &EstimateRules) -> Estimate {
        let each = PerResource::of(|resource| self.of(resource, rules));
        Estimate {
            amounts: PerResource::of(|resource| each.get(resource).0),
            sources: PerResource::of(|resource| each.get(resource).1),
        }
    }

    /// What is known of the estimate by measuring the pod's workload; nothing of a resource that was only guessed, and no more
    /// than its pods were seen to use, whatever this one requests. A guess may be held against a node, but takes nothing off
    /// what was measured of others.
    pub fn measured(&self, rules: &EstimateRules) -> Amounts {
        PerResource::of(|resource| match (self.of(resource, rules), self.learned.get(resource)) {
            ((amount, EstimateSource::Learned), Some(learned)) => {
                amount.min(learned.most(rules.statistic))
            }
            _ => 0.0,
        })
    }

    fn of(&self, resource: Resource, rules: &EstimateRules) -> (f64, EstimateSource) {
        let request = *self.resources.requests.get(resource);
        let limit = *self.resources.limits.get(resource);
        let learned = self.learned.get(resource).filter(|_| rules.learned);
        let in_namespace = self.in_namespace.get(resource).filter(|_| rules.learned);
        let by_namespace = request.filter(|request| *request > 0.0).zip(in_namespace);
        // The API server sets the request of a container that names its limit alone to that.
        let requested = request.or(limit);
        let most = MOST_OF_REQUEST * requested.unwrap_or(0.0).max(*rules.fallback.get(resource));
        let limit_counts = limit.map(|limit| limit.min(most));
        let asked = requested.into_iter().chain(limit_counts).reduce(f64::max);
        let (amount, source) = if let Some(annotated) = *self.annotated.get(resource) {
            (annotated.min(most), EstimateSource::Annotation)
        } else if let Some(learned) = learned {
            (learned.for_request(request, rules.statistic), EstimateSource::Learned)
        } else if let Some((request, ratio)) = by_namespace {
            (request * ratio, EstimateSource::Namespace)
        } else if let Some(asked) = asked {
            (asked * rules.factors.get(resource), EstimateSource::Request)
        } else {
            (*rules.fallback.get(resource), EstimateSource::Fallback)
        };
        (limit.map_or(amount, |limit| amount.min(limit)), source)
    }
}

impl LearnedUse {
    /// What a pod with that request will use: use by request follows a changed request, as of a rollout. But not beyond both
    /// the request and what pods used: those that use many times their request do not use more because they request more.
    fn for_request(&self, request: Option<f64>, statistic: Statistic) -> f64 {
        let request = request.filter(|request| *request > 0.0);
        match (self.by_request, request) {
            (Some(by_request), Some(request)) => {
                (by_request.get(statistic) * request).min(request.max(self.most(statistic)))
            }
            _ => self.amount.get(statistic),
        }
    }

    /// What pods used at most, but for one in a hundred. A mean can be above that.
    fn most(&self, statistic: Statistic) -> f64 {
        self.amount.p99.max(self.amount.get(statistic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(profile: PodProfile) -> (f64, EstimateSource) {
        let estimate = profile.estimate(&EstimateRules::default());
        (estimate.amounts.cpu, estimate.sources.cpu)
    }

    fn asking(request: Option<f64>, limit: Option<f64>) -> PodProfile {
        let of = |cpu| PerResource { cpu, memory: None };
        let resources = PodResources { requests: of(request), limits: of(limit) };
        PodProfile { resources, ..PodProfile::default() }
    }

    fn learned(mean: f64, by_request: Option<f64>) -> PerResource<Option<LearnedUse>> {
        let all = |mean| Distribution { mean, ..Distribution::default() };
        let cpu = LearnedUse { amount: all(mean), by_request: by_request.map(all) };
        PerResource { cpu: Some(cpu), memory: None }
    }

    #[test]
    fn an_unknown_workload_is_estimated_from_requests_and_limits_as_in_koordinator() {
        assert_eq!(cpu(asking(Some(2.0), None)), (1.7, EstimateSource::Request));
        // The limit is higher, so it counts.
        assert_eq!(cpu(asking(Some(1.0), Some(4.0))), (3.4, EstimateSource::Request));
        assert_eq!(cpu(asking(None, None)), (0.25, EstimateSource::Fallback));
    }

    #[test]
    fn a_limit_counts_for_at_most_four_times_the_request() {
        assert_eq!(cpu(asking(Some(1.0), Some(1e6))), (3.4, EstimateSource::Request));
        // Four times the default where that is more than the request.
        assert_eq!(cpu(asking(Some(0.01), Some(1e6))), (0.85, EstimateSource::Request));
        assert_eq!(cpu(asking(Some(0.0), Some(0.1))).0, 0.1 * 0.85);
        let annotated = PerResource { cpu: Some(1e6), memory: None };
        let of = |profile| cpu(PodProfile { annotated, ..profile }).0;
        assert_eq!(of(asking(Some(2.0), Some(1e6))), 8.0);
        assert_eq!(of(asking(Some(0.01), Some(1e6))), 1.0);
    }

    /// Pods that request next to nothing: use by request says nothing of one that requests much.
    #[test]
    fn use_by_request_takes_no_pod_beyond_its_request_and_what_was_measured() {
        let of = |request, amount, by_request| {
            let learned = learned(amount, Some(by_request));
            let profile = PodProfile { learned, ..asking(Some(request), None) };
            let rules = EstimateRules::default();
            (profile.estimate(&rules).amounts.cpu, profile.measured(&rules).cpu)
        };
        assert_eq!(of(4.0, 0.64, 64.0), (4.0, 0.64));
        // Requests that are set to what pods use.
        assert_eq!(of(0.5, 0.64, 64.0), (0.64, 0.64));
        // As those that were measured.
        assert_eq!(of(0.01, 0.64, 64.0), (0.64, 0.64));
        // A rollout that makes pods larger; until it is measured, a part of that is a guess.
        assert_eq!(of(4.0, 1.0, 0.5), (2.0, 1.0));
        assert_eq!(of(1.0, 1.0, 0.5), (0.5, 0.5));
    }

    #[test]
    fn learned_use_follows_the_request_and_an_annotation_goes_before_it() {
        let of_two_cores = asking(Some(2.0), None);
        let known = PodProfile { learned: learned(0.4, Some(0.5)), ..of_two_cores };
        assert_eq!(cpu(known), (1.0, EstimateSource::Learned));
        let without_request = PodProfile { learned: learned(0.4, Some(0.5)), ..asking(None, None) };
        assert_eq!(cpu(without_request), (0.4, EstimateSource::Learned));
        let annotated = PerResource { cpu: Some(3.0), memory: None };
        let annotated = PodProfile { annotated, ..known };
        assert_eq!(cpu(annotated), (3.0, EstimateSource::Annotation));
    }

    #[test]
    fn an_unknown_workload_uses_its_request_as_its_namespace_does() {
        let mut ratios = NamespaceRatios::default();
        let used = |mean| learned(mean, Some(mean));
        [0.25, 0.25, 0.5, 0.0].iter().for_each(|mean| ratios.add(&used(*mean)));
        ratios.add(&learned(9.0, None));
        assert_eq!(ratios.means().cpu, None);
        // A hundred times its request: it counts for all of it.
        ratios.add(&used(100.0));
        assert_eq!(ratios.means(), PerResource { cpu: Some(0.4), memory: None });
        let in_namespace = PerResource { cpu: Some(0.25), memory: None };
        let of = |profile| cpu(PodProfile { in_namespace, ..profile });
        assert_eq!(of(asking(Some(2.0), None)), (0.5, EstimateSource::Namespace));
        // Without a request there is nothing to go by.
        assert_eq!(of(asking(None, Some(2.0))), (1.7, EstimateSource::Request));
        let known = PodProfile { learned: learned(0.4, Some(0.5)), ..asking(Some(2.0), None) };
        assert_eq!(of(known), (1.0, EstimateSource::Learned));
        let guessed = PodProfile { in_namespace, ..asking(Some(2.0), None) };
        assert_eq!(guessed.measured(&EstimateRules::default()).cpu, 0.0);
    }

    #[test]
    fn made_up_workloads_take_no_namespaces_mean_above_requests() {
        let with = |forged| {
            let mut ratios = NamespaceRatios::default();
            (0..20).for_each(|_| ratios.add(&learned(0.5, Some(0.5))));
            (0..forged).for_each(|_| ratios.add(&learned(0.04, Some(4.0))));
            ratios.means().cpu.unwrap()
        };
        assert_eq!((with(0), with(5)), (0.5, 0.6));
        assert!(with(10_000) <= 1.0);
    }

    #[test]
    fn an_annotation_says_at_most_four_times_what_is_asked_for() {
        let annotated = PerResource { cpu: Some(1e6), memory: None };
        let of = |profile| cpu(PodProfile { annotated, ..profile }).0;
        assert_eq!((of(asking(Some(2.0), None)), of(asking(None, None))), (8.0, 1.0));
        assert_eq!(of(asking(Some(2.0), Some(3.0))), 3.0);
    }

    #[test]
    fn only_learned_use_is_measured() {
        let known = PodProfile { learned: learned(1.0, Some(0.5)), ..asking(Some(2.0), None) };
        let measured = |profile: PodProfile| profile.measured(&EstimateRules::default());
        assert_eq!(measured(known), Amounts { cpu: 1.0, memory: 0.0 });
        assert_eq!(measured(asking(Some(2.0), None)), Amounts::default());
    }

    #[test]
    fn no_estimate_is_above_the_limit() {
        let known = PodProfile { learned: learned(9.0, None), ..asking(None, Some(2.0)) };
        assert_eq!(cpu(known), (2.0, EstimateSource::Learned));
    }

    #[test]
    fn learned_use_that_is_switched_off_does_not_count() {
        let known = PodProfile { learned: learned(0.4, Some(0.5)), ..asking(Some(2.0), None) };
        let rules = EstimateRules { learned: false, ..EstimateRules::default() };
        assert_eq!(known.estimate(&rules).sources.cpu, EstimateSource::Request);
    }
}
