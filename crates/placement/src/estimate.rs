//! Estimates of what a pod will use, before any reading shows it.
//!
//! Invariant: an estimate depends only on the pod's spec and annotation, and on what pods of its workload used, or else
//! workloads of its namespace. Nothing in other namespaces has an effect on it.
//!
//! The sources, in this order: the pod's own annotation; what its workload was seen to use; its request times the use
//! by request of the workloads in its namespace; requests and limits times factors, as in Koordinator's
//! `LoadAwareScheduling`; a small default. No estimate is above the pod's limit. Unlike in Koordinator, a limit counts
//! for at most 4 times the request: quotas bound requests, and often nothing bounds limits.

use crate::resources::{Amounts, PerResource, PodResources, Resource};

/// A pod's annotation and its limit count for at most this many times its request, or the default if that is more.
/// Requests count against quotas, limits only against quotas that name them, and annotations against none: without this
/// bound, any author of a pod could keep other pods off a node.
const MAX_REQUEST_MULTIPLE: f64 = 4.0;

/// A namespace needs this many workloads before their mean counts for another workload: fewer differ too much from each
/// other.
const MIN_WORKLOADS: u32 = 5;

/// The most that a workload counts for in its namespace's mean of use by request. Otherwise a workload with a very
/// small request would outweigh all others. So the mean is never above 1: whatever workloads an author creates, no
/// unknown workload is estimated above its request, which counts against quotas. A median would be more robust, but
/// sums of estimates need means.
const MAX_RATIO_IN_MEAN: f64 = 1.0;

/// The part of its request (or limit, if that is higher, but at most four times the request) that a pod of an unknown
/// workload is assumed to use: Koordinator's factors.
const USED_OF_REQUEST: PerResource<f64> = PerResource { cpu: 0.85, memory: 0.70 };

/// What a pod with neither request nor limit is assumed to use, in cores and bytes: Koordinator's defaults.
const USED_WITHOUT_REQUEST: Amounts = Amounts { cpu: 0.25, memory: 209_715_200.0 };

/// How the use of pods is estimated that no reading shows yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EstimateRules {
    /// Whether learned use counts. Of it the mean does: estimates of several pods are added up, and quantiles of a sum
    /// are not sums of quantiles.
    pub learned: bool,
}

impl Default for EstimateRules {
    fn default() -> Self {
        Self { learned: true }
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

/// What the pods of one workload were seen to use of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LearnedUse {
    /// What a pod uses: cores, or bytes.
    pub amount: Distribution,
    /// What a pod uses divided by its request. `None` if its pods request nothing.
    pub by_request: Option<Distribution>,
}

/// The mean use by request of the workloads in a namespace, each workload counting once.
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

    /// The means; `None` with fewer than five workloads.
    #[must_use]
    pub fn means(&self) -> PerResource<Option<f64>> {
        PerResource::of(|resource| self.0.get(resource).mean())
    }
}

impl Ratios {
    fn add(&mut self, learned: Option<LearnedUse>) {
        if let Some(by_request) = learned.and_then(|learned| learned.by_request) {
            self.sum += by_request.mean.min(MAX_RATIO_IN_MEAN);
            self.workloads += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.workloads >= MIN_WORKLOADS).then(|| self.sum / f64::from(self.workloads))
    }
}

/// The source of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateSource {
    /// The pod's own annotation.
    Annotation,
    /// What its workload was seen to use.
    Learned,
    /// Its request times the use by request of workloads in its namespace.
    Namespace,
    /// Its request, or its limit if that is higher, but at most four times the request.
    Request,
    /// The default: it has neither request nor limit.
    Fallback,
}

/// What a pod will probably use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Cores and bytes.
    pub amounts: Amounts,
    /// The source of each.
    pub sources: PerResource<EstimateSource>,
}

/// The inputs of a pod's estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodProfile {
    /// The requests and limits of the pod's spec.
    pub resources: PodResources,
    /// The use that its own annotation names.
    pub annotated: PerResource<Option<f64>>,
    /// What its workload was seen to use.
    pub learned: PerResource<Option<LearnedUse>>,
    /// The mean use by request of workloads in its namespace ([`NamespaceRatios::means`]).
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

    fn of(&self, resource: Resource, rules: &EstimateRules) -> (f64, EstimateSource) {
        let request = *self.resources.requests.get(resource);
        let limit = *self.resources.limits.get(resource);
        let mut learned = None;
        let mut in_namespace = None;
        if rules.learned {
            learned = *self.learned.get(resource);
            in_namespace = *self.in_namespace.get(resource);
        }
        let by_namespace = request.filter(|request| *request > 0.0).zip(in_namespace);
        // The API server sets the request of a container with only a limit to that limit.
        let requested = request.or(limit);
        let fallback = *USED_WITHOUT_REQUEST.get(resource);
        let most = MAX_REQUEST_MULTIPLE * requested.unwrap_or(0.0).max(fallback);
        let limit_counts = limit.map(|limit| limit.min(most));
        let base = requested.into_iter().chain(limit_counts).reduce(f64::max);
        let (amount, source) = if let Some(annotated) = *self.annotated.get(resource) {
            (annotated.min(most), EstimateSource::Annotation)
        } else if let Some(learned) = learned {
            (learned.for_request(request), EstimateSource::Learned)
        } else if let Some((request, ratio)) = by_namespace {
            (request * ratio, EstimateSource::Namespace)
        } else if let Some(base) = base {
            (base * USED_OF_REQUEST.get(resource), EstimateSource::Request)
        } else {
            (fallback, EstimateSource::Fallback)
        };
        (limit.map_or(amount, |limit| amount.min(limit)), source)
    }
}

impl LearnedUse {
    /// What a pod with this request will use: the use by request times the request, so that it follows a changed
    /// request, as of a rollout. At most the larger of the request and what pods used: a pod that uses many times its
    /// request does not use more if it requests more.
    fn for_request(&self, request: Option<f64>) -> f64 {
        match (self.by_request, request.filter(|request| *request > 0.0)) {
            (Some(by_request), Some(request)) => {
                (by_request.mean * request).min(request.max(self.amount.mean))
            }
            _ => self.amount.mean,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(profile: PodProfile) -> (f64, EstimateSource) {
        let estimate = profile.estimate(&EstimateRules::default());
        (estimate.amounts.cpu, estimate.sources.cpu)
    }

    fn of_cpu(cpu: Option<f64>) -> PerResource<Option<f64>> {
        PerResource { cpu, memory: None }
    }

    fn asking(request: Option<f64>, limit: Option<f64>) -> PodProfile {
        let resources = PodResources { requests: of_cpu(request), limits: of_cpu(limit) };
        PodProfile { resources, ..PodProfile::default() }
    }

    fn constant(mean: f64) -> Distribution {
        Distribution { mean, p50: mean, ..Distribution::default() }
    }

    fn learned(mean: f64, by_request: Option<f64>) -> PerResource<Option<LearnedUse>> {
        let cpu = LearnedUse { amount: constant(mean), by_request: by_request.map(constant) };
        PerResource { cpu: Some(cpu), memory: None }
    }

    fn with_huge_annotation(profile: PodProfile) -> PodProfile {
        PodProfile { annotated: of_cpu(Some(1e6)), ..profile }
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
        assert_eq!(cpu(with_huge_annotation(asking(Some(2.0), Some(1e6)))).0, 8.0);
        assert_eq!(cpu(with_huge_annotation(asking(Some(0.01), Some(1e6)))).0, 1.0);
    }

    fn estimated(request: f64, amount: f64, by_request: f64) -> f64 {
        let learned = learned(amount, Some(by_request));
        cpu(PodProfile { learned, ..asking(Some(request), None) }).0
    }

    /// Pods that request next to nothing: use by request says nothing of one that requests much.
    #[test]
    fn use_by_request_takes_no_pod_beyond_its_request_and_what_was_measured() {
        assert_eq!(estimated(4.0, 0.64, 64.0), 4.0);
        // Requests that are set to what pods use.
        assert_eq!(estimated(0.5, 0.64, 64.0), 0.64);
        // As those that were measured.
        assert_eq!(estimated(0.01, 0.64, 64.0), 0.64);
        // A rollout that makes pods larger, and one that leaves them as they are.
        assert_eq!(estimated(4.0, 1.0, 0.5), 2.0);
        assert_eq!(estimated(1.0, 1.0, 0.5), 0.5);
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
        for mean in [0.25, 0.25, 0.5, 0.0] {
            ratios.add(&learned(mean, Some(mean)));
        }
        ratios.add(&learned(9.0, None));
        assert_eq!(ratios.means().cpu, None);
        // A hundred times its request: it counts for all of it.
        ratios.add(&learned(100.0, Some(100.0)));
        assert_eq!(ratios.means(), PerResource { cpu: Some(0.4), memory: None });
        let in_namespace = PerResource { cpu: Some(0.25), memory: None };
        let of = |profile| cpu(PodProfile { in_namespace, ..profile });
        assert_eq!(of(asking(Some(2.0), None)), (0.5, EstimateSource::Namespace));
        // Without a request there is nothing to go by.
        assert_eq!(of(asking(None, Some(2.0))), (1.7, EstimateSource::Request));
        let known = PodProfile { learned: learned(0.4, Some(0.5)), ..asking(Some(2.0), None) };
        assert_eq!(of(known), (1.0, EstimateSource::Learned));
    }

    fn mean_with(forged: usize) -> f64 {
        let mut ratios = NamespaceRatios::default();
        (0..20).for_each(|_| ratios.add(&learned(0.5, Some(0.5))));
        (0..forged).for_each(|_| ratios.add(&learned(0.04, Some(4.0))));
        ratios.means().cpu.unwrap()
    }

    #[test]
    fn made_up_workloads_take_no_namespaces_mean_above_requests() {
        assert_eq!((mean_with(0), mean_with(5)), (0.5, 0.6));
        assert!(mean_with(10_000) <= 1.0);
    }

    #[test]
    fn an_annotation_says_at_most_four_times_what_is_asked_for() {
        assert_eq!(cpu(with_huge_annotation(asking(Some(2.0), None))).0, 8.0);
        assert_eq!(cpu(with_huge_annotation(asking(None, None))).0, 1.0);
        assert_eq!(cpu(with_huge_annotation(asking(Some(2.0), Some(3.0)))).0, 3.0);
    }

    #[test]
    fn no_estimate_is_above_the_limit() {
        let known = PodProfile { learned: learned(9.0, None), ..asking(None, Some(2.0)) };
        assert_eq!(cpu(known), (2.0, EstimateSource::Learned));
    }

    #[test]
    fn learned_use_that_is_switched_off_does_not_count() {
        let known = PodProfile { learned: learned(0.4, Some(0.5)), ..asking(Some(2.0), None) };
        let rules = EstimateRules { learned: false };
        assert_eq!(known.estimate(&rules).sources.cpu, EstimateSource::Request);
    }
}
