//! Workloads: the pods of one controller with one template.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// After this time an observation of a pod's use counts half as much as a new one, so that learned use covers a day's course.
pub const HALF_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// The pods of one controller in one namespace that have the same template.
///
/// Use is never shared between namespaces. Within one, a pod belongs to the controller in its `ownerReferences`, together with pods whose
/// containers are the same. If a pod's template is not known, the template of that controller counts whose pods were observed for longest
/// (see [`evidence`]): so an author of pods can influence estimates of such pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The controller's kind: Deployment, StatefulSet, DaemonSet, Job, CronJob or another.
    pub kind: Arc<str>,
    /// The controller's name; of a ReplicaSet that of its Deployment, of a CronJob's Job that of the CronJob.
    pub name: Arc<str>,
    /// A hash of the containers' names, images and commands. Two templates with the same hash count as one.
    pub template: u64,
}

/// A number to compare workloads by how long their pods were observed: `pod_minutes` up to `last_seen`, where older minutes count less.
/// The workload with the highest number has the most weighted pod-minutes at any later time.
///
/// # Examples
///
/// ```
/// use jiff::{SignedDuration, Timestamp};
/// use placement::workload::{HALF_LIFE, evidence};
///
/// let before = Timestamp::UNIX_EPOCH;
/// let now = before + HALF_LIFE;
/// assert!(evidence(100.0, before, HALF_LIFE) > evidence(49.0, now, HALF_LIFE));
/// assert!(evidence(100.0, before, HALF_LIFE) < evidence(51.0, now, HALF_LIFE));
/// ```
#[must_use]
pub fn evidence(pod_minutes: f64, last_seen: Timestamp, half_life: SignedDuration) -> f64 {
    let half_lives = last_seen.as_second() as f64 / half_life.as_secs_f64().max(1.0);
    pod_minutes.max(0.0).log2() + half_lives
}
