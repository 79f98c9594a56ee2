//! Which pods arrive when, what they ask for, how long they live and what they use: a pure function of cell and seed.
//!
//! Invariant: nothing here depends on a policy. A golden test holds the first arrivals and the sums of one seed, so
//! that figures of two versions of a policy compare. `WORKLOAD.md` describes the model for people.

mod apps;
mod arrivals;
mod lognormal;
mod noise;
mod replay;
mod traces;

use std::sync::Arc;

pub use self::apps::{App, AppKind};
pub use self::arrivals::BURST_PODS;
pub use self::noise::{Ar1, mix};
pub use self::replay::Replay;
pub use self::traces::Traces;
use crate::cell::{Cell, Variant};
use crate::cluster::{NODE_CORES, NODE_MEMORY, NodeId, Scale};
use crate::time::{DAY, HOUR, STEP_SECONDS, Step};

/// A pod's place in [`Workload::pods`].
pub type PodId = usize;
/// An app's place in [`Workload::apps`].
pub type AppId = usize;

/// One pod, in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pod {
    /// The Deployment or Job that it belongs to.
    pub app: AppId,
    /// When it is created. Pods that run already when the simulation begins have 0.
    pub arrival: Step,
    /// For how long it runs; of a pod that runs already, the rest.
    pub life: Step,
    /// Steps from its binding until it uses anything; 0 of a pod that runs already.
    pub start_delay: Step,
    /// Whether it runs already when the simulation begins, and has no start-up surge.
    pub settled: bool,
    /// Its own ratio to what its app's pods use; 1 on average.
    pub factor: f32,
    /// Memory that it uses, in MiB; constant.
    pub memory_used: u32,
    /// What its noise follows from.
    pub noise: u64,
}

/// How far use varies, and how long pods live.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traits {
    /// Standard deviation of the logarithm of an app's noise (correlated over an hour).
    pub app_noise: f64,
    /// Standard deviation of the logarithm of a pod's noise (correlated over five minutes).
    pub pod_noise: f64,
    /// Standard deviation of the logarithm of a pod's own ratio.
    pub pod_ratio: f64,
    /// Standard deviation of the logarithm by which an app's ratio changes from day to day; 0: it does not.
    pub daily_ratio: f64,
    /// By how much of the mean arrivals rise at 15:00 and fall at 3:00.
    pub arrival_rhythm: f64,
    /// Median lifetime of services and jobs in seconds.
    pub median_life: [f64; 2],
    /// Memory request by requested core in GiB: the median of a lognormal number, and where it is cut.
    pub gib_per_core: [f64; 3],
    /// Memory use by request: median and standard deviation of the logarithm.
    pub memory_ratio: [f64; 2],
    /// Memory in use as a fraction of the cluster; `None` where it follows from the rest.
    pub memory_target: Option<f64>,
    /// Whether best-effort batch runs on every node.
    pub batch: bool,
}

impl Traits {
    /// The traits of a variant.
    pub fn of(variant: Variant) -> Self {
        let frozen = Self {
            app_noise: 0.2,
            pod_noise: 0.3,
            pod_ratio: 0.2,
            daily_ratio: 0.0,
            arrival_rhythm: 0.5,
            median_life: [8.0 * 3600.0, 20.0 * 60.0],
            gib_per_core: [3.0, 1.0, 8.0],
            memory_ratio: [0.6, 0.3],
            memory_target: None,
            batch: false,
        };
        match variant {
            Variant::Frozen => frozen,
            Variant::Noisy => {
                Self { app_noise: 0.4, pod_noise: 0.6, pod_ratio: 0.4, daily_ratio: 0.5, ..frozen }
            }
            // Pods that live for two hours follow the arrivals: with 0.5 they would ask for more than the cluster at
            // 15:00.
            Variant::ShortLived => {
                Self { arrival_rhythm: 0.2, median_life: [2.0 * 3600.0, 10.0 * 60.0], ..frozen }
            }
            // Requests fill four fifths of the memory on average.
            Variant::Memory => Self {
                arrival_rhythm: 0.2,
                gib_per_core: [5.0, 1.0, 12.0],
                memory_ratio: [0.93, 0.05],
                memory_target: Some(0.75),
                ..frozen
            },
            Variant::Batch => Self { batch: true, ..frozen },
            // Requests that fill nine tenths on average leave no room for a rhythm of the arrivals.
            Variant::Levels => Self { arrival_rhythm: 0.0, ..frozen },
        }
    }
}

/// All apps and pods of a run.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The cell it belongs to.
    pub cell: Cell,
    /// The seed.
    pub seed: u64,
    /// Size and timetable of the cluster.
    pub scale: Scale,
    /// How far use varies.
    pub traits: Traits,
    /// Lasting apps first, then those that came with a burst.
    pub apps: Vec<App>,
    /// In the order of arrival.
    pub pods: Vec<Pod>,
    /// What pods use, where that was recorded; `None` where it follows from ratios, rhythms and noise.
    pub replay: Option<Replay>,
}

/// What a workload asks for and uses if each pod is bound when it arrives, as fractions of capacity over the counted
/// time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offered {
    /// CPU that is requested.
    pub cpu_requested: f64,
    /// CPU that is used, but for noise.
    pub cpu_used: f64,
    /// Memory that is requested.
    pub memory_requested: f64,
    /// Memory that is used.
    pub memory_used: f64,
}

impl Workload {
    /// The workload of a cell and a seed on a cluster of that scale.
    ///
    /// Rates and ratios give the cell's mean use in expectation. A few large bursts can take one seed a tenth away from
    /// it, so that all ratios are corrected by one factor at the end: each seed offers exactly the cell's mean use.
    pub fn new(cell: Cell, seed: u64, scale: Scale) -> Self {
        let traits = Traits::of(cell.variant);
        let mut catalogue = apps::Catalogue::new(cell, seed, &scale, &traits);
        let pods = arrivals::generate(&mut catalogue, &scale);
        let mut this = Self { cell, seed, scale, traits, apps: catalogue.apps, pods, replay: None };
        let offered = this.offered();
        let correction = cell.target() / offered.cpu_used;
        this.apps.iter_mut().for_each(|app| app.ratio *= correction);
        if let Some(target) = traits.memory_target {
            let correction = target / offered.memory_used;
            let corrected = |mebibytes: u32| (f64::from(mebibytes) * correction).round() as u32;
            this.apps.iter_mut().for_each(|app| app.memory = corrected(app.memory));
            this.pods.iter_mut().for_each(|pod| pod.memory_used = corrected(pod.memory_used));
        }
        this
    }

    /// The workload of a cell of traces.
    pub fn replayed(cell: Cell, seed: u64, scale: Scale, traces: &Arc<Traces>) -> Self {
        replay::workload(cell, seed, scale, traces)
    }

    /// How many apps there are up to the last one that serves.
    pub fn services(&self) -> usize {
        let last = self.apps.iter().rposition(|app| app.kind == AppKind::Service);
        last.map_or(0, |last| last + 1)
    }

    /// The part of a node's idle CPU that best-effort batch uses: 0.2 to 1, drawn anew each hour, for each node at a
    /// time of its own.
    pub fn batch(&self, node: NodeId, step: Step) -> f64 {
        if !self.traits.batch {
            return 0.0;
        }
        let hour = (step as usize + node * 37) / HOUR as usize;
        let drawn = mix(mix(self.seed ^ (node as u64) << 32) ^ hour as u64);
        0.2 + 0.8 * (drawn >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// By how much more or less an app uses at a step than on average: day rhythm and the ratio of the day.
    pub fn rhythm(&self, app: &App, step: Step) -> f64 {
        let angle = app.angle(f64::from(step % DAY) / f64::from(DAY));
        (1.0 + app.amplitude * angle.cos()) * self.daily(app, step)
    }

    /// The ratio of the app's day, where ratios change by day. The day of an app begins at a time of its own.
    fn daily(&self, app: &App, step: Step) -> f64 {
        let sigma = self.traits.daily_ratio;
        let day = (step + DAY - app.day_begins) / DAY;
        if sigma > 0.0 { noise::daily_ratio(app.noise, day, sigma) } else { 1.0 }
    }

    /// The sum of [`Workload::rhythm`] over the steps from `begin` to `end`.
    fn rhythm_within(&self, app: &App, begin: Step, end: Step) -> f64 {
        let mut sum = 0.0;
        let mut at = begin;
        while at < end {
            // To the next change of the day's ratio.
            let into_day = (at + DAY - app.day_begins % DAY) % DAY;
            let until = (at + DAY - into_day).min(end);
            let length = f64::from(until - at);
            let middle = at + (until - at) / 2;
            // The mean of a cosine over a span is that of its middle, times sin(x)/x of half the span.
            let half = length / f64::from(DAY) * std::f64::consts::PI;
            let damping = if half > 1e-9 { half.sin() / half } else { 1.0 };
            let angle = app.angle(f64::from(middle % DAY) / f64::from(DAY));
            sum += length * (1.0 + app.amplitude * angle.cos() * damping) * self.daily(app, at);
            at = until;
        }
        sum
    }

    /// What is asked for and used if nothing waits.
    pub fn offered(&self) -> Offered {
        let from = self.scale.counted_from;
        let to = self.scale.steps;
        let mut cpu = 0.0;
        let mut used = 0.0;
        let mut memory = 0.0;
        let mut memory_used = 0.0;
        for pod in &self.pods {
            let app = &self.apps[pod.app];
            let begin = pod.arrival.max(from);
            let end = (pod.arrival + pod.life).min(to);
            let present = f64::from(end.saturating_sub(begin));
            cpu += present * app.cores();
            memory += present * f64::from(app.memory);
            memory_used += present * f64::from(pod.memory_used);
            used += self.use_of(pod);
        }
        let capacity = self.capacity_steps(from, to);
        Offered {
            cpu_requested: cpu / (capacity * NODE_CORES),
            cpu_used: used / (capacity * NODE_CORES),
            memory_requested: memory / (capacity * f64::from(NODE_MEMORY)),
            memory_used: memory_used / (capacity * f64::from(NODE_MEMORY)),
        }
    }

    /// The core-steps that a pod uses in the counted time if it is bound when it arrives, but for noise.
    fn use_of(&self, pod: &Pod) -> f64 {
        let app = &self.apps[pod.app];
        let from = self.scale.counted_from;
        let end = (pod.arrival + pod.life).min(self.scale.steps);
        let begin = (pod.arrival + pod.start_delay).max(from);
        let surge = if pod.settled || pod.arrival < from { 0 } else { app.surge_steps };
        let extra = f64::from(app.surge - 1.0) * f64::from(surge.min(end.saturating_sub(begin)));
        let running = match &self.replay {
            Some(replay) => replay.within(pod.app, pod.noise, begin, end),
            None => extra + self.rhythm_within(app, begin, end),
        };
        app.cores() * app.ratio * f64::from(pod.factor) * running
    }

    /// Nodes times steps from one step to another.
    fn capacity_steps(&self, from: Step, to: Step) -> f64 {
        (from..to).map(|step| self.nodes_at(step) as f64).sum()
    }

    fn nodes_at(&self, step: Step) -> usize {
        if step < self.scale.join_at { self.scale.nodes } else { self.scale.all_nodes() }
    }
}

/// Steps of a duration in seconds, at least one.
fn steps_of(seconds: f64) -> Step {
    ((seconds / f64::from(STEP_SECONDS)).round() as Step).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Shape;

    fn cell(text: &str) -> Cell {
        text.parse().unwrap()
    }

    #[test]
    fn rates_give_the_target_before_the_correction() {
        // The correction is the ratio of an app of U cells to the cell's.
        for percent in [25, 40, 55] {
            let cell = Cell { shape: Shape::Uniform, percent, variant: Variant::Frozen };
            let workloads = (0..6).map(|seed| Workload::new(cell, seed, Scale::FULL));
            let corrections = workloads.map(|workload| workload.apps[0].ratio / cell.mean_ratio());
            let mean = corrections.sum::<f64>() / 6.0;
            assert!((0.96..1.04).contains(&mean), "{cell}: {mean}");
        }
    }

    #[test]
    fn offered_use_is_the_target_and_requests_fit() {
        for cell in
            [Variant::Frozen, Variant::Noisy, Variant::ShortLived].into_iter().flat_map(Cell::all)
        {
            let offered = Workload::new(cell, 1, Scale::QUICK).offered();
            assert!((offered.cpu_used / cell.target() - 1.0).abs() < 1e-9, "{cell:?}: {offered:?}");
            assert!((0.3..0.95).contains(&offered.cpu_requested), "{cell:?}: {offered:?}");
            assert!((0.2..0.9).contains(&offered.memory_requested), "{cell:?}: {offered:?}");
        }
    }

    #[test]
    fn in_cells_of_memory_pods_use_three_quarters_of_it() {
        for cell in Cell::all(Variant::Memory) {
            let offered = Workload::new(cell, 1, Scale::QUICK).offered();
            assert!((offered.memory_used / 0.75 - 1.0).abs() < 1e-4, "{cell:?}: {offered:?}");
            assert!((offered.cpu_used / cell.target() - 1.0).abs() < 1e-9, "{cell:?}: {offered:?}");
            assert!((0.55..0.9).contains(&offered.memory_requested), "{cell:?}: {offered:?}");
        }
    }

    #[test]
    fn batch_uses_another_part_of_idle_time_each_hour() {
        let cell = Cell { variant: Variant::Batch, ..cell("S40") };
        let workload = Workload::new(cell, 1, Scale::QUICK);
        assert_eq!(workload.pods, quick(1).pods);
        let hours: Vec<f64> = (0..1_000).map(|hour| workload.batch(3, hour * HOUR)).collect();
        assert!(hours.iter().all(|part| (0.2..1.0).contains(part)));
        let mean = hours.iter().sum::<f64>() / 1_000.0;
        assert!((0.57..0.63).contains(&mean), "{mean}");
        assert_eq!(quick(1).batch(3, HOUR), 0.0);
    }

    #[test]
    fn a_sum_of_the_rhythm_is_that_of_its_steps() {
        for variant in [Variant::Frozen, Variant::Noisy] {
            let cell = Cell { shape: Shape::Skewed, percent: 40, variant };
            let workload = Workload::new(cell, 1, Scale::QUICK);
            for app in &workload.apps[..20] {
                let begin = 1_000;
                let end = 8_000;
                let plain: f64 = (begin..end).map(|step| workload.rhythm(app, step)).sum();
                let sum = workload.rhythm_within(app, begin, end);
                assert!((sum / plain - 1.0).abs() < 1e-3, "{sum} {plain}");
            }
        }
    }

    #[test]
    fn requests_are_stationary_from_the_first_step_on() {
        // What pods request at once, hour by hour, before nodes join: no trend from a cold start.
        let mut by_day = [0.0; 2];
        for seed in 0..8 {
            let workload = Workload::new(cell("U40"), seed, Scale::FULL);
            for pod in &workload.pods {
                let cores = workload.apps[pod.app].cores();
                for (day, sum) in by_day.iter_mut().enumerate() {
                    let from = day as Step * DAY;
                    let to = (day as Step + 1) * DAY;
                    let present =
                        (pod.arrival + pod.life).min(to).saturating_sub(pod.arrival.max(from));
                    *sum += cores * f64::from(present);
                }
            }
        }
        let growth = by_day[1] / by_day[0];
        assert!((0.93..1.07).contains(&growth), "{growth}");
    }

    #[test]
    fn same_seed_same_workload_other_seed_another() {
        assert_eq!((quick(1).pods, quick(1).apps), (quick(1).pods, quick(1).apps));
        assert_ne!(quick(1).pods, quick(2).pods);
    }

    fn quick(seed: u64) -> Workload {
        Workload::new(cell("S40"), seed, Scale::QUICK)
    }

    #[test]
    fn bursts_are_fifty_pods_of_one_app_in_a_step() {
        let workload = Workload::new(cell("U40"), 1, Scale::FULL);
        let lasting = workload.apps.iter().filter(|app| app.running > 0.0).count();
        let mut of_bursts = vec![Vec::new(); workload.apps.len()];
        for pod in workload.pods.iter().filter(|pod| pod.app >= lasting && !pod.settled) {
            of_bursts[pod.app].push(pod.arrival);
        }
        let bursts: Vec<_> = of_bursts.iter().filter(|arrivals| !arrivals.is_empty()).collect();
        // Half of two an hour, over four days.
        assert!((60..140).contains(&bursts.len()), "{}", bursts.len());
        for arrivals in bursts {
            assert_eq!(arrivals.len(), 50);
            assert!(arrivals.iter().all(|step| *step == arrivals[0]));
        }
    }

    #[test]
    fn arrivals_follow_the_day() {
        let workload = Workload::new(cell("U40"), 3, Scale::FULL);
        let ratio = arrivals(&workload, 13 * HOUR..17 * HOUR) / arrivals(&workload, HOUR..5 * HOUR);
        // (1 + 0.5) to (1 - 0.5) at the extremes.
        assert!((2.3..3.4).contains(&ratio), "{ratio}");
    }

    fn arrivals(workload: &Workload, of_day: std::ops::Range<Step>) -> f64 {
        let pods = workload.pods.iter().filter(|pod| !pod.settled);
        pods.filter(|pod| of_day.contains(&(pod.arrival % DAY))).count() as f64
    }

    #[test]
    fn ratios_have_the_cells_shape_and_mean() {
        for shape in [Shape::Uniform, Shape::Skewed, Shape::Heavy] {
            let cell = Cell { shape, percent: 40, variant: Variant::Frozen };
            let workload = Workload::new(cell, 7, Scale::FULL);
            let ratios: Vec<f64> = workload.apps.iter().map(|app| app.ratio).collect();
            let doubled = ratios.iter().filter(|ratio| **ratio > 1.5).count();
            let distinct = ratios.iter().filter(|ratio| **ratio != ratios[0]).count();
            match shape {
                Shape::Uniform => assert_eq!(distinct, 0),
                Shape::Skewed => assert!(distinct > 250),
                _ => assert!((30..80).contains(&doubled), "{doubled}"),
            }
        }
    }
}
