//! The processes on a GPU, from NVML's lists and samples.
//!
//! Invariant: an amount that NVML does not report is `None`; a process without a sample was not busy, by NVML's
//! documentation.

use std::collections::{BTreeMap, BTreeSet};

/// The largest number of processes of a GPU. With more, all count as unknown, since a part of them would give sums
/// that are too small.
pub(crate) const MAX_PROCESSES: usize = 4096;

/// A process that has memory of a GPU, or runs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id in the caller's PID namespace.
    pub pid: u32,
    /// Memory of the GPU that it has, in bytes.
    pub used_bytes: Option<u64>,
    /// Percent of its last sample period in which it had a kernel on the GPU's SMs. NVML samples the processes that
    /// were busy; another one of its list reads 0. `None` where the driver does not sample.
    pub sm_percent: Option<u32>,
    /// Whether it is a client of MPS. `None` where the driver does not tell.
    pub mps: Option<bool>,
}

/// NVML's sample of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) pid: u32,
    /// Unix time in microseconds.
    pub(crate) at: u64,
    pub(crate) sm_percent: u32,
}

/// Joins NVML's lists, each with the ids and memory of its processes, its samples, and which are clients of MPS. A
/// process can be in several lists, with the same memory in each. `None` where there are too many.
pub(crate) fn joined(
    listed: impl IntoIterator<Item = (u32, Option<u64>)>,
    samples: Option<&[Sample]>,
    clients: Option<&BTreeSet<u32>>,
) -> Option<Vec<Process>> {
    let mut memory: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for (pid, used) in listed {
        let known = memory.entry(pid).or_default();
        *known = used.max(*known);
    }
    (memory.len() <= MAX_PROCESSES).then(|| {
        memory
            .into_iter()
            .map(|(pid, used_bytes)| {
                let sm_percent = samples.map(|samples| busy(samples, pid));
                let mps = clients.map(|clients| clients.contains(&pid));
                Process { pid, used_bytes, sm_percent, mps }
            })
            .collect()
    })
}

/// The newest sample of a process.
fn busy(samples: &[Sample], pid: u32) -> u32 {
    let newest = samples.iter().filter(|sample| sample.pid == pid).max_by_key(|sample| sample.at);
    newest.map_or(0, |sample| sample.sm_percent.min(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_two_lists_is_one_with_its_memory_once() {
        let listed = [(7, Some(10)), (3, None), (7, Some(10)), (3, Some(5)), (9, None)];
        let joined = joined(listed, None, None).unwrap();
        let memory: Vec<_> =
            joined.iter().map(|process| (process.pid, process.used_bytes)).collect();
        assert_eq!(memory, [(3, Some(5)), (7, Some(10)), (9, None)]);
        assert!(joined.iter().all(|process| process.sm_percent.is_none()), "nothing is sampled");
    }

    #[test]
    fn the_newest_sample_counts_and_a_process_without_one_is_idle() {
        let sample = |pid, at, sm_percent| Sample { pid, at, sm_percent };
        let samples = [sample(7, 2, 40), sample(7, 1, 90), sample(8, 1, 101)];
        let joined = joined([(3, None), (7, None), (8, None)], Some(&samples), None).unwrap();
        let busy: Vec<_> = joined.iter().map(|process| process.sm_percent).collect();
        assert_eq!(busy, [Some(0), Some(40), Some(100)]);
    }

    #[test]
    fn more_processes_than_are_told_are_unknown() {
        let listed = |count: usize| (0..count).map(|pid| (u32::try_from(pid).unwrap(), Some(1)));
        assert_eq!(joined(listed(MAX_PROCESSES), None, None).unwrap().len(), MAX_PROCESSES);
        assert_eq!(joined(listed(MAX_PROCESSES + 1), None, None), None);
    }
}
