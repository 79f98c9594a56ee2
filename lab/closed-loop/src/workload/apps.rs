//! The apps: what a Deployment's or a Job's pods ask for, use, and how many of them there are.

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use super::arrivals::{BURST_PODS, MAX_LIFE};
use super::lognormal::{mean_cut, with_mean_1, with_median_1};
use super::{AppId, Traits, mix, steps_of};
use crate::cell::{Cell, Shape};
use crate::cluster::{NODE_CORES, Scale};
use crate::time::{DAY, STEP_SECONDS, Step};

/// Lasting apps.
const APPS: usize = 300;
/// Every fifth app is a Job's: 20%.
const JOB_EVERY: usize = 5;
/// Requests in thousandths of a core, and how frequent each is.
const REQUESTS: [(u32, f64); 5] =
    [(250, 0.20), (500, 0.25), (1_000, 0.30), (2_000, 0.17), (4_000, 0.08)];
/// Requested cores that are services'.
const SERVICES_PART: f64 = 0.9;
/// What the tenth of the apps uses of its request in cells of [`Shape::Heavy`].
const HEAVY_RATIO: f64 = 2.0;
/// Of all apps, those that prefer nodes with the label.
const PREFERRING: f64 = 0.2;

/// Whether an app's pods serve or end by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppKind {
    /// Pods of a Deployment behind a Service: spread over zones and nodes. After an eviction the rest of the lifetime
    /// goes on: it ends when the Deployment is scaled in.
    Service,
    /// Pods of a Job: not spread. After an eviction the work begins anew.
    Job,
}

impl AppKind {
    fn index(self) -> usize {
        self as usize
    }
}

/// One Deployment or Job.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// Whether it serves or ends by itself.
    pub kind: AppKind,
    /// CPU request of each pod, in thousandths of a core.
    pub cpu: u32,
    /// Memory request of each pod, in MiB.
    pub memory: u32,
    /// CPU use by CPU request, on average.
    pub ratio: f64,
    /// Amplitude of the day rhythm, as a fraction of the mean.
    pub amplitude: f64,
    /// When in the day it uses most, 0 to 1.
    pub peak: f64,
    /// How many times as much a pod uses after its start; 1 for half of the apps.
    pub surge: f32,
    /// For how long.
    pub surge_steps: Step,
    /// Whether its pods prefer nodes with the label.
    pub prefers_label: bool,
    /// Pods that run on average, bursts not counted; 0 for an app that came with a burst.
    pub running: f64,
    /// When the day of its ratio begins, where ratios change by day.
    pub day_begins: Step,
    /// What its noise follows from.
    pub noise: u64,
}

impl App {
    /// CPU request of each pod in cores.
    pub fn cores(&self) -> f64 {
        f64::from(self.cpu) / 1000.0
    }

    /// The angle of its day rhythm at a time of day, 0 to 1.
    pub(super) fn angle(&self, time_of_day: f64) -> f64 {
        (time_of_day - self.peak) * std::f64::consts::TAU
    }
}

/// The apps of a run, and how often their pods arrive.
pub(super) struct Catalogue {
    pub(super) apps: Vec<App>,
    pub(super) traits: Traits,
    /// Mean lifetime of services' and jobs' pods in seconds.
    pub(super) mean_life: [f64; 2],
    /// Bursts a second of each kind.
    pub(super) bursts_per_second: f64,
    pub(super) lasting: usize,
    cell: Cell,
    seed: u64,
    /// Ratio of a light app in cells of [`Shape::Heavy`].
    light_ratio: f64,
}

impl Catalogue {
    pub(super) fn new(cell: Cell, seed: u64, scale: &Scale, traits: &Traits) -> Self {
        let mean_life = traits.median_life.map(|median| mean_cut(median, 1.0, MAX_LIFE));
        let mut this = Self {
            apps: Vec::new(),
            traits: *traits,
            mean_life,
            // One an hour in 200 nodes.
            bursts_per_second: scale.nodes as f64 / 200.0 / 3600.0,
            lasting: APPS,
            cell,
            seed,
            light_ratio: cell.mean_ratio(),
        };
        let mut rng = this.rng(0);
        for rank in 0..APPS {
            let kind =
                if rank % JOB_EVERY == JOB_EVERY - 1 { AppKind::Job } else { AppKind::Service };
            let mut app = this.draw(&mut rng, kind);
            app.running = 1.0 / (rank as f64 + 11.0);
            this.apps.push(app);
        }
        this.set_numbers(scale);
        this.set_ratios(&mut rng);
        this
    }

    /// Random numbers of one purpose.
    pub(super) fn rng(&self, purpose: u64) -> Xoshiro256PlusPlus {
        let key = mix(mix(mix(self.cell.code()) ^ self.seed) ^ purpose);
        Xoshiro256PlusPlus::seed_from_u64(key)
    }

    /// A new app, which comes with a burst.
    pub(super) fn add(&mut self, rng: &mut impl Rng, kind: AppKind) -> AppId {
        let mut app = self.draw(rng, kind);
        app.ratio = match self.cell.shape {
            Shape::Skewed => self.cell.mean_ratio() * with_mean_1(rng, 0.8),
            Shape::Heavy if rng.random_bool(0.1) => HEAVY_RATIO,
            Shape::Heavy => self.light_ratio,
            _ => self.cell.mean_ratio(),
        };
        self.apps.push(app);
        self.apps.len() - 1
    }

    fn draw(&self, rng: &mut impl Rng, kind: AppKind) -> App {
        let cpu = request(rng.random());
        let [median, least, most] = self.traits.gib_per_core;
        let gib_per_core = (median * with_median_1(rng, 0.4)).clamp(least, most);
        let near_15: f64 = StandardNormal.sample(rng);
        let anytime: f64 = rng.random();
        let peak = if rng.random_bool(0.7) { (15.0 + near_15) / 24.0 } else { anytime };
        let surge = rng.random_range(1.5..3.0);
        let surge_seconds = rng.random_range(60.0..180.0);
        let surges = rng.random_bool(0.5);
        App {
            kind,
            cpu,
            memory: (f64::from(cpu) / 1000.0 * gib_per_core * 1024.0).round() as u32,
            ratio: self.cell.mean_ratio(),
            amplitude: rng.random_range(0.1..0.4),
            peak,
            surge: if surges { surge } else { 1.0 },
            surge_steps: if surges { steps_of(surge_seconds) } else { 0 },
            prefers_label: rng.random_bool(PREFERRING),
            running: 0.0,
            day_begins: rng.random_range(0..DAY),
            noise: rng.random(),
        }
    }

    /// Sets how many pods of each lasting app run: what the target leaves when bursts are taken off, by share.
    fn set_numbers(&mut self, scale: &Scale) {
        let capacity = scale.nodes as f64 * NODE_CORES;
        let used_per_requested = self.cell.mean_ratio() * (1.0 + self.mean_surge());
        let requested = self.cell.target() * capacity / used_per_requested;
        for (kind, part) in [(AppKind::Service, SERVICES_PART), (AppKind::Job, 1.0 - SERVICES_PART)]
        {
            let apps = self.of_kind(kind);
            let cores: f64 = apps.iter().map(|app| app.cores()).sum();
            let mean_of_lasting = cores / apps.len() as f64;
            let of_bursts = self.running_of_bursts(kind) * (mean_request() + mean_of_lasting) / 2.0;
            let by_share: f64 = apps.iter().map(|app| app.running * app.cores()).sum();
            let left = (part * requested - of_bursts).max(0.1 * part * requested);
            let factor = left / by_share;
            self.apps
                .iter_mut()
                .filter(|app| app.kind == kind)
                .for_each(|app| app.running *= factor);
        }
    }

    /// Pods of bursts of one kind that run on average.
    fn running_of_bursts(&self, kind: AppKind) -> f64 {
        BURST_PODS as f64 * self.bursts_per_second * self.mean_life[kind.index()]
    }

    /// Use that surges add and starts leave out, as a fraction of use, on average: half of the apps use 1.25 times as
    /// much more for 120 s; all use nothing for 15 s.
    fn mean_surge(&self) -> f64 {
        let [services, jobs] = [AppKind::Service, AppKind::Job]
            .map(|kind| (0.5 * 1.25 * 120.0 - 15.0) / self.mean_life[kind.index()]);
        SERVICES_PART * services + (1.0 - SERVICES_PART) * jobs
    }

    fn of_kind(&self, kind: AppKind) -> Vec<&App> {
        self.apps.iter().filter(|app| app.kind == kind).collect()
    }

    /// Cores that each lasting app requests on average, its part of the bursts of lasting apps included.
    fn cores_by_app(&self) -> Vec<f64> {
        let numbers = [AppKind::Service, AppKind::Job].map(|kind| self.of_kind(kind).len() as f64);
        self.apps
            .iter()
            .map(|app| {
                let bursts = self.running_of_bursts(app.kind) / 2.0 / numbers[app.kind.index()];
                (app.running + bursts) * app.cores()
            })
            .collect()
    }

    /// Sets the ratios of use to request, whose mean by requested cores is the cell's.
    fn set_ratios(&mut self, rng: &mut impl Rng) {
        let mean = self.cell.mean_ratio();
        let cores = self.cores_by_app();
        let total: f64 = cores.iter().sum();
        match self.cell.shape {
            Shape::Skewed => {
                let drawn: Vec<f64> = cores.iter().map(|_| with_mean_1(rng, 0.8)).collect();
                let weighted: f64 =
                    drawn.iter().zip(&cores).map(|(ratio, cores)| ratio * cores).sum();
                let scale = mean * total / weighted;
                self.apps.iter_mut().zip(drawn).for_each(|(app, ratio)| app.ratio = ratio * scale);
            }
            Shape::Heavy => {
                let (heavy, part) = heavy_apps(rng, &cores, total);
                self.light_ratio = (mean - HEAVY_RATIO * part) / (1.0 - part);
                for (rank, app) in self.apps.iter_mut().enumerate() {
                    app.ratio = if heavy.contains(&rank) { HEAVY_RATIO } else { self.light_ratio };
                }
            }
            _ => {}
        }
    }
}

/// One app of each ten that follow each other by rank, and their part of all cores: between 7% and 13%, drawn again
/// until it is, so that the other apps' ratio is about the same for all seeds.
fn heavy_apps(rng: &mut impl Rng, cores: &[f64], total: f64) -> (Vec<AppId>, f64) {
    loop {
        let mut heavy: Vec<AppId> = Vec::new();
        for tenth in 0..cores.len() / 10 {
            let mut ranks: Vec<AppId> = (10 * tenth..10 * tenth + 10).collect();
            ranks.shuffle(rng);
            heavy.push(ranks[0]);
        }
        let part = heavy.iter().map(|app| cores[*app]).sum::<f64>() / total;
        if (0.07..0.13).contains(&part) {
            return (heavy, part);
        }
    }
}

/// The request of a uniform number.
fn request(uniform: f64) -> u32 {
    let mut below = 0.0;
    for (cpu, part) in REQUESTS {
        below += part;
        if uniform < below {
            return cpu;
        }
    }
    REQUESTS[REQUESTS.len() - 1].0
}

/// The mean request in cores: 1.135.
fn mean_request() -> f64 {
    REQUESTS.iter().map(|(cpu, part)| f64::from(*cpu) / 1000.0 * part).sum()
}

/// Lifetime in steps, drawn.
pub(super) fn draw_life(rng: &mut impl Rng, traits: &Traits, kind: AppKind) -> f64 {
    let life = traits.median_life[kind.index()] * with_median_1(rng, 1.0);
    life.min(MAX_LIFE).max(f64::from(STEP_SECONDS))
}
