//! What placements on one node cost.

use super::kind::{Kind, PricedGpu, fitting};
use super::large::PricedKind;
use super::measure::{Cost, Measure};
use crate::gpu::{FreeGpu, GpuShare};

/// A node's current state, computed once for all placements on it that are compared.
pub(in crate::gpu) struct MeasuredNode<'m> {
    measure: &'m Measure,
    /// Free CPU, in thousandths of a core; `None` if it is not known: then it does not count.
    cpu: Option<u64>,
    /// The GPUs, in the given order; `None` for those that take no new pods.
    gpus: Vec<Option<PricedGpu>>,
    /// The free room of all GPUs together, in GPUs.
    free_gpus: f64,
    /// For each kind of the measure, the room for its pods.
    rooms_for_kinds: Vec<RoomForKind>,
    /// For each kind with several GPUs for which places have a price, how many GPUs its pods fit.
    fitting_large: Vec<usize>,
    /// The useless room of the current state, in GPUs.
    useless_now: f64,
}

/// A node's free room for one kind of pod.
#[derive(Clone, Copy, Default)]
struct RoomForKind {
    /// How many GPUs its pods fit.
    fitting: usize,
    /// The free room of all other GPUs, in GPUs.
    unusable: f64,
}

/// A GPU before and after a placement.
type Change = (PricedGpu, PricedGpu);

impl<'m> MeasuredNode<'m> {
    pub(in crate::gpu) fn new(measure: &'m Measure, cpu: Option<u64>, gpus: &[&FreeGpu]) -> Self {
        let measured = measure.priced_gpus(gpus.iter().copied());
        let room_for = |kind: &Kind| RoomForKind::on(measured.iter().flatten(), kind);
        let fitting = |large: &PricedKind| fitting(measured.iter().flatten(), &large.kind);
        let mut node = Self {
            measure,
            cpu,
            free_gpus: measured.iter().flatten().map(|gpu| gpu.part).sum(),
            rooms_for_kinds: measure.kinds.iter().map(room_for).collect(),
            fitting_large: measure.large.priced.iter().map(fitting).collect(),
            useless_now: 0.0,
            gpus: measured,
        };
        node.useless_now = node.useless_room(cpu, &[]);
        node
    }

    /// What it costs to place a pod with this CPU, in thousandths of a core, and these shares of the GPUs at these
    /// positions.
    pub(in crate::gpu) fn cost(&self, cpu: u64, shares: &[(usize, GpuShare)]) -> Cost {
        let changes: Vec<Change> = shares
            .iter()
            .filter_map(|(at, share)| {
                let gpu = self.gpus.get(*at).copied().flatten()?;
                Some((gpu, gpu.with(*share)))
            })
            .collect();
        let left = self.cpu.map(|free| free.saturating_sub(cpu));
        // Whole millionths, so that rounding errors do not decide between equal nodes.
        Cost(((self.useless_room(left, &changes) - self.useless_now) * 1e6).round() as i64)
    }

    /// The useless room of the node with these changes, in GPUs, up to a constant: packing loss covers the changed
    /// GPUs only, and places that are left count as negative.
    fn useless_room(&self, cpu: Option<u64>, changes: &[Change]) -> f64 {
        let taken: f64 = changes.iter().map(|(before, after)| before.part - after.part).sum();
        let free_gpus = self.free_gpus - taken;
        let mut fragments = 0.0;
        for (kind, now) in self.measure.kinds.iter().zip(&self.rooms_for_kinds) {
            let mut sum = *now;
            for (before, after) in changes {
                sum.remove(kind, before);
                sum.add(kind, after);
            }
            let is_short = cpu.is_some_and(|cpu| cpu < kind.cpu) || sum.fitting < kind.gpus;
            fragments += kind.weight * if is_short { free_gpus } else { sum.unusable };
        }
        let stranded = cpu.map_or(0.0, |cpu| self.measure.stranded(free_gpus, cpu));
        let mut packing = 0.0;
        for (before, after) in changes {
            packing +=
                self.measure.packing_loss(after.room) - self.measure.packing_loss(before.room);
        }
        let mut places = 0.0;
        let priced = &self.measure.large.priced;
        for (PricedKind { kind, price }, fitting) in priced.iter().zip(&self.fitting_large) {
            let fits = |gpu: &PricedGpu| kind.fits(gpu.model, gpu.room);
            let lost =
                changes.iter().filter(|(before, after)| fits(before) && !fits(after)).count();
            places += price * kind.places(fitting - lost, cpu) as f64;
        }
        fragments + stranded + packing - places
    }
}

impl Measure {
    /// How many kinds of pods request at most this CPU; kinds are sorted by CPU.
    fn kinds_up_to(&self, cpu: u64) -> usize {
        self.kinds.partition_point(|kind| kind.cpu <= cpu)
    }

    /// How many of these free GPUs this CPU does not suffice for.
    fn stranded(&self, free_gpus: f64, cpu: u64) -> f64 {
        if self.cpu_by_gpu > 0.0 {
            (free_gpus - cpu as f64 / self.cpu_by_gpu).max(0.0)
        } else {
            0.0
        }
    }

    /// The cost of a pod without GPUs on a node with `cpu` free: `requested` is what the pod takes of it, both in
    /// thousandths of a core. As [`MeasuredNode::cost`]. Most nodes have enough CPU for all kinds of pods before and
    /// after; these take little time.
    pub fn cost_of_cpu<'c>(
        &self,
        gpus: impl ExactSizeIterator<Item = &'c FreeGpu>,
        cpu: u64,
        requested: u64,
    ) -> Cost {
        let left = cpu.saturating_sub(requested);
        let no_longer_fitting = &self.kinds[self.kinds_up_to(left)..self.kinds_up_to(cpu)];
        // Of a place that stays where all GPUs are free, none is lost where fewer are.
        let places_stay = self.large.priced.iter().all(|PricedKind { kind, .. }| {
            kind.places(gpus.len(), Some(cpu)) == kind.places(gpus.len(), Some(left))
        });
        let is_enough = left as f64 >= self.cpu_by_gpu * gpus.len() as f64;
        if no_longer_fitting.is_empty() && places_stay && is_enough {
            return Cost(0);
        }
        let gpus: Vec<PricedGpu> = self.priced_gpus(gpus).into_iter().flatten().collect();
        let free_gpus: f64 = gpus.iter().map(|gpu| gpu.part).sum();
        let fragments: f64 = no_longer_fitting
            .iter()
            .map(|kind| {
                let now = RoomForKind::on(gpus.iter(), kind);
                kind.weight * if now.fitting < kind.gpus { 0.0 } else { free_gpus - now.unusable }
            })
            .sum();
        let stranded = self.stranded(free_gpus, left) - self.stranded(free_gpus, cpu);
        let mut places = 0.0;
        for PricedKind { kind, price } in &self.large.priced {
            let fitting = fitting(gpus.iter(), kind);
            let lost = kind.places(fitting, Some(cpu)) - kind.places(fitting, Some(left));
            places += price * lost as f64;
        }
        Cost(((fragments + stranded + places) * 1e6).round() as i64)
    }
}

impl RoomForKind {
    /// The room of these GPUs together.
    fn on<'c>(gpus: impl Iterator<Item = &'c PricedGpu>, kind: &Kind) -> Self {
        let mut sum = Self::default();
        gpus.for_each(|gpu| sum.add(kind, gpu));
        sum
    }

    fn add(&mut self, kind: &Kind, gpu: &PricedGpu) {
        if kind.fits(gpu.model, gpu.room) { self.fitting += 1 } else { self.unusable += gpu.part }
    }

    fn remove(&mut self, kind: &Kind, gpu: &PricedGpu) {
        if kind.fits(gpu.model, gpu.room) { self.fitting -= 1 } else { self.unusable -= gpu.part }
    }
}
