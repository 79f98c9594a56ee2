//! Which ConfigMap has the policy: by the Deployments of extender and annotator.

use serde_json::Value;

/// The flag of the extender with the namespace and the name, and the same as a variable.
const FLAG: &str = "--policy-config-map=";
const VARIABLE: &str = "PLIMSOLL_POLICY_CONFIG_MAP";
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

    /// Of these Deployments, which are in this namespace; `None` if none of them names one.
    pub(super) fn of(deployments: &[Value], namespace: &str) -> Option<Self> {
        let specs = deployments.iter().map(|it| &it["spec"]["template"]["spec"]);
        let by_flag = specs.clone().find_map(flag_of).and_then(|text| {
            let (namespace, name) = text.split_once('/')?;
            Some(Self { namespace: namespace.to_owned(), name: name.to_owned() })
        });
        by_flag.or_else(|| {
            let name = specs.clone().find_map(volume_of)?.to_owned();
            Some(Self { namespace: namespace.to_owned(), name })
        })
    }
}

fn flag_of(spec: &Value) -> Option<&str> {
    let containers = spec["containers"].as_array()?;
    containers.iter().find_map(|container| {
        let args = container["args"].as_array().into_iter().flatten();
        let by_flag = args.filter_map(Value::as_str).find_map(|arg| arg.strip_prefix(FLAG));
        let mut env = container["env"].as_array().into_iter().flatten();
        by_flag.or_else(|| env.find(|it| it["name"] == VARIABLE)?["value"].as_str())
    })
}

fn volume_of(spec: &Value) -> Option<&str> {
    let mut volumes = spec["volumes"].as_array()?.iter();
    volumes.find(|it| it["name"] == VOLUME)?["configMap"]["name"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(container: &Value, map: &str) -> Value {
        let volumes = json!([{"name": "tls"}, {"name": "policy", "configMap": {"name": map}}]);
        json!({"spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}}})
    }

    #[test]
    fn the_extenders_flag_goes_before_a_volume_and_nothing_is_guessed() {
        let map = |namespace: &str, name: &str| {
            Some(PolicyMap { namespace: namespace.to_owned(), name: name.to_owned() })
        };
        let by_volume = deployment(&json!({}), "mine");
        let by_flag = deployment(&json!({"args": ["--x", "--policy-config-map=a/b"]}), "c");
        let env = json!([{"name": "PLIMSOLL_POLICY_CONFIG_MAP", "value": "d/e"}]);
        let by_variable = deployment(&json!({"args": [], "env": env}), "c");
        assert_eq!(PolicyMap::of(&[by_volume.clone(), by_flag], "p"), map("a", "b"));
        assert_eq!(PolicyMap::of(&[by_volume.clone(), by_variable], "p"), map("d", "e"));
        assert_eq!(PolicyMap::of(&[by_volume], "p"), map("p", "mine"));
        assert_eq!(PolicyMap::of(&[json!({})], "p"), None);
    }
}
