//! The parts of a KubeSchedulerConfiguration that tell which extenders are asked and whose pods are scheduled.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;

use super::pod::{DEFAULT_SCHEDULER, scheduler_of};

/// kube-scheduler's default of `httpTimeout`.
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerConfig {
    /// The extenders in the order in which they are asked.
    #[serde(default)]
    pub extenders: Vec<Extender>,
    /// The profiles; none means one for `default-scheduler`.
    #[serde(default)]
    pub profiles: Vec<Profile>,
}

/// A profile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// The `spec.schedulerName` of its pods.
    pub scheduler_name: String,
}

/// An extender.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Extender {
    /// The URL that its verbs are appended to.
    pub url_prefix: String,
    /// The verb of Filter, or empty.
    #[serde(default)]
    pub filter_verb: String,
    /// The verb of Prioritize, or empty.
    #[serde(default)]
    pub prioritize_verb: String,
    /// The verb of Preempt, or empty.
    #[serde(default)]
    pub preempt_verb: String,
    /// The verb of Bind, or empty.
    #[serde(default)]
    pub bind_verb: String,
    /// Factor of its scores.
    #[serde(default)]
    pub weight: i64,
    /// Whether its errors are ignored.
    #[serde(default)]
    pub ignorable: bool,
    /// Whether it is sent names of nodes instead of whole nodes. The stand-in requires it.
    #[serde(default)]
    pub node_cache_capable: bool,
    /// Time limit of a call.
    #[serde(default = "http_timeout", deserialize_with = "duration")]
    pub http_timeout: Duration,
    /// It is asked about pods that ask for one of these resources; none means every pod.
    #[serde(default)]
    pub managed_resources: Vec<ManagedResource>,
}

/// A resource that an extender manages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedResource {
    /// The resource's name.
    pub name: String,
    /// Whether kube-scheduler itself does not count it.
    #[serde(default)]
    pub ignored_by_scheduler: bool,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not YAML of the schema.
    #[error("not a KubeSchedulerConfiguration: {0}")]
    Yaml(String),
    /// The extender of this URL expects whole nodes.
    #[error("extender {0}: the stand-in requires nodeCacheCapable: true")]
    WholeNodes(String),
}

impl SchedulerConfig {
    /// Reads the YAML. Ignorable extenders are asked last, as by kube-scheduler.
    ///
    /// # Errors
    /// When it is not of the schema, or an extender expects whole nodes.
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

    /// Whether kube-scheduler does not count a resource itself.
    pub(super) fn is_ignored(&self, resource: &str) -> bool {
        let mut managed = self.extenders.iter().flat_map(|extender| &extender.managed_resources);
        managed.any(|managed| managed.ignored_by_scheduler && managed.name == resource)
    }

    /// The same with every extender at `host` (`IP:PORT`), under the paths of the file.
    #[must_use]
    pub fn at(mut self, host: &str) -> Self {
        for extender in &mut self.extenders {
            let path = extender.url_prefix.splitn(4, '/').nth(3).unwrap_or_default();
            extender.url_prefix = format!("http://{host}/{path}");
        }
        self
    }
}

fn http_timeout() -> Duration {
    HTTP_TIMEOUT
}

fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed: SignedDuration = text.parse().map_err(serde::de::Error::custom)?;
    Duration::try_from(parsed).map_err(serde::de::Error::custom)
}
