//! Which pods arrive when, what they ask for, how long they live and what they use: a pure function of cell and seed.
//!
//! Invariant: nothing here depends on a policy. A golden test holds the first arrivals and the sums of one seed, so
//! that figures of two versions of a policy compare. `WORKLOAD.md` describes the model for people.

mod apps;
mod arrivals;
mod lognormal;
mod noise;

pub use self::apps::{App, AppKind};
pub use self::arrivals::BURST_PODS;
pub use self::noise::{Ar1, mix};
use crate::cell::Cell;
use crate::cluster::{NODE_CORES, NODE_MEMORY, Scale};
use crate::time::{DAY, STEP_SECONDS, Step};

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

/// Standard deviation of the logarithm of an app's noise, correlated over an hour.
pub const APP_NOISE: f64 = 0.2;
/// Standard deviation of the logarithm of a pod's noise, correlated over five minutes.
pub const POD_NOISE: f64 = 0.3;

/// All apps and pods of a run.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The cell it belongs to.
    pub cell: Cell,
    /// The seed.
    pub seed: u64,
    /// Size and timetable of the cluster.
    pub scale: Scale,
    /// Lasting apps first, then those that came with a burst.
    pub apps: Vec<App>,
    /// In the order of arrival.
    pub pods: Vec<Pod>,
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
        let mut catalogue = apps::Catalogue::new(cell, seed, &scale);
        let pods = arrivals::generate(&mut catalogue, &scale);
        let mut this = Self { cell, seed, scale, apps: catalogue.apps, pods };
        let offered = this.offered();
        let correction = cell.target() / offered.cpu_used;
        this.apps.iter_mut().for_each(|app| app.ratio *= correction);
        this
    }

    /// How many apps there are up to the last one that serves.
    pub fn services(&self) -> usize {
        let last = self.apps.iter().rposition(|app| app.kind == AppKind::Service);
        last.map_or(0, |last| last + 1)
    }

    /// By how much more or less an app uses at a step than on average.
    pub fn rhythm(&self, app: &App, step: Step) -> f64 {
        let angle = app.angle(f64::from(step % DAY) / f64::from(DAY));
        1.0 + app.amplitude * angle.cos()
    }

    /// The sum of [`Workload::rhythm`] over the steps from `begin` to `end`.
    fn rhythm_within(&self, app: &App, begin: Step, end: Step) -> f64 {
        let mut sum = 0.0;
        let mut at = begin;
        while at < end {
            // To the next of the app's days: whole sums round in another way than the reported ones.
            let into_day = (at + DAY - app.day_begins % DAY) % DAY;
            let until = (at + DAY - into_day).min(end);
            let length = f64::from(until - at);
            let middle = at + (until - at) / 2;
            // The mean of a cosine over a span is that of its middle, times sin(x)/x of half the span.
            let half = length / f64::from(DAY) * std::f64::consts::PI;
            let damping = if half > 1e-9 { half.sin() / half } else { 1.0 };
            let angle = app.angle(f64::from(middle % DAY) / f64::from(DAY));
            sum += length * (1.0 + app.amplitude * angle.cos() * damping);
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
        let running = extra + self.rhythm_within(app, begin, end);
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
