//! The `gpu-share` annotation of one node: its text on the node, what it should be, and when to write it.

use api::share::{GpuShare, NodeShare};
use jiff::{SignedDuration, Timestamp};
use placement::units::{GpuId, Units};

use crate::exporter::gpus::GpuMeasurements;
use crate::node_write::ShareAnnotation;

/// Without bursts of writes, the time that a change of the shares waits for further changes before a patch of its own.
/// Each write of a Node makes kube-scheduler retry every pod that it could not place.
const BATCH: SignedDuration = SignedDuration::from_secs(10);

/// The age at which a patch with readings renews an unchanged share, so that readers see a recent time.
const RENEW_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// The age up to which a measurement is added to patches without a new one: as long as crane's readers honour a hot
/// value.
const MEASUREMENT_MAX_AGE: SignedDuration = SignedDuration::from_mins(5);

/// A job's plan for the share annotation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SharePlan {
    /// Each GPU with its share, and with the last measurement if that is fresh.
    pub(crate) gpus: Vec<GpuShare>,
    /// Whether it must be written even if there is no other write.
    pub(crate) is_due: bool,
    /// Whether another patch of the Node includes it even without a new measurement.
    include_in_patch: bool,
}

impl SharePlan {
    /// The annotation to write at `at`, with the new measurements; `None` if there is nothing to write. `patches_node`:
    /// the job patches the Node anyway.
    pub(crate) fn decide(
        &self,
        measured: &GpuMeasurements,
        patches_node: bool,
        at: Timestamp,
    ) -> Option<ShareAnnotation> {
        let is_measured = !self.gpus.is_empty() && !measured.is_empty();
        let is_included = patches_node && (self.include_in_patch || is_measured);
        if !self.is_due && !is_included {
            return None;
        }
        let gpus: Vec<GpuShare> =
            self.gpus.iter().cloned().map(|gpu| measured.apply_to(gpu)).collect();
        Some((!gpus.is_empty()).then_some(NodeShare { time: at, gpus }))
    }
}

/// The annotation of one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShareState {
    /// The annotation on the node.
    written: ShareAnnotation,
    /// The wanted shares; `None` while they are unknown.
    target: Option<Vec<GpuShare>>,
    /// When a change must be written.
    due: Option<Timestamp>,
    /// The last measurement, and its time.
    measured: Option<(Timestamp, GpuMeasurements)>,
}

impl ShareState {
    /// The state of a node with this annotation. A text that does not parse is overwritten.
    pub(crate) fn from_annotation(annotation: Option<&str>) -> Self {
        let mut state = Self::default();
        state.observe(annotation);
        state
    }

    /// Sets the annotation that another replica wrote.
    pub(crate) fn observe(&mut self, annotation: Option<&str>) {
        self.written = annotation.map(|text| match NodeShare::from_json(text) {
            Ok(share) => share,
            Err(_) => NodeShare { time: Timestamp::MIN, gpus: Vec::new() },
        });
    }

    /// Sets the wanted shares; `None` keeps the last target. A change waits for the next burst of writes, at `burst`.
    pub(crate) fn set_target(
        &mut self,
        gpus: Option<Vec<GpuShare>>,
        burst: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.target = gpus.or_else(|| self.target.take());
        self.due = if self.differs() {
            self.due.or(burst).or_else(|| now.checked_add(BATCH).ok())
        } else {
            None
        };
    }

    /// When a change must be written.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// The clock was set back, so `due` may be far ahead: a change is due at once.
    pub(crate) fn drop_waits(&mut self) {
        self.due = self.due.map(|_| Timestamp::MIN);
    }

    fn differs(&self) -> bool {
        let written = self.written.as_ref().map_or(&[][..], |share| &share.gpus);
        let Some(target) = &self.target else { return false };
        // An annotation without GPUs is not the same as no annotation.
        !same_allocation(target, written) || (target.is_empty() && self.written.is_some())
    }

    fn needs_renewal(&self, now: Timestamp) -> bool {
        let Some(written) = &self.written else { return false };
        // A time far ahead comes from a wrong clock.
        self.target.is_some() && now.duration_since(written.time).abs() >= RENEW_AFTER
    }

    /// The plan of a job that starts at `now`: a change that is due, and together with readings also a change that is
    /// not due yet, a renewal and new measurements. `None` while the shares are unknown.
    pub(crate) fn plan(&self, now: Timestamp) -> Option<SharePlan> {
        let mut gpus = self.target.clone()?;
        let mut include_in_patch = self.differs() || self.needs_renewal(now);
        if let Some((at, measured)) = &self.measured
            && now.duration_since(*at) <= MEASUREMENT_MAX_AGE
        {
            include_in_patch |= self.written.as_ref().is_some_and(|written| written.time < *at);
            gpus = gpus.into_iter().map(|gpu| measured.apply_to(gpu)).collect();
        }
        let is_due = self.due.is_some_and(|due| due <= now);
        Some(SharePlan { gpus, is_due, include_in_patch })
    }

    /// Records an exporter's measurements of `at`.
    pub(crate) fn record_measurements(&mut self, gpus: GpuMeasurements, at: Timestamp) {
        if !gpus.is_empty() {
            self.measured = Some((at, gpus));
        }
    }

    /// The annotation was written.
    pub(crate) fn record_write(
        &mut self,
        annotation: ShareAnnotation,
        burst: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.written = annotation;
        self.due = None;
        self.set_target(None, burst, now);
    }
}

/// Whether units and allocation are the same on the same GPUs. Measurements are not compared.
fn same_allocation(these: &[GpuShare], those: &[GpuShare]) -> bool {
    fn key(gpu: &GpuShare) -> (&GpuId, Units, Units) {
        (&gpu.uuid, gpu.units, gpu.allocated)
    }
    these.iter().map(key).eq(those.iter().map(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn gpus(allocated: u32) -> Option<Vec<GpuShare>> {
        Some(vec![GpuShare {
            uuid: "GPU-0".into(),
            units: Units(16),
            allocated: Units(allocated),
            used: None,
            utilisation: None,
        }])
    }

    /// What a patch at `now` says where nothing was measured.
    fn unmeasured(share: &ShareState, now: Timestamp, anyway: bool) -> Option<ShareAnnotation> {
        share.plan(now)?.decide(&GpuMeasurements::default(), anyway, now)
    }

    /// The same, written.
    fn write_now(share: &mut ShareState, now: Timestamp, anyway: bool) -> ShareAnnotation {
        let write = unmeasured(share, now, anyway).unwrap();
        share.record_write(write.clone(), None, now);
        write
    }

    fn busy(percent: f64) -> GpuMeasurements {
        let mut gpus = GpuMeasurements::default();
        gpus.record("gpu_0_usage_active", "GPU-0", percent);
        gpus
    }

    fn utilisation(write: Option<ShareAnnotation>) -> Option<f64> {
        write.unwrap().unwrap().gpus[0].utilisation
    }

    #[test]
    fn changes_within_ten_seconds_are_one_write() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), None, at(100));
        share.set_target(gpus(2), None, at(105));
        assert_eq!(share.due, Some(at(110)));
        assert_eq!(unmeasured(&share, at(109), false), None);
        let write = write_now(&mut share, at(110), false);
        assert_eq!(write.unwrap().gpus, gpus(2).unwrap());
        assert_eq!((share.due, unmeasured(&share, at(111), true)), (None, None));
    }

    #[test]
    fn a_change_waits_for_the_next_burst() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), Some(at(145)), at(100));
        share.set_target(gpus(2), Some(at(145)), at(105));
        assert_eq!((share.due, unmeasured(&share, at(144), false)), (Some(at(145)), None));
        assert!(unmeasured(&share, at(145), false).is_some());
    }

    #[test]
    fn a_load_patch_includes_a_change_that_is_not_due_yet() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), None, at(100));
        assert!(unmeasured(&share, at(101), true).is_some());
    }

    #[test]
    fn a_change_that_was_reverted_is_not_written() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), None, at(100));
        write_now(&mut share, at(110), false);
        share.set_target(gpus(2), None, at(120));
        share.set_target(gpus(1), None, at(121));
        assert_eq!(unmeasured(&share, at(200), false), None);
    }

    #[test]
    fn a_change_during_the_write_is_written_afterwards() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), None, at(100));
        let write = unmeasured(&share, at(110), false).unwrap();
        share.set_target(gpus(2), None, at(111));
        share.record_write(write, None, at(112));
        assert_eq!(share.due, Some(at(122)));
    }

    #[test]
    fn unknown_shares_are_not_written() {
        let mut share = ShareState::from_annotation(None);
        share.set_target(None, None, at(100));
        assert_eq!(unmeasured(&share, at(1000), true), None);
    }

    #[test]
    fn a_node_that_has_lost_its_gpus_loses_the_annotation() {
        let text = NodeShare { time: at(100), gpus: gpus(1).unwrap() }.to_json();
        let mut share = ShareState::from_annotation(Some(&text));
        share.set_target(Some(Vec::new()), None, at(200));
        assert_eq!(unmeasured(&share, at(210), false), Some(None));
        let mut never_had_any = ShareState::from_annotation(None);
        never_had_any.set_target(Some(Vec::new()), None, at(200));
        assert_eq!(unmeasured(&never_had_any, at(210), true), None);
    }

    #[test]
    fn a_restart_writes_nothing_and_a_load_patch_renews_an_old_share() {
        let text = NodeShare { time: at(100), gpus: gpus(1).unwrap() }.to_json();
        let mut share = ShareState::from_annotation(Some(&text));
        share.set_target(gpus(1), None, at(101));
        assert_eq!((share.due, unmeasured(&share, at(101), true)), (None, None));
        assert!(unmeasured(&share, at(700), true).is_some());
        assert_eq!(unmeasured(&share, at(700), false), None);
    }

    #[test]
    fn a_share_with_a_time_far_ahead_is_renewed_by_the_next_load_patch() {
        let text = NodeShare { time: at(8 * 3600), gpus: gpus(1).unwrap() }.to_json();
        let mut share = ShareState::from_annotation(Some(&text));
        share.set_target(gpus(1), None, at(100));
        assert!(unmeasured(&share, at(100), true).is_some());
    }

    #[test]
    fn an_unreadable_annotation_is_replaced() {
        let mut share = ShareState::from_annotation(Some("{"));
        share.set_target(gpus(1), None, at(100));
        assert!(share.due.is_some());
    }

    #[test]
    fn measurements_are_added_to_load_patches_and_cause_none() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), None, at(100));
        write_now(&mut share, at(110), false);
        assert_eq!(unmeasured(&share, at(120), false), None);
        let written = share.plan(at(120)).unwrap().decide(&busy(60.0), true, at(120));
        assert_eq!(utilisation(written.clone()), Some(0.6));
        share.record_write(written.unwrap(), None, at(120));
        share.record_measurements(busy(60.0), at(120));
        assert_eq!((share.due, unmeasured(&share, at(121), true)), (None, None));
    }

    #[test]
    fn a_measurement_is_added_to_later_patches_for_five_minutes() {
        let mut share = ShareState::default();
        share.set_target(gpus(1), None, at(100));
        share.record_measurements(busy(60.0), at(100));
        share.record_measurements(GpuMeasurements::default(), at(105));
        assert_eq!(utilisation(unmeasured(&share, at(400), false)), Some(0.6));
        assert_eq!(utilisation(unmeasured(&share, at(401), false)), None);
    }

    #[test]
    fn a_node_without_gpus_gets_no_share_from_a_measurement() {
        let mut share = ShareState::from_annotation(None);
        share.set_target(Some(Vec::new()), None, at(100));
        assert_eq!(share.plan(at(120)).unwrap().decide(&busy(60.0), true, at(120)), None);
    }
}
