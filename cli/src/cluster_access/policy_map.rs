//! Which ConfigMap has the policy: by the extender and the annotator.

use super::EXTENDER;
use super::workload::{Workload, find};

/// The volume of both programs that the policy is in.
const VOLUME: &str = "policy";

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyMap {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PolicyMap {
    /// The shipped one.
    pub(super) fn shipped(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: "policy".to_owned() }
    }

    /// By the extender's flag or a volume of the extender or the annotator; `None` if neither is there, or none of them
    /// names one.
    pub(crate) fn of(workloads: &[Workload]) -> Option<Self> {
        let extender = find(workloads, EXTENDER);
        let by_flag = extender.and_then(|it| it.setting("PLIMSOLL_POLICY_CONFIG_MAP"));
        if let Some((namespace, name)) = by_flag.and_then(|map| map.split_once('/')) {
            return Some(Self { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        [EXTENDER, "annotator"].iter().find_map(|program| {
            let workload = find(workloads, program)?;
            let volumes = &workload.spec.template.spec.volumes;
            let volume = volumes.iter().find(|volume| volume["name"] == VOLUME)?;
            let name = volume["configMap"]["name"].as_str()?.to_owned();
            Some(Self { namespace: workload.metadata.namespace.clone(), name })
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(program: &str, container: &Value, map: &str) -> Workload {
        let labels = json!({"app.kubernetes.io/name": program});
        let volumes = json!([{"name": "tls"}, {"name": "policy", "configMap": {"name": map}}]);
        let spec = json!({"template": {"spec": {"containers": [container], "volumes": volumes}}});
        let metadata = json!({"namespace": "p", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn the_extenders_flag_goes_before_a_volume_and_nothing_is_guessed() {
        let map = |namespace: &str, name: &str| {
            Some(PolicyMap { namespace: namespace.to_owned(), name: name.to_owned() })
        };
        let by_volume = deployment("annotator", &json!({}), "mine");
        let by_flag =
            deployment(EXTENDER, &json!({"args": ["--x", "--policy-config-map=a/b"]}), "c");
        let env = json!([{"name": "PLIMSOLL_POLICY_CONFIG_MAP", "value": "d/e"}]);
        let by_variable = deployment(EXTENDER, &json!({"args": [], "env": env}), "c");
        assert_eq!(PolicyMap::of(&[by_volume.clone(), by_flag]), map("a", "b"));
        assert_eq!(PolicyMap::of(&[by_volume.clone(), by_variable]), map("d", "e"));
        assert_eq!(PolicyMap::of(&[by_volume]), map("p", "mine"));
        assert_eq!(PolicyMap::of(&[Workload::default()]), None);
    }
}
