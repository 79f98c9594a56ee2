//! Profiles of kube-scheduler that pack nodes: full ones score higher, while a score by load spreads pods.

use serde::Deserialize;
use serde_json::Value;

/// A configuration of kube-scheduler, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    profiles: Vec<Profile>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Profile {
    scheduler_name: Option<String>,
    plugin_config: Vec<PluginConfig>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PluginConfig {
    name: String,
    args: Value,
}

/// The profiles of a configuration that pack nodes, with the strategy of NodeResourcesFit: `default-scheduler
/// (MostAllocated)`.
///
/// # Errors
///
/// Where the text is no such configuration.
pub(crate) fn packing_profiles(text: &str) -> Result<Vec<String>, serde_saphyr::Error> {
    let configuration: Configuration = serde_saphyr::from_str(text)?;
    let mut packing = Vec::new();
    for profile in configuration.profiles {
        for plugin in profile.plugin_config {
            let strategy = &plugin.args["scoringStrategy"];
            if plugin.name == "NodeResourcesFit" && packs(strategy) {
                let name = profile.scheduler_name.as_deref().unwrap_or("default-scheduler");
                let kind = strategy["type"].as_str().unwrap_or_default();
                packing.push(format!("{name} ({kind})"));
            }
        }
    }
    Ok(packing)
}

/// Whether a fuller node scores higher. The points of a shape are in the order of their utilization.
fn packs(strategy: &Value) -> bool {
    let shape = strategy["requestedToCapacityRatio"]["shape"].as_array();
    let score = |point: Option<&Value>| point.and_then(|point| point["score"].as_i64());
    match strategy["type"].as_str() {
        Some("MostAllocated") => true,
        Some("RequestedToCapacityRatio") => {
            shape.is_some_and(|shape| score(shape.last()) > score(shape.first()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(strategy: &str) -> Vec<String> {
        let text = format!(
            "profiles:\n- schedulerName: batch\n  pluginConfig:\n  - name: InterPodAffinity\n    args: {{hardPodAffinityWeight: 1}}\n  \
             - {{name: NodeResourcesFit, args: {{scoringStrategy: {strategy}}}}}\n- pluginConfig:\n  - name: NodeResourcesFit\n"
        );
        packing_profiles(&text).unwrap()
    }

    #[test]
    fn a_profile_packs_where_a_fuller_node_scores_higher() {
        assert_eq!(found("{type: MostAllocated}"), ["batch (MostAllocated)"]);
        assert_eq!(found("{type: LeastAllocated}"), [""; 0]);
        let shaped = |shape: &str| {
            found(&format!(
                "{{type: RequestedToCapacityRatio, requestedToCapacityRatio: {{shape: {shape}}}}}"
            ))
        };
        let packs = "[{utilization: 0, score: 0}, {utilization: 100, score: 10}]";
        assert_eq!(shaped(packs), ["batch (RequestedToCapacityRatio)"]);
        assert_eq!(shaped("[{utilization: 0, score: 10}, {utilization: 100, score: 0}]"), [""; 0]);
        // What kube-scheduler would refuse.
        for shape in ["[]", "7", "[7]", "[{utilization: 0}, {score: high}]", "null"] {
            assert_eq!(shaped(shape), [""; 0], "{shape}");
        }
    }

    #[test]
    fn the_profile_without_a_name_is_the_default_one() {
        let args = "args: {scoringStrategy: {type: MostAllocated}}";
        let text = format!("profiles: [{{pluginConfig: [{{name: NodeResourcesFit, {args}}}]}}]");
        assert_eq!(packing_profiles(&text).unwrap(), ["default-scheduler (MostAllocated)"]);
        for text in ["kind: KubeSchedulerConfiguration", "profiles: []", "profiles:\n"] {
            assert_eq!(packing_profiles(text).unwrap(), [""; 0], "{text}");
        }
        assert!(packing_profiles("profiles: 7").is_err());
    }
}
