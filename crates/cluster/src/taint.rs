//! The taints of a Node, and Plimsoll's taint among them.
//!
//! Invariant: taints of other programs are never lost or changed. A taint of another program with the key and effect of
//! ours takes the place of ours, since a key and effect occur once in the list. `spec.taints` is one value to the API
//! server, so a write replaces the whole list. It has the resourceVersion of the Node whose list it was made from; with
//! another version it fails with [`CallError::Conflict`](crate::CallError::Conflict).

use placement::taint::VALUE;
use serde_json::{Value, json};

/// The key of Cluster Autoscaler's taint `PreferNoSchedule` on such Nodes.
const DELETION_CANDIDATE: &str = "DeletionCandidateOfClusterAutoscaler";

/// Plimsoll's taint; its value is [`VALUE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its effect on pods that do not tolerate it.
    pub effect: TaintEffect,
}

/// A taint's effect on pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaintEffect {
    /// They go to the node only if no better node is left.
    PreferNoSchedule,
    /// They do not go to the node.
    NoSchedule,
}

impl TaintEffect {
    /// Its name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoSchedule => "NoSchedule",
        }
    }
}

/// The taints of a Node at one resourceVersion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeTaints {
    pub(crate) version: String,
    /// All taints as JSON, including fields that are not known here.
    pub(crate) all: Vec<Value>,
}

impl NodeTaints {
    /// Whether the Node has a taint of Plimsoll, with any key and effect.
    #[must_use]
    pub fn has_ours(&self) -> bool {
        self.all.iter().any(is_ours)
    }

    /// Whether Cluster Autoscaler has marked the Node as one that it will remove if it stays as little used.
    #[must_use]
    pub fn is_deletion_candidate(&self) -> bool {
        self.all.iter().any(|taint| taint["key"] == DELETION_CANDIDATE)
    }

    /// Whether it takes no pod without a toleration. A taint of Plimsoll does not count: it says that the Node is hot.
    #[must_use]
    pub fn repel_pods(&self) -> bool {
        self.others().any(|taint| taint["effect"] == "NoSchedule" || taint["effect"] == "NoExecute")
    }

    /// Whether its taints of Plimsoll are exactly the wanted one, or none.
    #[must_use]
    pub fn match_wanted(&self, wanted: Option<&Taint>) -> bool {
        let ours: Vec<&Value> = self.all.iter().filter(|taint| is_ours(taint)).collect();
        match (ours.as_slice(), self.to_add(wanted)) {
            ([], None) => true,
            ([one], Some(wanted)) => has_key_and_effect(one, wanted),
            _ => false,
        }
    }

    /// The whole list with the wanted taint of Plimsoll, or with none.
    pub(crate) fn with(&self, wanted: Option<&Taint>) -> Vec<Value> {
        let mut all: Vec<Value> = self.others().cloned().collect();
        if let Some(Taint { key, effect }) = self.to_add(wanted) {
            all.push(json!({ "key": key, "value": VALUE, "effect": effect.name() }));
        }
        all
    }

    /// The wanted taint, unless a taint of another program has its key and effect.
    fn to_add<'a>(&self, wanted: Option<&'a Taint>) -> Option<&'a Taint> {
        wanted.filter(|wanted| !self.others().any(|taint| has_key_and_effect(taint, wanted)))
    }

    /// Those of other programs.
    fn others(&self) -> impl Iterator<Item = &Value> {
        self.all.iter().filter(|taint| !is_ours(taint))
    }
}

fn is_ours(taint: &Value) -> bool {
    taint["value"] == VALUE
}

fn has_key_and_effect(taint: &Value, wanted: &Taint) -> bool {
    taint["key"] == wanted.key.as_str() && taint["effect"] == wanted.effect.name()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: TaintEffect) -> Taint {
        Taint { key: key.to_owned(), effect }
    }

    fn found(all: &[Value]) -> NodeTaints {
        NodeTaints { version: "7".to_owned(), all: all.to_vec() }
    }

    #[test]
    fn others_taints_stay_as_they_are_and_ours_of_any_key_is_replaced() {
        let other = json!({"key": "a", "effect": "NoExecute", "timeAdded": "2026-11-20T09:00:00Z", "new": 1});
        let old = json!({"key": "old", "value": VALUE, "effect": "NoSchedule"});
        let taints = found(&[other.clone(), old]);
        let wanted = taint("k", TaintEffect::PreferNoSchedule);
        assert!(
            taints.has_ours() && !taints.match_wanted(Some(&wanted)) && !taints.match_wanted(None)
        );
        let ours = json!({"key": "k", "value": VALUE, "effect": "PreferNoSchedule"});
        assert_eq!(taints.with(Some(&wanted)), [other.clone(), ours.clone()]);
        assert_eq!(taints.with(None), [other]);
        assert!(found(&[ours]).match_wanted(Some(&wanted)));
    }

    #[test]
    fn anothers_taint_of_the_same_key_and_effect_stands_for_ours_and_stays() {
        let theirs = json!({"key": "k", "value": "by hand", "effect": "NoSchedule"});
        let old = json!({"key": "old", "value": VALUE, "effect": "NoSchedule"});
        let (same, softer) =
            (taint("k", TaintEffect::NoSchedule), taint("k", TaintEffect::PreferNoSchedule));
        let taints = found(std::slice::from_ref(&theirs));
        assert!(
            taints.match_wanted(Some(&same))
                && taints.match_wanted(None)
                && !taints.match_wanted(Some(&softer))
        );
        assert_eq!(taints.with(Some(&same)), taints.all);
        assert_eq!(found(&[old, theirs.clone()]).with(Some(&same)), [theirs]);
    }
}
