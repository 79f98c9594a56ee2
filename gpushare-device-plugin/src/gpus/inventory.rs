//! The state of each GPU over time: NVML's answers and errors in, [`Gpus`] out.
//!
//! Invariants: a GPU once listed stays listed, with all its ids, healthy or not, since the kubelet crashes when an id
//! disappears while its Allocate is in flight (devicemanager/manager.go:923 in v1.36.2), and since the pods on it count
//! there and nowhere else. That includes the GPUs of earlier processes since the last boot ([`super::file`]). A GPU
//! whose memory is unknown is not listed, and is named by [`Inventory::without_size`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nvml::{ComputeMode, Recovery, Status, Xid};
use placement::units::{GpuId, MiB};

use super::file::{SavedError, SavedGpu};
use super::sizing::Sizing;
use super::{Gpu, Gpus, Unhealthy, ids};

/// Good readings in a row after which a GPU counts as healthy again.
const GOOD_READINGS: u32 = 3;
/// Time without a further critical error after which a GPU counts as healthy again, if the driver does
/// not report whether it needs a reset.
const QUIET: Duration = Duration::from_secs(600);

/// All GPUs that were ever enumerated, and the health of each.
#[derive(Debug)]
pub struct Inventory {
    sizing: Sizing,
    /// XIDs that do not make a GPU unhealthy, in addition to those that applications cause.
    ignored_xids: Vec<u64>,
    known: BTreeMap<GpuId, KnownGpu>,
    /// The GPUs of earlier processes, until NVML first enumerates.
    earlier: Vec<SavedGpu>,
    /// GPUs that take no pods, from the Node's annotation.
    cordoned: BTreeSet<GpuId>,
    /// Indexes of GPUs that take no pods, from the ConfigMap.
    unhealthy_indexes: BTreeSet<u32>,
    driver: Option<String>,
}

#[derive(Debug)]
struct KnownGpu {
    gpu: nvml::Gpu,
    prefix: String,
    health: Health,
}

/// The health of one GPU.
#[derive(Debug)]
struct Health {
    /// Answers in a row, up to [`GOOD_READINGS`].
    answers: u32,
    failure: Option<Failure>,
    recovery: Option<Recovery>,
    mig: bool,
    compute_mode: Option<ComputeMode>,
}

/// A critical error that the GPU has not recovered from.
#[derive(Debug)]
struct Failure {
    xid: Xid,
    at: Instant,
    /// Answers in a row since then in which the driver requires no recovery.
    good: u32,
}

impl Inventory {
    /// An inventory without GPUs.
    pub fn new(sizing: Sizing) -> Self {
        Self {
            sizing,
            ignored_xids: Vec::new(),
            known: BTreeMap::new(),
            earlier: Vec::new(),
            cordoned: BTreeSet::new(),
            unhealthy_indexes: BTreeSet::new(),
            driver: None,
        }
    }

    /// The same inventory, which also ignores these XIDs.
    pub fn ignoring(self, ignored_xids: Vec<u64>) -> Self {
        Self { ignored_xids, ..self }
    }

    /// The same inventory, which has these GPUs of earlier processes: those that NVML does not enumerate are lost, and
    /// those that failed have not recovered. The quiet time of a failure begins anew.
    pub fn with_earlier(self, earlier: Vec<SavedGpu>) -> Self {
        Self { earlier, ..self }
    }

    /// The GPUs for a later process.
    pub fn to_save(&self) -> Vec<SavedGpu> {
        let known = self.known.iter().filter_map(|(uuid, known)| known.to_save(uuid));
        // Those of earlier processes stay until NVML enumerates.
        known.chain(self.earlier.iter().cloned()).collect()
    }

    /// The GPUs that are not listed since their memory is unknown.
    pub fn without_size(&self) -> impl Iterator<Item = &nvml::Gpu> {
        self.known.values().map(|known| &known.gpu).filter(|gpu| gpu.memory_mib.is_none())
    }

    /// Sets the driver's version. `None`, after a failed read, keeps the last one.
    pub fn set_driver(&mut self, version: Option<String>) {
        self.driver = version.or_else(|| self.driver.take());
    }

    /// Resets the driver's version and what it reported of recoveries, MIG and compute modes: the next driver may be
    /// another one.
    pub fn forget_driver(&mut self) {
        self.driver = None;
        for known in self.known.values_mut() {
            known.health.forget_driver();
            known.health.mark_lost();
        }
    }

    /// Sets the GPUs that take no pods.
    pub fn set_cordoned(&mut self, gpus: BTreeSet<GpuId>) {
        self.cordoned = gpus;
    }

    /// Sets the indexes of GPUs that take no pods.
    pub fn set_unhealthy_indexes(&mut self, indexes: BTreeSet<u32>) {
        self.unhealthy_indexes = indexes;
    }

    /// Updates the GPUs that the driver enumerates. A known GPU that is not among them is lost. What the driver keeps
    /// of a GPU's memory for itself is none that a pod could get.
    pub fn set_enumerated(&mut self, mut gpus: Vec<nvml::Gpu>, now: Instant) {
        for gpu in &mut gpus {
            let reserved = gpu.reserved_mib.unwrap_or_default();
            gpu.memory_mib = gpu.memory_mib.map(|total| total.saturating_sub(reserved));
            if gpu.has_no_own_memory {
                gpu.memory_mib = gpu.memory_mib.or(self.sizing.unified.map(|memory| memory.0));
            }
        }
        if !gpus.is_empty() {
            self.add_earlier(&gpus, now);
        }
        for (uuid, known) in &mut self.known {
            if !gpus.iter().any(|gpu| gpu.uuid == uuid.as_str()) {
                known.health.mark_lost();
            }
        }
        let (old, new): (Vec<_>, Vec<_>) =
            gpus.into_iter().partition(|gpu| self.known.contains_key(gpu.uuid.as_str()));
        old.into_iter().for_each(|gpu| self.update(gpu));
        self.add(new);
    }

    /// Adds the GPUs of earlier processes.
    fn add_earlier(&mut self, enumerated: &[nvml::Gpu], now: Instant) {
        let earlier = std::mem::take(&mut self.earlier);
        let mut gpus = Vec::with_capacity(earlier.len());
        for saved in &earlier {
            let current = enumerated.iter().find(|gpu| gpu.uuid == saved.uuid.as_str());
            gpus.push(current.cloned().unwrap_or_else(|| gpu_of(saved)));
        }
        self.add(gpus);
        for saved in earlier {
            let Some(known) = self.known.get_mut(&saved.uuid) else { continue };
            if !known.gpu.has_no_own_memory {
                known.gpu.memory_mib = known.gpu.memory_mib.or(Some(saved.memory.0));
            }
            known.health.failure = saved.failed.map(|error| Failure {
                xid: Xid { number: error.xid },
                at: now,
                good: 0,
            });
        }
    }

    /// A GPU keeps the size that it was first listed with, so its ids do not change.
    fn update(&mut self, gpu: nvml::Gpu) {
        if let Some(known) = self.known.get_mut(gpu.uuid.as_str()) {
            let memory_mib = known.gpu.memory_mib.or(gpu.memory_mib);
            known.gpu = nvml::Gpu { memory_mib, ..gpu };
        }
    }

    /// Assigns prefixes to new GPUs; prefixes of known GPUs do not change.
    fn add(&mut self, gpus: Vec<nvml::Gpu>) {
        let uuids: Vec<GpuId> = gpus.iter().map(|gpu| GpuId::from(gpu.uuid.as_str())).collect();
        let all: Vec<GpuId> = self.known.keys().cloned().chain(uuids.iter().cloned()).collect();
        let prefixes = ids::prefixes(&all).split_off(self.known.len());
        for ((uuid, gpu), prefix) in uuids.into_iter().zip(gpus).zip(prefixes) {
            self.known.insert(uuid, KnownGpu { gpu, prefix, health: Health::good() });
        }
    }

    /// Records a GPU's answer to a poll.
    pub fn record_status(&mut self, uuid: &GpuId, status: &Status, now: Instant) {
        if let Some(known) = self.known.get_mut(uuid) {
            known.health.record_status(status, now);
        }
    }

    /// Records that a GPU does not answer.
    pub fn mark_lost(&mut self, uuid: &GpuId) {
        if let Some(known) = self.known.get_mut(uuid) {
            known.health.mark_lost();
        }
    }

    /// Records an error that a GPU raised.
    pub fn record_error(&mut self, uuid: &GpuId, xid: Xid, now: Instant) {
        if !xid.is_fatal(&self.ignored_xids) {
            return;
        }
        if let Some(known) = self.known.get_mut(uuid) {
            known.health.failure = Some(Failure { xid, at: now, good: 0 });
        }
    }

    /// The GPUs to list now.
    pub fn gpus(&self) -> Gpus {
        let mut gpus: Vec<Gpu> =
            self.known.iter().filter_map(|(uuid, known)| known.gpu(uuid, self.sizing)).collect();
        for gpu in &mut gpus {
            // The GPU's own fault has priority: an operator or the ConfigMap may list the GPU because of that fault.
            if !gpu.is_healthy() {
                continue;
            }
            if self.cordoned.contains(&gpu.uuid) {
                gpu.unhealthy = Some(Unhealthy::Cordoned);
            } else if self.unhealthy_indexes.contains(&gpu.index) {
                gpu.unhealthy = Some(Unhealthy::Listed);
            }
        }
        Gpus::new(gpus).with_driver(self.driver.clone())
    }
}

/// A GPU as an earlier process saved it.
fn gpu_of(saved: &SavedGpu) -> nvml::Gpu {
    nvml::Gpu {
        uuid: saved.uuid.to_string(),
        index: saved.index,
        model: saved.model.clone(),
        numa_node: saved.numa_node,
        memory_mib: Some(saved.memory.0),
        ..nvml::Gpu::default()
    }
}

impl KnownGpu {
    /// The GPU for a later process; `None` while its memory is unknown.
    fn to_save(&self, uuid: &GpuId) -> Option<SavedGpu> {
        let failure = self.health.failure.as_ref();
        Some(SavedGpu {
            uuid: uuid.clone(),
            index: self.gpu.index,
            model: self.gpu.model.clone(),
            memory: MiB(self.gpu.memory_mib?),
            numa_node: self.gpu.numa_node,
            failed: failure.map(|failure| SavedError { xid: failure.xid.number }),
        })
    }

    fn gpu(&self, uuid: &GpuId, sizing: Sizing) -> Option<Gpu> {
        let memory = self.gpu.memory_mib?;
        let units = sizing.units(MiB(memory))?;
        Some(Gpu {
            uuid: uuid.clone(),
            index: self.gpu.index,
            minor: self.gpu.minor,
            model: self.gpu.model.clone().unwrap_or_default(),
            memory: MiB(memory),
            offered: sizing.offered(MiB(memory)),
            units,
            numa_node: self.gpu.numa_node,
            linked: self.gpu.linked.clone(),
            pci_bus: self.gpu.pci_bus.clone(),
            cuda_major: self.gpu.cuda_major,
            compute_mode: self.health.compute_mode,
            unhealthy: self.health.unhealthy(),
            prefix: self.prefix.clone(),
        })
    }
}

impl Health {
    fn good() -> Self {
        Self {
            answers: GOOD_READINGS,
            failure: None,
            recovery: None,
            mig: false,
            compute_mode: None,
        }
    }

    fn forget_driver(&mut self) {
        self.recovery = None;
        self.mig = false;
        self.compute_mode = None;
    }

    fn mark_lost(&mut self) {
        self.answers = 0;
        if let Some(failure) = &mut self.failure {
            failure.good = 0;
        }
    }

    fn record_status(&mut self, status: &Status, now: Instant) {
        self.answers = GOOD_READINGS.min(self.answers + 1);
        // `None` is a read that the driver refused once: the last value stays.
        self.recovery = status.recovery.or(self.recovery);
        self.mig = status.mig.unwrap_or(self.mig);
        self.compute_mode = status.compute_mode.or(self.compute_mode);
        let Some(failure) = &mut self.failure else { return };
        let has_recovered = match status.recovery {
            Some(Recovery::Unneeded) => {
                failure.good += 1;
                failure.good >= GOOD_READINGS
            }
            Some(_) => {
                failure.good = 0;
                false
            }
            // Where the driver has reported a recovery before, only another report ends the failure.
            None => self.recovery.is_none() && now.duration_since(failure.at) >= QUIET,
        };
        if has_recovered {
            self.failure = None;
        }
    }

    /// The first cause that applies. MIG mode is the last: switching it off helps only a GPU that has no other fault.
    fn unhealthy(&self) -> Option<Unhealthy> {
        if self.answers < GOOD_READINGS {
            return Some(Unhealthy::Lost);
        }
        let recovery = self.recovery.filter(|recovery| *recovery != Recovery::Unneeded);
        let failure = self.failure.as_ref().map(|failure| Unhealthy::Failed(failure.xid));
        let mig = self.mig.then_some(Unhealthy::Mig);
        recovery.map(Unhealthy::Recovery).or(failure).or(mig)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "GPU-a1b2c3d4-1";
    const B: &str = "GPU-b1b2c3d4-1";

    #[test]
    fn what_the_driver_keeps_of_a_gpu_is_offered_to_no_pod() {
        let h100 = nvml::Gpu { reserved_mib: Some(480), ..probed(A, 0, Some(81_559)) };
        let t4 = nvml::Gpu { reserved_mib: Some(449), ..probed(B, 1, Some(15_360)) };
        let mut set = Inventory::new(Sizing::of_unit(MiB(1024)));
        let enumerated = vec![h100, t4, probed("GPU-c", 2, None)];
        for _ in 0..2 {
            set.set_enumerated(enumerated.clone(), Instant::now());
            let sizes: Vec<(u64, u32)> =
                set.gpus().iter().map(|gpu| (gpu.memory.0, gpu.units.0)).collect();
            assert_eq!(sizes, [(81_079, 79), (14_911, 14)]);
        }
        set.set_enumerated(vec![], Instant::now());
        assert_eq!(set.to_save().first().map(|saved| saved.memory), Some(MiB(81_079)));
    }

    fn probed(uuid: &str, index: u32, memory_mib: Option<u64>) -> nvml::Gpu {
        nvml::Gpu { uuid: uuid.to_owned(), index, memory_mib, ..nvml::Gpu::default() }
    }

    /// GPUs of this memory, at indexes 0, 1, …
    fn all_probed(gpus: &[(&str, u64)]) -> Vec<nvml::Gpu> {
        let indexed = (0..).zip(gpus);
        indexed.map(|(index, (uuid, mib))| probed(uuid, index, Some(*mib))).collect()
    }

    fn inventory(gpus: &[(&str, u64)]) -> Inventory {
        let mut inventory = Inventory::new(Sizing::of_unit(MiB(1024)));
        inventory.set_enumerated(all_probed(gpus), Instant::now());
        inventory
    }

    fn health(inventory: &Inventory) -> Vec<Option<Unhealthy>> {
        inventory.gpus().iter().map(|gpu| gpu.unhealthy).collect()
    }

    fn units(inventory: &Inventory) -> Vec<u32> {
        inventory.gpus().iter().map(|gpu| gpu.units.0).collect()
    }

    fn status(recovery: Option<Recovery>) -> Status {
        Status { recovery, ..Status::default() }
    }

    fn xid(number: u64) -> Xid {
        Xid { number: Some(number) }
    }

    #[test]
    fn a_gpu_has_whole_units_only() {
        assert_eq!(units(&inventory(&[(A, 23028)])), [22]);
    }

    #[test]
    fn a_gpu_of_unknown_size_is_not_listed_until_it_is_known() {
        let mut inventory = Inventory::new(Sizing::of_unit(MiB(1024)));
        inventory.set_enumerated(vec![probed(A, 0, None)], Instant::now());
        assert!(inventory.gpus().is_empty());
        inventory.set_enumerated(vec![probed(A, 0, Some(4096))], Instant::now());
        assert_eq!(units(&inventory), [4]);
    }

    #[test]
    fn a_driver_whose_version_cannot_be_read_is_the_one_that_it_was() {
        let mut inventory = inventory(&[(A, 1024)]);
        for version in [None, Some("615.10"), None, Some("620.1"), None] {
            inventory.set_driver(version.map(str::to_owned));
        }
        assert_eq!(inventory.gpus().driver(), Some("620.1"));
    }

    #[test]
    fn a_listed_gpu_keeps_its_units_whatever_size_it_shows_later() {
        let mut inventory = inventory(&[(A, 4096)]);
        for memory in [None, Some(2048), Some(8192)] {
            inventory.set_enumerated(vec![probed(A, 0, memory)], Instant::now());
            assert_eq!(units(&inventory), [4], "{memory:?}");
        }
    }

    #[test]
    fn a_gpus_links_are_those_of_the_last_enumeration() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        let mut gpus = all_probed(&[(A, 1024), (B, 1024)]);
        gpus[0].linked = vec![1];
        inventory.set_enumerated(gpus, Instant::now());
        let linked: Vec<_> = inventory.gpus().iter().map(|gpu| gpu.linked.clone()).collect();
        assert_eq!(linked, [vec![1], vec![]]);
    }

    #[test]
    fn a_gpu_that_is_no_longer_enumerated_stays_listed_as_lost() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        inventory.set_enumerated(vec![probed(B, 1, Some(1024))], Instant::now());
        assert_eq!(health(&inventory), [Some(Unhealthy::Lost), None]);
    }

    #[test]
    fn a_lost_gpu_is_healthy_again_after_three_good_readings() {
        let mut inventory = inventory(&[(A, 1024)]);
        let now = Instant::now();
        inventory.mark_lost(&A.into());
        for expected in [Some(Unhealthy::Lost), Some(Unhealthy::Lost), None] {
            inventory.record_status(&A.into(), &status(None), now);
            assert_eq!(health(&inventory), [expected]);
        }
    }

    #[test]
    fn an_error_makes_its_own_gpu_unhealthy_unless_an_application_caused_it() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        let now = Instant::now();
        inventory.record_error(&A.into(), xid(13), now);
        assert_eq!(health(&inventory), [None, None]);
        inventory.record_error(&A.into(), xid(79), now);
        assert_eq!(health(&inventory), [Some(Unhealthy::Failed(xid(79))), None]);
    }

    #[test]
    fn an_error_on_the_list_to_ignore_changes_nothing() {
        let inventory = inventory(&[(A, 1024)]);
        let now = Instant::now();
        let mut inventory = inventory.ignoring(vec![63]);
        inventory.record_error(&A.into(), xid(63), now);
        assert_eq!(health(&inventory), [None]);
        inventory.record_error(&A.into(), xid(48), now);
        assert_eq!(health(&inventory), [Some(Unhealthy::Failed(xid(48)))]);
    }

    #[test]
    fn a_cordoned_gpu_stays_closed_whatever_its_index_becomes() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        inventory.set_cordoned([B.into(), "GPU-gone".into()].into());
        assert_eq!(health(&inventory), [None, Some(Unhealthy::Cordoned)]);
        // GPU A is gone after a boot, and B has its index.
        let mut booted = Inventory::new(Sizing::of_unit(MiB(1024)));
        booted.set_cordoned([B.into()].into());
        booted.set_enumerated(all_probed(&[(B, 1024), ("GPU-new", 1024)]), Instant::now());
        assert_eq!(health(&booted), [Some(Unhealthy::Cordoned), None]);
        inventory.mark_lost(&B.into());
        assert_eq!(health(&inventory), [None, Some(Unhealthy::Lost)]);
    }

    #[test]
    fn a_listed_gpu_is_unhealthy_until_it_is_not_and_its_own_fault_is_named_first() {
        let mut inventory = inventory(&[(A, 1024), (B, 1024)]);
        inventory.set_unhealthy_indexes([1, 7].into());
        assert_eq!(health(&inventory), [None, Some(Unhealthy::Listed)]);
        inventory.mark_lost(&B.into());
        assert_eq!(health(&inventory), [None, Some(Unhealthy::Lost)]);
        inventory.set_unhealthy_indexes(BTreeSet::new());
        assert_eq!(health(&inventory), [None, Some(Unhealthy::Lost)]);
    }

    #[test]
    fn a_failed_gpu_recovers_once_the_driver_asks_for_nothing_in_three_readings() {
        let mut inventory = inventory(&[(A, 1024)]);
        let now = Instant::now();
        inventory.record_error(&A.into(), xid(48), now);
        inventory.record_status(&A.into(), &status(Some(Recovery::Unneeded)), now);
        inventory.record_status(&A.into(), &status(Some(Recovery::GpuReset)), now);
        assert_eq!(health(&inventory), [Some(Unhealthy::Recovery(Recovery::GpuReset))]);
        let failed = Some(Unhealthy::Failed(xid(48)));
        for expected in [failed, failed, None] {
            inventory.record_status(&A.into(), &status(Some(Recovery::Unneeded)), now);
            assert_eq!(health(&inventory), [expected]);
        }
    }

    #[test]
    fn a_failed_gpu_recovers_after_ten_quiet_minutes_where_the_driver_does_not_tell() {
        let mut inventory = inventory(&[(A, 1024)]);
        let start = Instant::now();
        inventory.record_error(&A.into(), xid(48), start);
        inventory.record_error(&A.into(), xid(48), start + Duration::from_secs(60));
        inventory.record_status(&A.into(), &status(None), start + Duration::from_secs(659));
        assert_eq!(health(&inventory), [Some(Unhealthy::Failed(xid(48)))]);
        inventory.record_status(&A.into(), &status(None), start + Duration::from_secs(660));
        assert_eq!(health(&inventory), [None]);
    }

    #[test]
    fn a_gpu_that_needs_a_reset_or_is_in_mig_mode_is_unhealthy_until_it_does_not() {
        let mut inventory = inventory(&[(A, 1024)]);
        let now = Instant::now();
        let reset = status(Some(Recovery::GpuReset));
        inventory.record_status(&A.into(), &Status { mig: Some(true), ..reset }, now);
        assert_eq!(health(&inventory), [Some(Unhealthy::Recovery(Recovery::GpuReset))]);
        // Neither could be read.
        inventory.record_status(&A.into(), &Status::default(), now);
        assert_eq!(health(&inventory), [Some(Unhealthy::Recovery(Recovery::GpuReset))]);
        let well = status(Some(Recovery::Unneeded));
        inventory.record_status(&A.into(), &Status { mig: Some(true), ..well }, now);
        inventory.record_status(&A.into(), &Status::default(), now);
        assert_eq!(health(&inventory), [Some(Unhealthy::Mig)]);
        inventory.record_status(&A.into(), &Status { mig: Some(false), ..Status::default() }, now);
        assert_eq!(health(&inventory), [None]);
    }

    #[test]
    fn another_driver_is_not_judged_by_what_the_one_before_said() {
        let mut inventory = inventory(&[(A, 1024)]);
        let now = Instant::now();
        inventory.set_driver(Some("615.10".to_owned()));
        let reset = status(Some(Recovery::GpuReset));
        let exclusive = Some(ComputeMode::ExclusiveProcess);
        let bad = Status { mig: Some(true), compute_mode: exclusive, ..reset };
        inventory.record_status(&A.into(), &bad, now);
        inventory.record_status(&A.into(), &Status::default(), now);
        let mode = |inventory: &Inventory| inventory.gpus().iter().next().unwrap().compute_mode;
        assert_eq!(mode(&inventory), exclusive, "it could not be read once");
        inventory.forget_driver();
        assert_eq!((health(&inventory), mode(&inventory)), (vec![Some(Unhealthy::Lost)], None));
        inventory.set_enumerated(vec![probed(A, 0, Some(1024))], Instant::now());
        (0..3).for_each(|_| inventory.record_status(&A.into(), &Status::default(), now));
        assert_eq!((health(&inventory), inventory.gpus().driver()), (vec![None], None));
    }

    #[test]
    fn a_failed_gpu_that_no_longer_reports_its_recovery_stays_failed() {
        let mut inventory = inventory(&[(A, 1024)]);
        let now = Instant::now();
        inventory.record_status(&A.into(), &status(Some(Recovery::Unneeded)), now);
        inventory.record_error(&A.into(), xid(79), now);
        inventory.record_status(&A.into(), &Status::default(), now + 2 * QUIET);
        assert_eq!(health(&inventory), [Some(Unhealthy::Failed(xid(79)))]);
    }

    fn later(first: &Inventory, gpus: &[(&str, u64)], now: Instant) -> Inventory {
        let inventory = Inventory::new(Sizing::of_unit(MiB(1024)));
        let mut inventory = inventory.with_earlier(first.to_save());
        inventory.set_enumerated(all_probed(gpus), now);
        inventory
    }

    #[test]
    fn a_gpu_that_a_later_process_does_not_find_is_lost() {
        let first = inventory(&[(A, 4096), (B, 2048)]);
        let second = later(&first, &[(B, 2048)], Instant::now());
        assert_eq!(health(&second), [None, Some(Unhealthy::Lost)], "B has A's index now");
        assert_eq!(units(&second), [2, 4]);
        assert_eq!(second.to_save().len(), 2, "and so for the next process");
        let third = later(&second, &[(A, 4096), (B, 2048)], Instant::now());
        assert_eq!(health(&third), [None, None]);
    }

    #[test]
    fn a_failed_gpu_stays_failed_in_a_later_process_until_it_recovers() {
        let mut first = inventory(&[(A, 1024), (B, 1024)]);
        let now = Instant::now();
        first.record_error(&A.into(), xid(79), now);
        let mut second = later(&first, &[(A, 1024), (B, 1024)], now);
        assert_eq!(health(&second), [Some(Unhealthy::Failed(xid(79))), None]);
        second.record_status(&A.into(), &status(None), now + QUIET - Duration::from_secs(1));
        assert_eq!(health(&second), [Some(Unhealthy::Failed(xid(79))), None]);
        second.record_status(&A.into(), &status(None), now + QUIET);
        assert_eq!(health(&second), [None, None]);
        assert!(second.to_save().iter().all(|gpu| gpu.failed.is_none()));
    }

    #[test]
    fn earlier_gpus_stay_while_the_driver_enumerates_none() {
        let first = inventory(&[(A, 1024)]);
        let mut second = later(&first, &[], Instant::now());
        assert!(second.gpus().is_empty());
        assert_eq!(second.to_save(), first.to_save());
        second.set_enumerated(vec![probed(A, 0, Some(1024))], Instant::now());
        assert_eq!(health(&second), [None]);
    }

    #[test]
    fn a_gpu_without_its_own_memory_has_the_size_that_is_set() {
        let unified = nvml::Gpu { has_no_own_memory: true, ..probed(A, 0, None) };
        let mut unset = Inventory::new(Sizing::of_unit(MiB(1024)));
        unset.set_enumerated(vec![unified.clone(), probed(B, 1, Some(1024))], Instant::now());
        assert_eq!(units(&unset), [1]);
        let without: Vec<&str> = unset.without_size().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!(without, [A]);
        let sizing = Sizing { unified: Some(MiB(65536)), ..Sizing::of_unit(MiB(1024)) };
        let mut set = Inventory::new(sizing);
        // A GPU whose memory could not be read once is none of these.
        set.set_enumerated(vec![unified, probed(B, 1, None)], Instant::now());
        assert_eq!((units(&set), set.without_size().count()), (vec![64], 1));
    }

    #[test]
    fn a_gpu_that_comes_later_changes_no_id_that_was_listed() {
        let mut inventory = inventory(&[("GPU-a1b2c3d4-01", 1024)]);
        inventory.set_enumerated(
            vec![
                probed("GPU-a1b2c3d4-01", 1, Some(1024)),
                probed("GPU-a1b2c3d4-02", 0, Some(1024)),
            ],
            Instant::now(),
        );
        let gpus = inventory.gpus();
        let prefixes: Vec<&str> = gpus.iter().map(|gpu| gpu.prefix.as_str()).collect();
        assert_eq!(prefixes, ["a1b2c3d402", "a1b2c3d4"]);
        let first = gpus.offering(&"a1b2c3d4-0".parse().unwrap()).unwrap();
        assert_eq!(first.uuid.as_str(), "GPU-a1b2c3d4-01");
    }
}
