//! Which pods are alike: those of one controller with one template.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// After this time an observation of a pod's use weighs half as much as a new one: a day's course is in what is learned.
pub const HALF_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// The pods of one controller in one namespace that have the same template.
///
/// A namespace never sees another's use. Within it, a pod counts to the controller that its `ownerReferences` name, together
/// with pods whose containers are the same. Its author bears on others' pods as far as their template is not known: then the
/// template counts whose pods were observed for longest (see [`evidence`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The controller's kind: Deployment, StatefulSet, DaemonSet, Job, CronJob or another.
    pub kind: Arc<str>,
    /// The controller's name; of a ReplicaSet that of its Deployment, of a CronJob's Job that of the CronJob.
    pub name: Arc<str>,
    /// A number for the containers' names, images and commands. Two templates with the same number are held for one.
    pub template: u64,
}

/// How much is known of a workload whose pods were observed for so many minutes by `last_seen`, where older minutes count less:
/// a number to order workloads by, of which the highest has most pod-minutes at any later time.
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
