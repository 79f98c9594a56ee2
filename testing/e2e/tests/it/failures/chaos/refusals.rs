//! Owns why a pod of a run may fail: its kubelet admitted it while there was no device plugin, the plugin could not ask
//! the API server which pod that is, or a forged claim was at work.

use e2e::Cluster;
use k8s_openapi::api::core::v1::Pod;

use super::watch::Watch;
use crate::support::pods::{node, uid};

/// Why a pod failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// Its node had no device plugin.
    PluginDown,
    /// Its device plugin could not ask the API server which of several pods is being admitted.
    ApiServerDown,
    /// Its claim is forged.
    OwnForgery,
    /// A forged claim took the room that it had been given.
    OthersForgery,
}

impl Cause {
    /// A name for the report.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::PluginDown => "plugin down",
            Self::ApiServerDown => "API server down",
            Self::OwnForgery => "its forged claim",
            Self::OthersForgery => "another's forged claim",
        }
    }
}

/// What a device plugin says where a GPU that a pod was given has no room, or another pod that would have to be alone.
const NO_ROOM: [[&str; 2]; 3] = [
    ["units of GPU", "are free"],
    ["claims GPU", "for itself (`exclusive`), where another pod"],
    ["claims GPU", "which another pod has for itself"],
];
/// What it says where it cannot tell which pod is being admitted.
const UNKNOWN: [&str; 2] =
    ["cannot tell which pod the kubelet is admitting: read pod", "may be the pod being admitted"];

/// The cause of a failure; `None` where there may be none. `beside_forged` tells whether there are pods with forged
/// claims, or were since the last rest: one that was deleted may hold a GPU for a while.
pub(super) fn cause(
    cluster: &Cluster,
    pod: &Pod,
    forged: bool,
    beside_forged: bool,
    watch: &Watch,
) -> Option<Cause> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.as_deref().unwrap_or_default();
    let message = status.message.as_deref().unwrap_or_default();
    let unexpected = reason == "UnexpectedAdmissionError";
    let here = cluster.nodes().iter().position(|host| Some(host.name()) == node(pod));
    let says_no_room = NO_ROOM.iter().any(|all| all.iter().all(|part| message.contains(part)));
    let no_room = reason.starts_with("OutOf") || unexpected && says_no_room;
    let unknown = unexpected && UNKNOWN.iter().any(|part| message.contains(part));
    if forged && (unexpected || no_room) {
        Some(Cause::OwnForgery)
    } else if unexpected && here.is_some_and(|here| watch.refused_without_plugin(here, uid(pod))) {
        Some(Cause::PluginDown)
    } else if unknown && here.is_some_and(|here| watch.refused_without_api(here, uid(pod))) {
        Some(Cause::ApiServerDown)
    } else if beside_forged && no_room {
        Some(Cause::OthersForgery)
    } else {
        None
    }
}
