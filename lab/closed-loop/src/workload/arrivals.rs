//! When pods arrive: Poisson processes with a day rhythm, and bursts.
//!
//! Arrivals begin five days, the longest lifetime, before step 0. Pods that outlive step 0 run when the simulation
//! begins, with the rest of their lifetime: so the number of pods is stationary from the first step on, whatever the
//! rhythm.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1};

use super::apps::{AppKind, Catalogue, draw_life};
use super::lognormal::{with_mean_1, with_median_1};
use super::{AppId, Pod, steps_of};
use crate::cluster::Scale;
use crate::time::STEP_SECONDS;

/// Pods of a burst.
pub const BURST_PODS: usize = 50;
/// The longest lifetime in seconds: 5 days.
pub(super) const MAX_LIFE: f64 = 5.0 * 86_400.0;

const SECONDS_OF_DAY: f64 = 86_400.0;

/// All pods, in the order of arrival.
pub(super) fn generate(catalogue: &mut Catalogue, scale: &Scale) -> Vec<Pod> {
    let mut arrived = Vec::new();
    for (purpose, kind) in [(1, AppKind::Service), (2, AppKind::Job)] {
        singles(catalogue, scale, kind, purpose, &mut arrived);
    }
    for (purpose, kind) in [(3, AppKind::Service), (4, AppKind::Job)] {
        bursts(catalogue, scale, kind, purpose, &mut arrived);
    }
    arrived.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    arrived.into_iter().filter_map(|(at, pod)| placed_in_time(at, pod)).collect()
}

/// Turns an arrival in seconds into one in steps; a pod that ended before step 0 is left out.
pub(super) fn placed_in_time(at: f64, pod: Pod) -> Option<Pod> {
    let seconds = f64::from(STEP_SECONDS);
    if at >= 0.0 {
        return Some(Pod { arrival: (at / seconds) as u32, ..pod });
    }
    let rest = f64::from(pod.life) * seconds + at;
    let settled = Pod { arrival: 0, life: steps_of(rest), start_delay: 0, settled: true, ..pod };
    (rest > 0.0).then_some(settled)
}

fn singles(
    catalogue: &Catalogue,
    scale: &Scale,
    kind: AppKind,
    purpose: u64,
    arrived: &mut Vec<(f64, Pod)>,
) {
    let mut below = 0.0;
    let mut apps: Vec<(f64, AppId)> = Vec::new();
    for (id, app) in catalogue
        .apps
        .iter()
        .enumerate()
        .filter(|(_, app): &(AppId, &super::App)| app.kind == kind && app.running > 0.0)
    {
        below += app.running;
        apps.push((below, id));
    }
    let mut rng = catalogue.rng(purpose);
    let rate = below / catalogue.mean_life[kind as usize];
    for at in times(&mut rng, rate, catalogue.traits.arrival_rhythm, scale) {
        let drawn = rng.random::<f64>() * below;
        let found = apps.partition_point(|(below, _)| *below <= drawn).min(apps.len() - 1);
        let pod = draw_pod(catalogue, &mut rng, apps[found].1);
        arrived.push((at, pod));
    }
}

fn bursts(
    catalogue: &mut Catalogue,
    scale: &Scale,
    kind: AppKind,
    purpose: u64,
    arrived: &mut Vec<(f64, Pod)>,
) {
    let mut rng = catalogue.rng(purpose);
    let lasting: Vec<AppId> =
        (0..catalogue.lasting).filter(|app| catalogue.apps[*app].kind == kind).collect();
    for at in times(&mut rng, catalogue.bursts_per_second, catalogue.traits.arrival_rhythm, scale) {
        let app = if rng.random_bool(0.5) {
            catalogue.add(&mut rng, kind)
        } else {
            lasting[rng.random_range(0..lasting.len())]
        };
        for _ in 0..BURST_PODS {
            let pod = draw_pod(catalogue, &mut rng, app);
            arrived.push((at, pod));
        }
    }
}

/// Times of a Poisson process in seconds, at `rate` a second on average, from [`MAX_LIFE`] before step 0 on: candidates
/// at the highest rate, each kept with the probability of the rate at its time.
fn times(rng: &mut impl Rng, rate: f64, rhythm: f64, scale: &Scale) -> Vec<f64> {
    let end = f64::from(scale.steps) * f64::from(STEP_SECONDS);
    let join_at = f64::from(scale.join_at) * f64::from(STEP_SECONDS);
    let highest = rate * (1.0 + rhythm) * scale.growth();
    let mut times = Vec::new();
    let mut at = -MAX_LIFE;
    loop {
        let gap: f64 = Exp1.sample(rng);
        at += gap / highest;
        if at >= end {
            return times;
        }
        let angle = (at / SECONDS_OF_DAY - 15.0 / 24.0) * std::f64::consts::TAU;
        let growth = if at < join_at { 1.0 } else { scale.growth() };
        let now = rate * (1.0 + rhythm * angle.cos()) * growth;
        if rng.random::<f64>() * highest < now {
            times.push(at);
        }
    }
}

fn draw_pod(catalogue: &Catalogue, rng: &mut impl Rng, app: AppId) -> Pod {
    let of = &catalogue.apps[app];
    let life = draw_life(rng, &catalogue.traits, of.kind);
    let [median, sigma] = catalogue.traits.memory_ratio;
    let memory = f64::from(of.memory) * (median * with_median_1(rng, sigma)).min(1.0);
    Pod {
        app,
        arrival: 0,
        life: steps_of(life),
        start_delay: rng.random_range(1..=2),
        settled: false,
        factor: with_mean_1(rng, catalogue.traits.pod_ratio) as f32,
        memory_used: memory.round() as u32,
        noise: rng.random(),
    }
}
