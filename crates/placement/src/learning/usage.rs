//! The observed use of one workload's pods.

use crate::estimate::LearnedUse;
use crate::resources::{Amounts, PerResource, PodResources, Resource};
use crate::workload::evidence;
use jiff::{SignedDuration, Timestamp};

use super::decaying::Decaying;

/// The pod-minutes from which on the use counts as learned.
const MIN_EVIDENCE: f32 = 5.0;

/// The time after the first observation from which on the use counts as learned: in its first minutes a pod may use
/// more than ever again.
const MIN_SPAN: SignedDuration = SignedDuration::from_mins(5);

/// Longest time that one observation counts for, in minutes.
const MAX_MINUTES: f32 = 60.0;

/// The weight of an earlier template's use in a new template, in pod-minutes.
const INHERITED: f32 = 30.0;

/// One unit of the histograms: a thousandth of a core, and a MiB.
const UNIT: Amounts = PerResource { cpu: 0.001, memory: 1_048_576.0 };

/// The largest use in units: 1,048 cores, 8 TiB.
const HIGH: PerResource<u64> = PerResource { cpu: (1 << 20) - 1, memory: (1 << 23) - 1 };

/// One unit of use by request.
const RATIO_UNIT: f64 = 1.0 / 256.0;

/// The largest use by request. Where a pod uses more, its request says nothing about its use.
const MAX_RATIO: f64 = 64.0;

/// As [`MAX_RATIO`], in units.
const HIGH_RATIO: u64 = (MAX_RATIO / RATIO_UNIT) as u64;

/// The histograms of one workload, by resource.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    first_seen: Timestamp,
    pub(crate) last_seen: Timestamp,
    /// Pod-minutes observed of its own pods; old ones count less.
    pod_minutes: f64,
    of: PerResource<ResourceUsage>,
}

#[derive(Debug, Clone)]
struct ResourceUsage {
    /// Pod-minutes observed; old ones count as much as new ones.
    observed: f32,
    used: Decaying,
    by_request: Decaying,
}

impl Usage {
    pub(crate) fn new(now: Timestamp) -> Self {
        let of = PerResource::of(ResourceUsage::new);
        Self { first_seen: now, last_seen: now, pod_minutes: 0.0, of }
    }

    /// As if this had been learned from pods that were observed for `pod_minutes` until `last_seen`.
    pub(crate) fn restored(
        learned: &PerResource<Option<LearnedUse>>,
        pod_minutes: f64,
        last_seen: Timestamp,
    ) -> Self {
        let minutes = (pod_minutes as f32).max(MIN_EVIDENCE);
        let of = PerResource::of(|resource| match learned.get(resource) {
            Some(learned) => ResourceUsage::restored(resource, learned, minutes),
            None => ResourceUsage::new(resource),
        });
        Self { first_seen: Timestamp::MIN, last_seen, pod_minutes, of }
    }

    /// The initial use of a new template: this template's use with the weight of half an hour of one pod.
    pub(crate) fn inherited(&self, growth: f32, now: Timestamp) -> Self {
        let mut copy = Self { last_seen: now, ..self.clone() };
        copy.age(growth);
        copy.pod_minutes = 0.0;
        for each in [&mut copy.of.cpu, &mut copy.of.memory] {
            each.observed = each.observed.min(INHERITED);
            each.used.reduce_to(INHERITED);
            each.by_request.reduce_to(INHERITED);
        }
        copy
    }

    /// New observations weigh more by this factor than those before.
    pub(crate) fn age(&mut self, growth: f32) {
        self.pod_minutes /= f64::from(growth);
        for each in [&mut self.of.cpu, &mut self.of.memory] {
            each.used.age(growth);
            each.by_request.age(growth);
        }
    }

    /// Records that a pod with `resources` used `used` for `minutes`; `draws` are from 0 up to 1.
    pub(crate) fn record(
        &mut self,
        resources: &PodResources,
        used: PerResource<Option<f64>>,
        minutes: f32,
        now: Timestamp,
        draws: [f32; 4],
    ) {
        self.first_seen = self.first_seen.min(now);
        self.last_seen = now;
        let lasted = minutes.min(MAX_MINUTES);
        self.pod_minutes += f64::from(lasted);
        let PodResources { requests, .. } = resources;
        if let Some(used) = used.cpu {
            self.of.cpu.record(used, requests.cpu, UNIT.cpu, lasted, [draws[0], draws[1]]);
        }
        if let Some(used) = used.memory {
            self.of.memory.record(used, requests.memory, UNIT.memory, lasted, [draws[2], draws[3]]);
        }
    }

    /// Pod-minutes observed of its own pods, not of an earlier template's, as they weigh at `last_seen`.
    pub(crate) fn pod_minutes(&self) -> f64 {
        self.pod_minutes
    }

    /// The amount of evidence, for a comparison with other workloads.
    pub(crate) fn evidence(&self, half_life: SignedDuration) -> f64 {
        evidence(self.pod_minutes, self.last_seen, half_life)
    }

    /// The learned use; `None` for a resource with too little evidence.
    pub(crate) fn learned(&self) -> PerResource<Option<LearnedUse>> {
        if self.last_seen.duration_since(self.first_seen) < MIN_SPAN {
            return PerResource::default();
        }
        PerResource::of(|resource| self.of.get(resource).learned(*UNIT.get(resource)))
    }
}

impl ResourceUsage {
    fn new(resource: Resource) -> Self {
        Self {
            observed: 0.0,
            used: Decaying::new(*HIGH.get(resource)),
            by_request: Decaying::new(HIGH_RATIO),
        }
    }

    fn restored(resource: Resource, learned: &LearnedUse, minutes: f32) -> Self {
        let (high, unit) = (*HIGH.get(resource), *UNIT.get(resource));
        let by_request = learned.by_request.as_ref();
        Self {
            observed: minutes,
            used: Decaying::restored(high, &learned.amount, unit, minutes),
            by_request: by_request.map_or_else(
                || Decaying::new(HIGH_RATIO),
                |ratio| Decaying::restored(HIGH_RATIO, ratio, RATIO_UNIT, minutes),
            ),
        }
    }

    fn record(
        &mut self,
        used: f64,
        request: Option<f64>,
        unit: f64,
        minutes: f32,
        draws: [f32; 2],
    ) {
        self.observed += minutes;
        self.used.record((used / unit).round() as u64, minutes, draws[0]);
        let ratio = request.filter(|request| *request > 0.0).map(|request| used / request);
        if let Some(ratio) = ratio.filter(|ratio| *ratio <= MAX_RATIO) {
            self.by_request.record((ratio / RATIO_UNIT).round() as u64, minutes, draws[1]);
        }
    }

    fn learned(&self, unit: f64) -> Option<LearnedUse> {
        if self.observed < MIN_EVIDENCE {
            return None;
        }
        let amount = self.used.distribution(unit)?;
        // Use by request counts where most pods request something that is not out of proportion to their use.
        let by_request = if self.by_request.minutes() >= self.used.minutes() / 2.0 {
            self.by_request.distribution(RATIO_UNIT)
        } else {
            None
        };
        Some(LearnedUse { amount, by_request })
    }
}

/// Whether an amount is one that a pod can use.
pub(crate) fn is_possible(resource: Resource, used: f64) -> bool {
    used >= 0.0 && used <= *HIGH.get(resource) as f64 * UNIT.get(resource)
}
