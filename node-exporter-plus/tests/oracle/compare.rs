//! Two answers at every minute, and how far they are apart.

use std::collections::BTreeMap;

/// What is promised, in percentage points.
const TOLERANCE: f64 = 0.01;

/// Ours against Prometheus's, by Unix time. Where we say nothing there must be a reason: `silent` knows it.
pub(crate) fn agree(
    rule: &str,
    ours: &BTreeMap<u64, f64>,
    theirs: &BTreeMap<u64, f64>,
    silent: impl Fn(u64) -> bool,
) -> f64 {
    let mut greatest = 0.0_f64;
    for (time, theirs) in theirs {
        match ours.get(time) {
            Some(ours) => greatest = greatest.max((ours - theirs).abs()),
            None => {
                assert!(silent(*time), "{rule} at {time}: Prometheus says {theirs}, we nothing")
            }
        }
    }
    let invented = ours.keys().find(|time| !theirs.contains_key(time));
    assert_eq!(invented, None, "{rule}: we say something where Prometheus does not");
    println!("{rule:<24} {:>5} minutes, greatest difference {greatest:.7}", ours.len());
    assert!(ours.len() > 1_000, "{rule}: hardly anything was compared");
    assert!(greatest <= TOLERANCE, "{rule}: {greatest} is over {TOLERANCE}");
    greatest
}
