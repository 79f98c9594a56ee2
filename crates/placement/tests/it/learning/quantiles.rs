//! Statistics are those of what was observed.

use placement::learning::Learner;
use placement::resources::PerResource;
use proptest::prelude::*;

use super::*;

#[test]
fn use_and_use_by_request_are_learned_of_both_resources() {
    let mut learner = Learner::default();
    let requests = PerResource { cpu: Some(2.0), memory: Some(4e9) };
    let resources = PodResources { requests, ..PodResources::default() };
    for minute in 0..100 {
        let used = PerResource { cpu: Some(0.01 * minute as f64), memory: Some(1e9) };
        learner.observe(&web(1), &resources, used, MINUTE, at(minute));
    }
    let learned = learner.learned(&web(1)).unwrap();
    let (cpu, memory) = (learned.cpu.unwrap(), learned.memory.unwrap());
    assert!(is_near(cpu.amount.p50, 0.5) && is_near(cpu.amount.p90, 0.9), "{cpu:?}");
    assert!(is_near(cpu.by_request.unwrap().p90, 0.45), "{cpu:?}");
    assert!(is_near(memory.amount.mean, 1e9) && is_near(memory.amount.p99, 1e9), "{memory:?}");
    assert!(is_near(memory.by_request.unwrap().p50, 0.25), "{memory:?}");
}

#[test]
fn use_by_request_is_unknown_where_pods_request_nothing_or_next_to_nothing() {
    for request in [None, Some(0.0), Some(0.001), Some(f64::MIN_POSITIVE)] {
        let mut learner = Learner::default();
        let used = PerResource { cpu: Some(2.0), memory: None };
        (0..10).for_each(|n| learner.observe(&web(1), &asking(request), used, MINUTE, at(n)));
        let learned = cpu(&learner, &web(1)).unwrap();
        assert_eq!(learned.by_request, None, "{request:?}");
        assert!(is_near(learned.amount.p50, 2.0));
    }
}

#[test]
fn an_observation_counts_by_its_time() {
    let mut learner = Learner::default();
    for minute in 0..200 {
        observe(&mut learner, &web(1), 1.0, minute);
        let (long, used) = (MINUTE * 3, PerResource { cpu: Some(2.0), memory: None });
        learner.observe(&web(1), &asking(None), used, long, at(minute));
    }
    let mean = cpu(&learner, &web(1)).unwrap().amount.mean;
    assert!(is_near(mean, 1.75), "{mean}");
}

fn exact(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

proptest! {
    /// Until counters are halved, quantiles are exact but for the width of a bucket, 1/16.
    #[test]
    fn quantiles_are_those_of_what_was_observed(mut used in prop::collection::vec(0.01..100.0_f64, 20..120)) {
        let mut learner = Learner::default();
        used.iter().for_each(|cpu| observe(&mut learner, &web(1), *cpu, 0));
        observe(&mut learner, &web(1), used[0], 5);
        used.push(used[0]);
        used.sort_by(f64::total_cmp);
        let learned = cpu(&learner, &web(1)).unwrap().amount;
        let tenth = |quantile: f64| exact(&used, quantile.clamp(0.0, 1.0));
        for (found, quantile) in [(learned.p50, 0.5), (learned.p90, 0.9), (learned.p95, 0.95)] {
            let (low, high) = (tenth(quantile - 0.03), tenth(quantile + 0.03));
            prop_assert!(found >= low * 0.96 - 0.001 && found <= high * 1.04 + 0.001, "{low} {found} {high}");
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Of many observations a part is counted, drawn by lot.
    #[test]
    fn quantiles_of_thousands_of_observations_are_near(low in 0.1..1.0_f64, spread in 1.1..20.0_f64, steps in 3..200_u32) {
        let mut learner = Learner::default();
        let value = |n: u32| low * spread.powf(f64::from(n % steps) / f64::from(steps - 1));
        for n in 0..20_000_u32 {
            observe(&mut learner, &web(1), value(n.wrapping_mul(2_654_435_761) >> 8), i64::from(n) / 20);
        }
        let mut used: Vec<_> = (0..20_000_u32).map(|n| value(n.wrapping_mul(2_654_435_761) >> 8)).collect();
        used.sort_by(f64::total_cmp);
        let learned = cpu(&learner, &web(1)).unwrap().amount;
        for (found, quantile) in [(learned.p50, 0.5), (learned.p90, 0.9), (learned.p95, 0.95)] {
            let (low, high) = (exact(&used, quantile - 0.08), exact(&used, (quantile + 0.08).min(1.0)));
            prop_assert!(found >= low * 0.96 && found <= high * 1.04, "{quantile} {low} {found} {high}");
        }
    }

}

proptest! {
    #[test]
    fn whatever_is_observed_what_is_learned_is_a_number_within_what_was_possible(
        used in prop::collection::vec(prop::num::f64::ANY, 1..200), seconds in -5_i64..1_000_000,
        request in prop::num::f64::ANY,
    ) {
        let mut learner = Learner::default();
        for (n, cpu) in used.iter().enumerate() {
            let used = PerResource { cpu: Some(*cpu), memory: Some(*cpu) };
            let lasting = SignedDuration::from_secs(seconds);
            learner.observe(&web(1), &asking(Some(request)), used, lasting, at(n as i64 * 7919 % 1000));
        }
        for learned in learner.snapshot().iter() {
            for (learned, high) in [(learned.used.cpu, 1100.0), (learned.used.memory, 1e13)] {
                let Some(learned) = learned else { continue };
                for d in [Some((learned.amount, high)), learned.by_request.map(|d| (d, 70.0))].into_iter().flatten() {
                    let all = [d.0.mean, d.0.p50, d.0.p90, d.0.p95, d.0.p99];
                    prop_assert!(all.iter().all(|value| (0.0..=d.1).contains(value)), "{all:?}");
                    prop_assert!(all[1..].is_sorted());
                }
            }
        }
    }
}
