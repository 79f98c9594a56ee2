//! The exporter's values against Prometheus's, at every minute.

use std::collections::BTreeMap;

/// The largest difference that is allowed, in percentage points.
const TOLERANCE: f64 = 0.01;

/// Compares the exporter's values (`ours`) of a metric with Prometheus's, both by Unix time, and returns the largest
/// difference. At a time with Prometheus's value alone, `silent` must be true.
pub(crate) fn agree(
    metric: &str,
    ours: &BTreeMap<u64, f64>,
    theirs: &BTreeMap<u64, f64>,
    silent: impl Fn(u64) -> bool,
) -> f64 {
    let mut largest = 0.0_f64;
    for (time, theirs) in theirs {
        match ours.get(time) {
            Some(ours) => largest = largest.max((ours - theirs).abs()),
            None => {
                assert!(
                    silent(*time),
                    "{metric} at {time}: Prometheus has {theirs}, the exporter nothing"
                )
            }
        }
    }
    let only_ours = ours.keys().find(|time| !theirs.contains_key(time));
    assert_eq!(only_ours, None, "{metric}: the exporter has a value where Prometheus has none");
    println!("{metric:<24} {:>5} minutes, largest difference {largest:.7}", ours.len());
    assert!(ours.len() > 1_000, "{metric}: hardly anything was compared");
    assert!(largest <= TOLERANCE, "{metric}: {largest} is over {TOLERANCE}");
    largest
}
