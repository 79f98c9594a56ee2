//! Which nodes a pod may go to, however much is free there: kube-scheduler's NodeUnschedulable, TaintToleration and
//! NodeAffinity. Moves and evictions go by it, and the stand-in scheduler of the tests.
//!
//! Invariant: a rule that cannot be checked allows no node.

use serde::Deserialize;

use crate::selector::{Labels, Requirement};

/// The one field of a node that affinity can name.
const NAME: &str = "metadata.name";

/// The most terms of a pod's affinity, and requirements of a term, that are checked for moves.
const MAX_TERMS: usize = 64;
/// Values of all requirements together, and tolerations, above which rules are not checked: each is compared on
/// thousands of nodes.
const MAX_VALUES: usize = 256;
const MAX_TOLERATIONS: usize = 64;

/// A node, as pods' rules see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeTraits {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// Its taints, [`NodeTaint::cordon`] among them while it is cordoned.
    pub taints: Vec<NodeTaint>,
}

/// A taint of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeTaint {
    key: String,
    value: Option<String>,
    effect: String,
}

/// A pod's toleration: the taints that do not keep it off a node. An empty key or effect stands for any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Toleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

/// A term of a pod's required node affinity. One without requirements matches no node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityTerm {
    match_expressions: Option<Vec<Requirement>>,
    match_fields: Option<Vec<Requirement>>,
}

/// What a pod asks of its node's name, labels and taints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRules {
    /// The labels of `spec.nodeSelector`.
    pub node_selector: Labels,
    /// The terms of the required node affinity, of which one has to match; `None` without such affinity.
    pub terms: Option<Vec<AffinityTerm>>,
    /// The taints that it tolerates.
    pub tolerations: Vec<Toleration>,
}

impl NodeTaint {
    /// A taint without a value that keeps pods out, as the node controller sets it for a condition.
    #[must_use]
    pub fn of_condition(condition: &str) -> Self {
        let key = format!("node.kubernetes.io/{condition}");
        Self { key, value: None, effect: "NoSchedule".to_owned() }
    }

    /// The taint that a cordon is to kube-scheduler.
    #[must_use]
    pub fn cordon() -> Self {
        Self::of_condition("unschedulable")
    }

    /// Whether it keeps a pod with these tolerations off its node.
    fn keeps_out(&self, tolerations: &[Toleration]) -> bool {
        matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
            && !tolerations.iter().any(|toleration| toleration.tolerates(self))
    }
}

impl Toleration {
    /// As `Toleration.ToleratesTaint` of k8s.io/component-helpers, except that the operators that compare numbers
    /// tolerate nothing here.
    fn tolerates(&self, taint: &NodeTaint) -> bool {
        let (key, effect) = (text(&self.key), text(&self.effect));
        (effect.is_empty() || effect == taint.effect)
            && (key.is_empty() || key == taint.key)
            && match text(&self.operator) {
                "" | "Equal" => text(&self.value) == text(&taint.value),
                "Exists" => true,
                _ => false,
            }
    }
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

impl AffinityTerm {
    fn labels(&self) -> &[Requirement] {
        self.match_expressions.as_deref().unwrap_or_default()
    }

    fn fields(&self) -> &[Requirement] {
        self.match_fields.as_deref().unwrap_or_default()
    }

    fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.labels().len() + self.fields().len() > 0
            && self.fields_match(name)
            && self.labels().iter().all(|requirement| requirement.matches(labels))
    }

    fn fields_match(&self, name: &str) -> bool {
        self.fields().iter().all(|field| field.key() == NAME && field.is_met_by(Some(name)))
    }

    fn values(&self) -> usize {
        self.labels().iter().chain(self.fields()).map(Requirement::values).sum()
    }

    fn can_be_checked(&self) -> bool {
        self.labels().len() + self.fields().len() <= MAX_TERMS
            && self.labels().iter().chain(self.fields()).all(Requirement::is_known)
            && self.fields().iter().all(|field| field.key() == NAME)
    }
}

impl NodeRules {
    /// Whether all of them can be checked, in little time.
    pub fn can_be_checked(&self) -> bool {
        let terms = self.terms.as_deref().unwrap_or_default();
        terms.len() <= MAX_TERMS
            && terms.iter().all(AffinityTerm::can_be_checked)
            && terms.iter().map(AffinityTerm::values).sum::<usize>() <= MAX_VALUES
            && self.tolerations.len() <= MAX_TOLERATIONS
    }

    /// Whether the pod may go to a node.
    pub fn allow(&self, node: &NodeTraits) -> bool {
        self.untolerated(node).is_none() && self.select(&node.name, &node.labels)
    }

    /// The first taint of a node that keeps the pod out.
    pub fn untolerated<'n>(&self, node: &'n NodeTraits) -> Option<&'n NodeTaint> {
        node.taints.iter().find(|taint| taint.keeps_out(&self.tolerations))
    }

    /// Whether node selector and affinity allow a node of this name with these labels.
    pub fn select(&self, name: &str, labels: &Labels) -> bool {
        let by_terms = self
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)));
        by_terms && self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Whether each term of the affinity names nodes, and none this one: kube-scheduler then looks at no other node.
    pub fn name_others(&self, name: &str) -> bool {
        let names_nodes = |term: &AffinityTerm| term.fields().iter().any(Requirement::is_in);
        self.terms.as_ref().is_some_and(|terms| {
            terms.iter().all(names_nodes) && !terms.iter().any(|term| term.fields_match(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(taints: &Value) -> NodeTraits {
        NodeTraits {
            name: "n".to_owned(),
            labels: [("disk", "ssd"), ("gpus", "4")].map(|(k, v)| (k.into(), v.into())).into(),
            taints: serde_json::from_value(taints.clone()).unwrap(),
        }
    }

    fn tolerating(tolerations: &Value) -> NodeRules {
        let tolerations = serde_json::from_value(tolerations.clone()).unwrap();
        NodeRules { tolerations, ..NodeRules::default() }
    }

    fn affine(terms: &Value) -> NodeRules {
        let terms = serde_json::from_value(terms.clone()).unwrap();
        NodeRules { terms: Some(terms), ..NodeRules::default() }
    }

    #[test]
    fn a_hard_taint_that_no_toleration_covers_keeps_a_pod_out() {
        let gpu = |effect: &str| json!([{ "key": "gpu", "value": "a10", "effect": effect }]);
        for (effect, is_out) in
            [("NoSchedule", true), ("NoExecute", true), ("PreferNoSchedule", false)]
        {
            let is_allowed = NodeRules::default().allow(&node(&gpu(effect)));
            assert_eq!(!is_allowed, is_out, "{effect}");
        }
        for (toleration, is_out) in [
            (json!({ "key": "gpu", "value": "a10" }), false),
            (
                json!({ "key": "gpu", "operator": "Equal", "value": "a10", "effect": "NoSchedule" }),
                false,
            ),
            (json!({ "key": "gpu", "operator": "Exists" }), false),
            (json!({ "operator": "Exists", "key": null, "effect": null }), false),
            (json!({ "key": "gpu", "value": "h100" }), true),
            (json!({ "key": "gpu" }), true),
            (json!({ "key": "cpu", "operator": "Exists" }), true),
            (json!({ "key": "gpu", "operator": "Exists", "effect": "NoExecute" }), true),
            (json!({ "key": "gpu", "operator": "Gt", "value": "1" }), true),
        ] {
            let rules = tolerating(&json!([toleration]));
            assert_eq!(!rules.allow(&node(&gpu("NoSchedule"))), is_out, "{toleration}");
        }
    }

    #[test]
    fn a_cordon_is_a_taint_to_pods_that_tolerate_it() {
        let cordoned = NodeTraits { taints: vec![NodeTaint::cordon()], ..node(&json!([])) };
        assert_eq!(NodeRules::default().untolerated(&cordoned), Some(&NodeTaint::cordon()));
        let key = "node.kubernetes.io/unschedulable";
        assert!(tolerating(&json!([{ "key": key, "operator": "Exists" }])).allow(&cordoned));
    }

    #[test]
    fn labels_are_selected_by_selector_and_affinity() {
        for (value, expected) in [("ssd", true), ("hdd", false)] {
            let node_selector = [("disk".to_owned(), value.to_owned())].into();
            let rules = NodeRules { node_selector, ..NodeRules::default() };
            assert_eq!(rules.allow(&node(&json!([]))), expected, "{value}");
        }
        for (operator, values, key, expected) in [
            ("In", &["ssd", "nvme"][..], "disk", true),
            ("NotIn", &["ssd"], "disk", false),
            ("NotIn", &["ssd"], "missing", true),
            ("Exists", &[], "disk", true),
            ("DoesNotExist", &[], "disk", false),
            ("Gt", &["3"], "gpus", true),
            ("Gt", &["4"], "gpus", false),
            ("Gt", &["3"], "disk", false),
            ("Lt", &["4"], "gpus", false),
            ("Lt", &["5"], "gpus", true),
        ] {
            let term = json!({ "key": key, "operator": operator, "values": values });
            let rules = affine(&json!([{ "matchExpressions": [term] }]));
            assert!(rules.can_be_checked());
            assert_eq!(rules.allow(&node(&json!([]))), expected, "{operator} {key}");
        }
        assert!(!affine(&json!([{}])).allow(&node(&json!([]))));
    }

    #[test]
    fn affinity_that_names_nodes_allows_no_others() {
        let named = |operator: &str, key: &str| {
            let field = json!({ "key": key, "operator": operator, "values": ["n"] });
            affine(&json!([{ "matchFields": [field] }]))
        };
        let other = NodeTraits { name: "m".to_owned(), ..node(&json!([])) };
        assert!(named("In", NAME).allow(&node(&json!([]))) && !named("In", NAME).name_others("n"));
        assert!(!named("In", NAME).allow(&other) && named("In", NAME).name_others("m"));
        assert!(named("NotIn", NAME).allow(&other) && !named("NotIn", NAME).name_others("n"));
        assert!(!named("In", "spec.unschedulable").can_be_checked());
    }

    #[test]
    fn what_cannot_be_checked_is_told_and_allows_no_node() {
        for (operator, values) in
            [("Gt", &["x"][..]), ("Lt", &["1", "2"]), ("In", &[]), ("NotIn", &[]), ("Near", &["x"])]
        {
            let term = json!({ "key": "disk", "operator": operator, "values": values });
            let rules = affine(&json!([{ "matchExpressions": [term] }]));
            assert!(!rules.can_be_checked(), "{operator}");
            assert!(!rules.allow(&node(&json!([]))), "{operator}");
        }
        let exists = json!({ "key": "disk", "operator": "Exists" });
        for (terms, requirements, expected) in [(64, 64, true), (65, 1, false), (1, 65, false)] {
            let term = json!({ "matchExpressions": vec![exists.clone(); requirements] });
            assert_eq!(affine(&json!(vec![term; terms])).can_be_checked(), expected);
        }
        for (values, tolerations, expected) in [(128, 64, true), (129, 64, false), (1, 65, false)] {
            let each = json!({ "key": "disk", "operator": "In", "values": vec!["ssd"; values] });
            let term = json!({ "matchExpressions": [each] });
            let toleration = json!({ "operator": "Exists" });
            let tolerations = serde_json::from_value(json!(vec![toleration; tolerations])).unwrap();
            let rules = NodeRules { tolerations, ..affine(&json!([term, term])) };
            assert_eq!(rules.can_be_checked(), expected, "{values}");
        }
    }
}
