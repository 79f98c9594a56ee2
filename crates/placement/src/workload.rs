//! Which pods are alike: those of one controller with one template.

use std::sync::Arc;

/// The pods of one controller in one namespace that have the same template.
///
/// A namespace never sees another's use. Within it, a pod counts to the controller that its `ownerReferences` name, and only
/// together with pods whose containers are the same; so what its author writes bears on pods of its own making.
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
