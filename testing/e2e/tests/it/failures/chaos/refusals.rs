//! Owns why a pod of a run may fail: its kubelet admitted it while there was no device plugin, or a forged claim was at work.

use e2e::Cluster;
use k8s_openapi::api::core::v1::Pod;

use super::watch::Watch;
use crate::support::pods::{node, uid};

/// Why a pod failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// Its node had no device plugin.
    PluginDown,
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
            Self::OwnForgery => "its forged claim",
            Self::OthersForgery => "another's forged claim",
        }
    }
}

/// The cause of a failure; `None` where there may be none. `beside_forged` tells whether pods with forged claims exist.
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
    let down = || here.is_some_and(|here| watch.refused_without_plugin(here, uid(pod)));
    let no_room = reason.starts_with("OutOf")
        || unexpected && message.contains("units of card") && message.contains("are free");
    if forged && (unexpected || no_room) {
        Some(Cause::OwnForgery)
    } else if unexpected && down() {
        Some(Cause::PluginDown)
    } else if beside_forged && no_room {
        Some(Cause::OthersForgery)
    } else {
        None
    }
}
