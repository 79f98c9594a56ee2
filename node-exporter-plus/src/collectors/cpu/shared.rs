//! The CPUs that pods share: those that are online, not isolated from the scheduler (`isolcpus`), and no pod's or
//! service's alone ([`read_cpus`]). A poll-mode program on CPUs of its own takes nothing from other pods.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{COLUMNS, Elapsed, Sample, Stat, Ticks};
use crate::collectors::Roots;
use crate::collectors::file::{is_of_container, text};
use crate::list::parse_list;
use crate::pods::{PodCpus, read_cpus};

/// Reads which they are.
#[derive(Debug)]
pub(super) struct SharedCpus {
    cgroupfs: PathBuf,
    /// `/sys/devices/system/cpu/isolated`.
    isolated: PathBuf,
    stat: PathBuf,
}

impl SharedCpus {
    pub(super) fn new(roots: &Roots) -> Self {
        Self {
            cgroupfs: roots.cgroupfs.clone(),
            isolated: roots.sysfs.join("devices/system/cpu/isolated"),
            stat: roots.procfs.join("stat"),
        }
    }

    /// The shared CPUs, `None` for all, and what best-effort pods have used. Read each time: exclusive CPUs come and go
    /// with pods.
    pub(super) fn read(&self, stat: &Stat) -> PodCpus {
        let PodCpus { mut shared, best_effort } = read_cpus(&self.cgroupfs);
        let isolated = text(&self.isolated).and_then(|list| parse_list(&list)).unwrap_or_default();
        if is_of_container(&self.stat) {
            // The CPUs of `/proc/stat` are numbered anew.
            shared = None;
        } else if shared.is_some() || !isolated.is_empty() {
            let online: BTreeSet<u32> = stat.each.keys().copied().collect();
            let allowed = shared.as_ref().map_or(online.clone(), |shared| shared & &online);
            shared = Some(&allowed - &isolated).filter(|shared| *shared != online);
        }
        PodCpus { shared, best_effort }
    }
}

/// What the CPUs counted that were shared and online at both samples, and the time that has passed on them. `None` if
/// there are none, or their number is not known.
pub(super) fn counted(before: &Sample, after: &Sample) -> Option<(Ticks, Ticks, Elapsed)> {
    let all = || {
        let cpus = before.cpus.zip(after.cpus)?;
        Some((before.stat.all, after.stat.all, Elapsed::between(before, after, cpus)))
    };
    let cpus: BTreeSet<u32> = match (&before.pods.shared, &after.pods.shared) {
        (None, None) => return all(),
        (Some(one), None) | (None, Some(one)) => one.clone(),
        (Some(one), Some(other)) => one & other,
    };
    let both = |cpu: &u32| Some((before.stat.each.get(cpu)?, after.stat.each.get(cpu)?));
    let mut number = 0;
    let mut sums = (Ticks([0; COLUMNS]), Ticks([0; COLUMNS]));
    for (earlier, later) in cpus.iter().filter_map(both) {
        number += 1;
        for column in 0..COLUMNS {
            sums.0.0[column] = sums.0.0[column].saturating_add(earlier.0[column]);
            sums.1.0[column] = sums.1.0[column].saturating_add(later.0[column]);
        }
    }
    (number > 0).then(|| (sums.0, sums.1, Elapsed::between(before, after, (number, number))))
}

/// The share of work without that of best-effort pods, which yield their CPU to others. Theirs is measured and all work
/// is sampled, so it may be a little more.
pub(super) fn foreground(
    busy: f64,
    before: &Sample,
    after: &Sample,
    elapsed: Elapsed,
) -> Option<f64> {
    let used = after.pods.best_effort?.checked_sub(before.pods.best_effort?)?;
    Some((busy - elapsed.percent(used)).max(0.0))
}
