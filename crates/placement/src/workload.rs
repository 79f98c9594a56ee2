//! Workloads: pods that are alike, so that what some of them used is what the next will use.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// After this time an observation of a pod's use counts half as much as a new one, so that learned use covers a day's
/// course.
pub const HALF_LIFE: SignedDuration = SignedDuration::from_hours(24);

/// In a workload's name: it is no controller's name, but one of what pods look like. No object has it in its name.
pub const SHAPE_MARK: char = '@';

/// The largest number of templates that are kept of a controller, which has a new one with each release.
const MOST_TEMPLATES: usize = 8;

/// As [`MOST_TEMPLATES`], of a shape: all tasks of a workflow engine can have one image and one request.
const MOST_TEMPLATES_OF_SHAPE: usize = 128;

/// Pods in one namespace that have the same template, of one controller; if they run once, of one shape: the kind of
/// their controllers, and the containers' names, images and requests.
///
/// Use is never shared between namespaces. Within one, a pod belongs to the controller in its `ownerReferences`,
/// together with pods whose containers are the same. If a pod's template is not known, the template of that controller
/// or shape counts whose pods were observed for longest (see [`evidence`]): so an author of pods can influence
/// estimates of such pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The controller's kind: Deployment, StatefulSet, DaemonSet, Job, CronJob or another; Pod without a controller.
    pub kind: Arc<str>,
    /// The controller's name; of a ReplicaSet that of its Deployment, of a CronJob's Job that of the CronJob. Of a
    /// shape the image's, [`SHAPE_MARK`] and a hash.
    pub name: Arc<str>,
    /// A hash of the containers' names, images and commands; of a shape of the pod's name and the commands, without
    /// what differs from run to run. Two templates with the same hash count as one.
    pub template: u64,
}

impl WorkloadId {
    /// The largest number of templates that are kept of its controller or shape.
    pub(crate) fn most_templates(&self) -> usize {
        if self.name.contains(SHAPE_MARK) { MOST_TEMPLATES_OF_SHAPE } else { MOST_TEMPLATES }
    }
}

/// A number to compare workloads by how long their pods were observed: `pod_minutes` up to `last_seen`, where older
/// minutes count less. The workload with the highest number has the most weighted pod-minutes at any later time.
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

/// The most pod-minutes that a list may claim of a workload: those of 150,000 pods in a day.
pub const MOST_POD_MINUTES: f64 = 150_000.0 * 24.0 * 60.0;

/// As [`evidence`] with [`HALF_LIFE`], of what a list claims at `now`. Lists come over plain HTTP, and no entry may
/// outweigh every later one.
#[must_use]
pub fn claimed_evidence(pod_minutes: f64, last_seen: Timestamp, now: Timestamp) -> f64 {
    evidence(pod_minutes.min(MOST_POD_MINUTES), last_seen.min(now), HALF_LIFE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_claim_outweighs_what_150_000_pods_show_in_a_day() {
        let now = Timestamp::from_second(1_795_165_200).unwrap();
        let most = claimed_evidence(f64::MAX, now + 100 * HALF_LIFE, now);
        assert_eq!(most, evidence(MOST_POD_MINUTES, now, HALF_LIFE));
        assert!(evidence(MOST_POD_MINUTES, now + HALF_LIFE, HALF_LIFE) > most);
    }
}
