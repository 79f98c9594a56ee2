//! Replays: arrivals, requests and lives of [`Traces`], recombined with series of real use by the rule of
//! `WORKLOAD.md`.
//!
//! Invariant: as of all workloads, a pure function of cell and seed, and of the traces.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::arrivals::{MAX_LIFE, placed_in_time};
use super::lognormal::with_median_1;
use super::traces::{A_DAY, Traces};
use super::{App, AppId, AppKind, Pod, Traits, Workload, mix, steps_of};
use crate::cell::{Cell, Shape};
use crate::cluster::{NODE_CORES, Scale};
use crate::time::{DAY, MINUTE, STEP_SECONDS, Step};

/// The part of the cluster that is requested on average.
const REQUESTED: f64 = 0.65;
/// Requests of openb's pods are divided by this, since its nodes have 96 cores and more.
const SMALLER: u32 = 8;
/// The largest requests after that: 4 cores and 32 GiB.
const MOST: [u32; 2] = [4_000, 32 * 1024];
/// Requests of SURF's jobs, of 16 CPUs each: an eighth, and 3 GiB a core.
const OF_JOBS: [u32; 2] = [2_000, 6 * 1024];
/// openb's pods that were created in its last days count: earlier ones are few.
const LAST_DAYS: f64 = 27.0;
/// How long a pod runs at least to be one of a lasting service.
const LASTING: f64 = 3_600.0;
/// Copies belong to so many teams by turn.
const TEAMS: usize = 12;
/// Machines that use less than this on average, in percent, are idle and left out.
const IDLE: f64 = 1.0;
/// The part of PlanetLab's days, those with similar means, that the pods of an app are drawn from.
const BAND: f64 = 0.1;
/// Steps of a value.
const FIVE_MINUTES: Step = 5 * MINUTE;

/// Copies of the same days begin at other times, up to this many seconds later.
const LATER: f64 = 3_600.0;

const SECONDS_OF_DAY: f64 = 86_400.0;
const DAYS_OF_WEEK: f64 = 7.0;

/// What the pods of each app use.
#[derive(Debug, Clone)]
pub struct Replay {
    traces: Arc<Traces>,
    of_app: Vec<Played>,
}

#[derive(Debug, Clone, Copy)]
enum Played {
    /// A machine of Bitbrains.
    Machine(usize),
    /// Days of PlanetLab from this one on, in the order of their means.
    Days(usize),
    /// All that the pod's factor says.
    Constant,
}

impl Replay {
    /// What a pod of an app uses at a step, in percent of its base use, and until which step.
    fn value(&self, app: AppId, key: u64, step: Step) -> (u8, Step) {
        let phase = (key % u64::from(FIVE_MINUTES)) as Step;
        let at = step + phase;
        let until = (at / FIVE_MINUTES + 1) * FIVE_MINUTES - phase;
        let place = (at / FIVE_MINUTES) as usize;
        match self.of_app[app] {
            Played::Machine(machine) => {
                let series = &self.traces.machines[machine];
                let first_day = mix(key) as usize % (series.len() / A_DAY);
                (series[(first_day * A_DAY + place) % series.len()], until)
            }
            Played::Days(first) => {
                let drawn = mix(key ^ u64::from(at / DAY)) as usize % band(&self.traces);
                (self.traces.days[first + drawn][place % A_DAY], until)
            }
            Played::Constant => (100, Step::MAX),
        }
    }

    /// What a pod of an app uses at a step, as a fraction of its base use.
    pub(crate) fn at(&self, app: AppId, key: u64, step: Step) -> f32 {
        f32::from(self.value(app, key, step).0) / 100.0
    }

    /// The sum of [`Replay::at`] over the steps from `begin` to `end`.
    pub(super) fn within(&self, app: AppId, key: u64, begin: Step, end: Step) -> f64 {
        let mut sum = 0.0;
        let mut at = begin;
        while at < end {
            let (percent, until) = self.value(app, key, at);
            let until = until.min(end);
            sum += f64::from(until - at) * f64::from(percent) / 100.0;
            at = until;
        }
        sum
    }
}

/// How many days of PlanetLab the pods of an app are drawn from.
fn band(traces: &Traces) -> usize {
    ((traces.days.len() as f64 * BAND) as usize).max(1)
}

/// A source of pods and of what they use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// openb's pods that last, with Bitbrains' machines.
    Bitbrains,
    /// All of openb's pods, with PlanetLab's days.
    PlanetLab,
    /// SURF's jobs.
    Surf,
}

/// The sources of a shape, and the part of all requests that is of each.
fn sources(shape: Shape) -> &'static [(Source, f64)] {
    match shape {
        Shape::Uniform | Shape::Skewed | Shape::Heavy => &[],
        Shape::Bitbrains => &[(Source::Bitbrains, 1.0)],
        Shape::PlanetLab => &[(Source::PlanetLab, 1.0)],
        Shape::Surf => &[(Source::Surf, 1.0)],
        Shape::Combined => {
            &[(Source::Bitbrains, 0.5), (Source::PlanetLab, 0.25), (Source::Surf, 0.25)]
        }
    }
}

/// The workload of a cell of traces.
pub(super) fn workload(cell: Cell, seed: u64, scale: Scale, traces: &Arc<Traces>) -> Workload {
    let replay = Replay { traces: Arc::clone(traces), of_app: Vec::new() };
    let traits = Traits::of(cell.variant);
    let none = Workload {
        cell,
        seed,
        scale,
        traits,
        apps: Vec::new(),
        pods: Vec::new(),
        replay: Some(replay),
    };
    let mut recombined = Recombined { workload: none, arrived: Vec::new() };
    for (number, (source, part)) in sources(cell.shape).iter().enumerate() {
        let key = mix(mix(mix(cell.code()) ^ seed) ^ number as u64);
        recombined.add(*source, *part, &mut Xoshiro256PlusPlus::seed_from_u64(key));
    }
    recombined.finish()
}

struct Recombined {
    workload: Workload,
    /// All pods with the second of their arrival.
    arrived: Vec<(f64, Pod)>,
}

impl Recombined {
    /// Adds copies of a source's pods until they request more than its part, leaves pods out by chance until they
    /// request it, and scales what they use.
    fn add(&mut self, source: Source, part: f64, rng: &mut Xoshiro256PlusPlus) {
        let Scale { counted_from, steps, .. } = self.workload.scale;
        let capacity = self.workload.capacity_steps(counted_from, steps) * NODE_CORES;
        let target = REQUESTED * part * capacity;
        let first = self.workload.apps.len();
        let mut apps: HashMap<(usize, String), AppId> = HashMap::new();
        let mut pods: Vec<(f64, Pod)> = Vec::new();
        let mut requested = 0.0;
        let mut copy = 0;
        // A tenth more arrives when nodes join, so that pods are kept with a probability of at most 0.88.
        while requested < 1.25 * target && copy < 10_000 {
            let copied = pods.len();
            match source {
                Source::Surf => self.copy_jobs(copy, rng, &mut apps, &mut pods),
                _ => self.copy_pods(source, copy, rng, &mut apps, &mut pods),
            }
            for (at, pod) in &pods[copied..] {
                requested += self.growth(*at) * self.core_steps(*at, pod);
            }
            copy += 1;
        }
        let kept = target / requested;
        pods.retain(|(at, _)| rng.random_bool((kept * self.growth(*at)).min(1.0)));
        let mut used = 0.0;
        let mut asked = 0.0;
        for (at, pod) in &pods {
            asked += self.core_steps(*at, pod);
            used += placed_in_time(*at, *pod).map_or(0.0, |pod| self.workload.use_of(&pod));
        }
        // Each source uses the same part of what it requests.
        let ratio = self.workload.cell.target() / REQUESTED * asked / used;
        self.workload.apps[first..].iter_mut().for_each(|app| app.ratio = ratio);
        self.arrived.append(&mut pods);
    }

    fn growth(&self, at: f64) -> f64 {
        let joined = at >= f64::from(self.workload.scale.join_at * STEP_SECONDS);
        if joined { self.workload.scale.growth() } else { 1.0 }
    }

    /// Cores times the steps of the counted time in which the pod runs.
    fn core_steps(&self, at: f64, pod: &Pod) -> f64 {
        let Scale { counted_from, steps, .. } = self.workload.scale;
        let begin = at / f64::from(STEP_SECONDS);
        let end = (begin + f64::from(pod.life)).min(f64::from(steps));
        let present = (end - begin.max(f64::from(counted_from))).max(0.0);
        present * self.workload.apps[pod.app].cores()
    }

    /// Days from the first arrival to the end.
    fn span(&self) -> f64 {
        MAX_LIFE / SECONDS_OF_DAY + f64::from(self.workload.scale.steps) / f64::from(DAY)
    }

    /// openb's pods of as many days as arrivals last, from a day on that is drawn.
    fn copy_pods(
        &mut self,
        source: Source,
        copy: usize,
        rng: &mut Xoshiro256PlusPlus,
        apps: &mut HashMap<(usize, String), AppId>,
        pods: &mut Vec<(f64, Pod)>,
    ) {
        let traces = self.traces();
        let last = traces.pods.iter().map(|pod| pod.created_at).fold(0.0, f64::max);
        let choices = (LAST_DAYS - self.span()).max(0.0) as u32 + 1;
        let day = f64::from(rng.random_range(0..choices));
        let from = last - LAST_DAYS.max(self.span()) * SECONDS_OF_DAY + day * SECONDS_OF_DAY;
        let until = from + self.span() * SECONDS_OF_DAY;
        let later = rng.random_range(0.0..LATER);
        for pod in &traces.pods {
            let is_lasting = pod.ran_for >= LASTING || source != Source::Bitbrains;
            if !is_lasting || pod.created_at < from || pod.created_at >= until {
                continue;
            }
            let kind = if pod.serves { AppKind::Service } else { AppKind::Job };
            let app = *apps.entry((copy % TEAMS, pod.requests.clone())).or_insert_with(|| {
                let [cpu, memory] = MOST;
                let cpu = (pod.cpu / SMALLER).clamp(1, cpu);
                let memory = (pod.memory / SMALLER).clamp(1, memory);
                self.add_app(source, kind, cpu, memory, rng)
            });
            let at = pod.created_at - from - MAX_LIFE + later;
            pods.push((at, self.pod(app, pod.ran_for, 1.0, rng)));
        }
    }

    /// SURF's week again and again, from a day on that is drawn. Jobs of one second are one app, which never comes
    /// again.
    fn copy_jobs(
        &mut self,
        copy: usize,
        rng: &mut Xoshiro256PlusPlus,
        apps: &mut HashMap<(usize, String), AppId>,
        pods: &mut Vec<(f64, Pod)>,
    ) {
        let traces = self.traces();
        let first = traces.jobs.iter().map(|job| job.submitted_at).fold(f64::INFINITY, f64::min);
        let week = DAYS_OF_WEEK * SECONDS_OF_DAY;
        let days = f64::from(rng.random_range(0..DAYS_OF_WEEK as u32));
        let shift = days * SECONDS_OF_DAY + rng.random_range(0.0..LATER);
        for job in &traces.jobs {
            let mut since = (job.submitted_at - first + shift).rem_euclid(week);
            while since < self.span() * SECONDS_OF_DAY {
                let second = format!("{since:.0}");
                let app = *apps.entry((copy, second)).or_insert_with(|| {
                    self.add_app(Source::Surf, AppKind::Job, OF_JOBS[0], OF_JOBS[1], rng)
                });
                pods.push((since - MAX_LIFE, self.pod(app, job.ran_for, job.used, rng)));
                since += week;
            }
        }
    }

    fn add_app(
        &mut self,
        source: Source,
        kind: AppKind,
        cpu: u32,
        memory: u32,
        rng: &mut Xoshiro256PlusPlus,
    ) -> AppId {
        let traces = self.traces();
        let played = match source {
            Source::Bitbrains => Played::Machine(machine(&traces, rng)),
            Source::PlanetLab => {
                Played::Days(rng.random_range(0..=traces.days.len() - band(&traces)))
            }
            Source::Surf => Played::Constant,
        };
        if let Some(replay) = &mut self.workload.replay {
            replay.of_app.push(played);
        }
        self.workload.apps.push(App {
            kind,
            cpu,
            memory,
            ratio: 1.0,
            amplitude: 0.0,
            peak: 0.0,
            surge: 1.0,
            surge_steps: 0,
            prefers_label: false,
            running: 1.0,
            day_begins: 0,
            noise: 0,
        });
        self.workload.apps.len() - 1
    }

    fn pod(&self, app: AppId, ran_for: f64, factor: f64, rng: &mut Xoshiro256PlusPlus) -> Pod {
        let [median, sigma] = self.workload.traits.memory_ratio;
        let memory = f64::from(self.workload.apps[app].memory);
        Pod {
            app,
            arrival: 0,
            life: steps_of(ran_for.min(MAX_LIFE)),
            start_delay: rng.random_range(1..=2),
            settled: false,
            factor: factor as f32,
            memory_used: (memory * (median * with_median_1(rng, sigma)).min(1.0)).round() as u32,
            noise: rng.random(),
        }
    }

    fn traces(&self) -> Arc<Traces> {
        match &self.workload.replay {
            Some(replay) => Arc::clone(&replay.traces),
            None => unreachable!("a replay has traces"),
        }
    }

    fn finish(self) -> Workload {
        let Self { mut workload, mut arrived } = self;
        arrived.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        workload.pods =
            arrived.into_iter().filter_map(|(at, pod)| placed_in_time(at, pod)).collect();
        workload
    }
}

/// A machine that is not idle, each as likely; any, if all are.
fn machine(traces: &Traces, rng: &mut Xoshiro256PlusPlus) -> usize {
    let mean = |series: &[u8]| {
        series.iter().map(|value| f64::from(*value)).sum::<f64>() / series.len() as f64
    };
    let busy: Vec<usize> = (0..traces.machines.len())
        .filter(|machine| mean(&traces.machines[*machine]) >= IDLE)
        .collect();
    if busy.is_empty() { 0 } else { busy[rng.random_range(0..busy.len())] }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sample() -> Arc<Traces> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces");
        Arc::new(Traces::read(&folder).unwrap())
    }

    fn replayed(cell: Cell, seed: u64) -> Workload {
        workload(cell, seed, Scale::QUICK, &sample())
    }

    #[test]
    fn each_cell_requests_its_part_and_uses_its_percent() {
        for cell in Cell::traced() {
            let workload = replayed(cell, 1);
            let offered = workload.offered();
            assert!((offered.cpu_used / 0.4 - 1.0).abs() < 0.05, "{cell}: {offered:?}");
            assert!((offered.cpu_requested / REQUESTED - 1.0).abs() < 0.15, "{cell}: {offered:?}");
            assert!(workload.pods.is_sorted_by_key(|pod| pod.arrival));
            let services = workload.pods.iter().any(|pod| pod.app < workload.services());
            assert_eq!(services, cell.shape != Shape::Surf);
        }
    }

    #[test]
    fn a_seed_resamples_what_each_pod_uses() {
        let cell = Cell { shape: Shape::Combined, ..Cell::traced()[0] };
        let (one, again, other) = (replayed(cell, 1), replayed(cell, 1), replayed(cell, 2));
        assert_eq!((&one.pods, &one.apps), (&again.pods, &again.apps));
        assert_ne!(one.pods, other.pods);
    }

    #[test]
    fn a_sum_of_a_series_is_that_of_its_steps_and_days_follow_each_other() {
        let workload = replayed(Cell { shape: Shape::Combined, ..Cell::traced()[0] }, 1);
        let replay = workload.replay.as_ref().unwrap();
        for pod in workload.pods.iter().step_by(97) {
            let steps = 8_000..18_000;
            let plain: f64 =
                steps.clone().map(|step| f64::from(replay.at(pod.app, pod.noise, step))).sum();
            let sum = replay.within(pod.app, pod.noise, steps.start, steps.end);
            assert!((sum - plain).abs() < 1e-2, "{sum} {plain}");
        }
    }

    #[test]
    fn pods_of_one_app_use_alike_and_not_the_same() {
        let workload = replayed(Cell { shape: Shape::PlanetLab, ..Cell::traced()[0] }, 1);
        let replay = workload.replay.as_ref().unwrap();
        let mean = |key| replay.within(0, key, 0, DAY) / f64::from(DAY);
        // The sample has 20 days, and a tenth of them is two.
        let means: Vec<f64> = (0..20).map(mean).collect();
        assert!(means.iter().all(|other| (other / means[0] - 1.0).abs() < 0.1), "{means:?}");
        let at_noon = |key| replay.at(0, FIVE_MINUTES as u64 * key, DAY / 2);
        assert!((1..20).any(|key| at_noon(key) != at_noon(0)));
    }
}
