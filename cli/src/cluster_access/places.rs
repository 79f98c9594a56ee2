//! Where Plimsoll is: in the namespaces of the ServiceAccounts that its ClusterRoleBindings name.
//!
//! Invariant: only who may bind rights of the whole cluster can change the answer. A label says nothing here: everybody
//! who may write Deployments in some namespace can write `app.kubernetes.io/part-of: plimsoll` there.

use serde_json::Value;

use super::objects::List;
use super::{EXTENDER, Failure, Kubectl};

/// Programs beside the extender. Each has the ClusterRoleBinding `plimsoll-PROGRAM` of its own ServiceAccount.
const ANNOTATOR: &str = "annotator";
const PLUGIN: &str = "gpushare-device-plugin";

/// The namespaces of Plimsoll's programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// That of the extender, or of the annotator where there is no extender; `None` if neither is installed.
    pub(super) own: Option<String>,
    /// That of the device plugin; `None` if it is not installed.
    pub(super) node_agents: Option<String>,
    /// Whether the annotator is installed and the extender is not.
    pub(super) has_no_extender: bool,
}

impl Places {
    /// As the cluster's ClusterRoleBindings say.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub(super) fn read(kubectl: &Kubectl) -> Result<Self, Failure> {
        let names = [EXTENDER, ANNOTATOR, PLUGIN].map(name_of);
        let [extender, annotator, plugin] = names.each_ref().map(String::as_str);
        let words = ["clusterrolebindings", extender, annotator, plugin, "--ignore-not-found"];
        let found: Option<List<Value>> = kubectl.get_if_there(&words)?;
        Ok(Self::of(&found.unwrap_or_default().items))
    }

    fn of(bindings: &[Value]) -> Self {
        let namespace = |program: &str| {
            let binding = bindings.iter().find(|it| it["metadata"]["name"] == name_of(program))?;
            let is_its = |it: &&Value| it["kind"] == "ServiceAccount" && it["name"] == program;
            let account = binding["subjects"].as_array()?.iter().find(is_its)?;
            account["namespace"].as_str().map(str::to_owned)
        };
        let (extender, annotator) = (namespace(EXTENDER), namespace(ANNOTATOR));
        Self {
            has_no_extender: extender.is_none() && annotator.is_some(),
            own: extender.or(annotator),
            node_agents: namespace(PLUGIN),
        }
    }
}

fn name_of(program: &str) -> String {
    format!("plimsoll-{program}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn places(bindings: &Value) -> (Option<String>, Option<String>) {
        let Places { own, node_agents, .. } = Places::of(bindings.as_array().unwrap());
        (own, node_agents)
    }

    fn binding(name: &str, kind: &str, account: &str, namespace: &str) -> Value {
        let subjects = json!([{"kind": kind, "name": account, "namespace": namespace}]);
        json!({"metadata": {"name": name}, "subjects": subjects})
    }

    #[test]
    fn a_program_is_in_the_namespace_of_the_account_that_its_binding_names() {
        let account = "ServiceAccount";
        let extender =
            binding("plimsoll-scheduler-extender", account, "scheduler-extender", "plimsoll");
        let annotator = binding("plimsoll-annotator", account, "annotator", "b");
        let plugin =
            binding("plimsoll-gpushare-device-plugin", account, "gpushare-device-plugin", "agents");
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(places(&json!([])), (None, None));
        assert_eq!(places(&json!([annotator])), (some("b"), None));
        let has_none = |bindings: &[Value]| Places::of(bindings).has_no_extender;
        let of_annotator = std::slice::from_ref(&annotator);
        assert!(has_none(of_annotator) && !has_none(&[]));
        assert!(!has_none(&[annotator.clone(), extender.clone()]));
        let all = json!([annotator, extender, plugin]);
        assert_eq!(places(&all), (some("plimsoll"), some("agents")));
        for other in [
            binding("plimsoll-scheduler-extender", "User", "scheduler-extender", "a-team"),
            binding("plimsoll-scheduler-extender", account, "other", "a-team"),
            binding("plimsoll-scheduler-extender-2", account, "scheduler-extender", "a-team"),
        ] {
            assert_eq!(places(&json!([other])), (None, None), "{other}");
        }
    }
}
