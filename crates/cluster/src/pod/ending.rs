//! When the kubelet may kill a pod's processes.

use std::time::Duration;

use jiff::Timestamp;

use super::Pod;

/// The type of the condition that a pod is about to be ended.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason of that condition where the pod's own kubelet ends it: for want of memory or disk, for a critical pod, or
/// at the node's shutdown. Other reasons are followed by a deletion.
const BY_KUBELET: &str = "TerminationByKubelet";

/// A deletion that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: when its processes may be killed, by the API server's clock. The server adds the
    /// grace period to the time of the request (`BeforeDelete` in k8s.io/apiserver/pkg/registry/rest/delete.go). `None`
    /// if it cannot be read.
    pub at: Option<Timestamp>,
    /// `metadata.deletionGracePeriodSeconds`: for how long the kubelet waits after it has sent SIGTERM. `None` if the
    /// object has none that can be read.
    pub grace: Option<Duration>,
}

impl Pod {
    /// Its deletion; `None` until it begins.
    pub fn deletion(&self) -> Option<Deletion> {
        let meta = &self.metadata.object;
        let at = meta.deletion_timestamp.as_ref()?.0;
        let grace = meta.deletion_grace_period_seconds;
        Some(Deletion {
            at: (at != Timestamp::MAX).then_some(at),
            grace: grace.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
        })
    }

    /// Whether its kubelet ends it without a deletion. The kubelet says so before it kills.
    pub fn is_ended_by_kubelet(&self) -> bool {
        self.status.conditions.iter().any(|condition| {
            condition.kind == DISRUPTION_TARGET
                && condition.status == "True"
                && condition.reason == BY_KUBELET
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: &Value, condition: &Value) -> Pod {
        let status = json!({ "conditions": [condition] });
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }

    fn deletion(metadata: &Value) -> Option<Deletion> {
        pod(metadata, &json!({})).deletion()
    }

    #[test]
    fn a_deletion_has_its_time_and_grace_period_as_far_as_they_are_told() {
        let at = "2026-11-20T09:00:30Z";
        let both = json!({ "deletionTimestamp": at, "deletionGracePeriodSeconds": 30 });
        let expected =
            Deletion { at: Some(at.parse().unwrap()), grace: Some(Duration::from_secs(30)) };
        assert_eq!(deletion(&both), Some(expected));
        assert_eq!(deletion(&json!({ "deletionGracePeriodSeconds": 30 })), None);
        let unread = json!({ "deletionTimestamp": "10000-01-01T00:00:00Z" });
        assert_eq!(deletion(&unread), Some(Deletion { at: None, grace: None }));
        let negative = json!({ "deletionTimestamp": at, "deletionGracePeriodSeconds": -1 });
        assert_eq!(deletion(&negative).unwrap().grace, Some(Duration::ZERO));
    }

    #[test]
    fn a_kubelet_that_ends_a_pod_says_so_and_others_delete_it() {
        for (kind, status, reason, expected) in [
            ("DisruptionTarget", "True", "TerminationByKubelet", true),
            ("DisruptionTarget", "False", "TerminationByKubelet", false),
            ("DisruptionTarget", "True", "EvictionByEvictionAPI", false),
            ("Ready", "True", "TerminationByKubelet", false),
        ] {
            let condition = json!({ "type": kind, "status": status, "reason": reason });
            assert_eq!(pod(&json!({}), &condition).is_ended_by_kubelet(), expected, "{reason}");
        }
    }
}
