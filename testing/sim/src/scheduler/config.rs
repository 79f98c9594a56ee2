//! The parts of a KubeSchedulerConfiguration that bear on extenders and on whose pods are scheduled.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;

use super::cycle::text;

/// The scheduler of pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// kube-scheduler's own default.
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerConfig {
    /// The extenders, in the file's order.
    #[serde(default)]
    pub extenders: Vec<Extender>,
    /// Under which names pods are scheduled; none means `default-scheduler`.
    #[serde(default)]
    pub profiles: Vec<Profile>,
}

/// A name under which pods are scheduled.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// What pods say in `spec.schedulerName`.
    pub scheduler_name: String,
}

/// One extender.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Extender {
    /// Where it answers.
    pub url_prefix: String,
    /// The path of Filter, where it has one.
    #[serde(default)]
    pub filter_verb: String,
    /// The path of Prioritize, where it has one.
    #[serde(default)]
    pub prioritize_verb: String,
    /// The path of Bind, where it has one.
    #[serde(default)]
    pub bind_verb: String,
    /// What its scores count.
    #[serde(default)]
    pub weight: i64,
    /// Whether pods schedule without it when it does not answer.
    #[serde(default)]
    pub ignorable: bool,
    /// Whether it is sent names instead of nodes. Nothing else is spoken here.
    #[serde(default)]
    pub node_cache_capable: bool,
    /// How long a call may take.
    #[serde(default = "http_timeout", deserialize_with = "duration")]
    pub http_timeout: Duration,
    /// The resources whose pods it wants to see; none means every pod.
    #[serde(default)]
    pub managed_resources: Vec<ManagedResource>,
}

/// A resource that an extender manages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedResource {
    /// Its name.
    pub name: String,
    /// Whether the scheduler leaves it to the extender alone.
    #[serde(default)]
    pub ignored_by_scheduler: bool,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML of the schema.
    #[error("not a KubeSchedulerConfiguration: {0}")]
    Yaml(String),
    /// An extender that expects whole nodes.
    #[error("extender {0}: only nodeCacheCapable: true is spoken here")]
    WholeNodes(String),
}

impl SchedulerConfig {
    /// Reads the YAML. Ignorable extenders go last, as in kube-scheduler.
    ///
    /// # Errors
    /// When it is not of the schema, or asks for what is not spoken here.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let mut config: Self =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        if let Some(extender) = config.extenders.iter().find(|e| !e.node_cache_capable) {
            return Err(ConfigError::WholeNodes(extender.url_prefix.clone()));
        }
        config.extenders.sort_by_key(|extender| extender.ignorable);
        Ok(config)
    }

    /// Whether the pod is this scheduler's to place.
    pub(super) fn serves(&self, pod: &Value) -> bool {
        let wanted = scheduler_of(pod);
        match self.profiles.as_slice() {
            [] => wanted == DEFAULT_SCHEDULER,
            profiles => profiles.iter().any(|profile| profile.scheduler_name == wanted),
        }
    }

    /// Whether a resource is left to its extender alone.
    pub(super) fn ignores(&self, resource: &str) -> bool {
        let mut managed = self.extenders.iter().flat_map(|extender| &extender.managed_resources);
        managed.any(|managed| managed.ignored_by_scheduler && managed.name == resource)
    }

    /// The same, with every extender at `host` (`ip:port`) instead of where the file says.
    #[must_use]
    pub fn at(mut self, host: &str) -> Self {
        for extender in &mut self.extenders {
            let path = extender.url_prefix.splitn(4, '/').nth(3).unwrap_or_default();
            extender.url_prefix = format!("http://{host}/{path}");
        }
        self
    }
}

/// The scheduler that a pod wants.
pub(super) fn scheduler_of(pod: &Value) -> &str {
    let named = text(&pod["spec"]["schedulerName"]);
    if named.is_empty() { DEFAULT_SCHEDULER } else { named }
}

fn http_timeout() -> Duration {
    HTTP_TIMEOUT
}

fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed: SignedDuration = text.parse().map_err(serde::de::Error::custom)?;
    Duration::try_from(parsed).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../../../deploy/scheduler/kube-scheduler-config.yaml");

    #[test]
    fn the_shipped_configuration_is_understood_and_what_may_fail_goes_last() {
        let config = SchedulerConfig::from_yaml(SHIPPED).unwrap().at("127.0.0.1:1");
        let [cards, load] = config.extenders.as_slice() else { panic!("{config:?}") };
        assert_eq!(cards.url_prefix, "http://127.0.0.1:1/gpushare-scheduler");
        assert_eq!((cards.bind_verb.as_str(), load.bind_verb.as_str()), ("bind", ""));
        assert_eq!(cards.managed_resources[0].name, "aliyun.com/gpu-mem");
        assert!(load.ignorable && load.managed_resources.is_empty());
        assert_eq!((load.weight, load.http_timeout), (3, Duration::from_millis(500)));
    }

    #[test]
    fn an_extender_that_expects_whole_nodes_is_refused() {
        let text = "extenders: [{urlPrefix: \"http://x/y\", filterVerb: filter}]";
        assert!(matches!(SchedulerConfig::from_yaml(text), Err(ConfigError::WholeNodes(_))));
    }
}
