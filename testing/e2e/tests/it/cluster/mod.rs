//! Tests of the cluster itself: its likeness to the stand-ins of other tests, what it refuses, a second
//! scheduler, an upgrade by kubeadm, the chart, and the removal of Plimsoll.

pub(crate) mod admission;
pub(crate) mod admission_cost;
pub(crate) mod api_conformance;
pub(crate) mod chart;
pub(crate) mod doctor;
pub(crate) mod kubeadm_upgrade;
pub(crate) mod kubelet_conformance;
pub(crate) mod migration;
pub(crate) mod monitoring;
pub(crate) mod scheduler_conformance;
pub(crate) mod second_scheduler;
pub(crate) mod uninstall;
pub(crate) mod users;
pub(crate) mod versions;
