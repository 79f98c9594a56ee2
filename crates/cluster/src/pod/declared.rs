//! What a pod declares of network and disk, by its annotations.
//!
//! Invariant: a text with any fault counts as absent, so that it costs no other pod anything.

use placement::demand::{Demand, Rates};
use placement::names::Names;

use super::Pod;

/// What a pod declares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// Bytes a second; 0 of what it does not declare, or not in a text that can be read.
    pub rates: Rates,
    /// The texts that cannot be read: key and fault of each.
    pub faults: Vec<String>,
}

impl Pod {
    /// What it declares, by the annotations of the CNI bandwidth plugin and our own for disks.
    #[must_use]
    pub fn declared(&self, names: &Names) -> Declared {
        let mut faults = Vec::new();
        let rates = Rates::of(|demand: Demand| {
            let key = demand.pod_annotation(names);
            let Some(text) = self.metadata.annotation(&key) else { return 0 };
            demand.rate(text).unwrap_or_else(|fault| {
                faults.push(format!("{key}: {fault}"));
                0
            })
        });
        Declared { rates, faults }
    }
}
