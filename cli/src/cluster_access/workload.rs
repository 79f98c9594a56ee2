//! Deployments and DaemonSets, as far as they tell what a program is set to and what it mounts.

use serde::Deserialize;
use serde_json::Value;

use super::objects::{Container, Meta};

/// A Deployment or a DaemonSet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) metadata: Meta,
    pub(crate) spec: WorkloadSpec,
    pub(crate) status: WorkloadStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WorkloadSpec {
    pub(crate) replicas: Option<u32>,
    pub(crate) template: Template,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Template {
    pub(crate) spec: TemplateSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateSpec {
    pub(crate) containers: Vec<Container>,
    /// Whether its processes see those of the node.
    #[serde(rename = "hostPID")]
    pub(crate) host_pid: bool,
    pub(crate) volumes: Vec<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadStatus {
    pub(crate) ready_replicas: u32,
    pub(crate) number_ready: u32,
    pub(crate) desired_number_scheduled: u32,
}

/// The Deployment or DaemonSet of a program.
pub(crate) fn find<'a>(workloads: &'a [Workload], program: &str) -> Option<&'a Workload> {
    workloads.iter().find(|workload| name_of(&workload.metadata) == program)
}

/// The label that names the program of an object.
pub(crate) fn name_of(metadata: &Meta) -> &str {
    metadata.labels.get("app.kubernetes.io/name").map_or("", String::as_str)
}

impl Workload {
    /// The value of a setting of its program: the flag, or else the variable of the same name.
    pub(crate) fn setting(&self, variable: &str) -> Option<&str> {
        let name = variable.strip_prefix("PLIMSOLL_").unwrap_or(variable).to_lowercase();
        let flag = format!("--{}", name.replace('_', "-"));
        let containers = &self.spec.template.spec.containers;
        let named = containers.iter().find(|it| it.name == name_of(&self.metadata));
        let container = named.or(containers.first())?;
        let by_env = container.env.iter().find(|it| it.name == variable);
        flag_of(&container.args, &flag).or(by_env.map(|it| it.value.as_str()))
    }

    /// The Secrets of its volumes that bring a certificate: the names, and whether pods start without it.
    pub(crate) fn certificates(&self) -> Vec<(&str, bool)> {
        let mut found = Vec::new();
        for volume in &self.spec.template.spec.volumes {
            let mut secrets = Vec::new();
            for source in volume["projected"]["sources"].as_array().into_iter().flatten() {
                secrets.push(&source["secret"]);
            }
            secrets.push(&volume["secret"]);
            for secret in secrets {
                let name = secret["name"].as_str().or(secret["secretName"].as_str());
                // The keys that are mounted; all without a list.
                let keys = secret["items"].as_array().filter(|keys| !keys.is_empty());
                let is_mounted =
                    keys.is_none_or(|keys| keys.iter().any(|it| it["key"] == "tls.crt"));
                if let Some(name) = name.filter(|_| is_mounted) {
                    found.push((name, secret["optional"] == true));
                }
            }
        }
        found
    }
}

/// The value of a flag among these words: `--flag=value`, or `--flag value`.
pub(crate) fn flag_of<'a>(
    words: impl IntoIterator<Item = &'a String>,
    flag: &str,
) -> Option<&'a str> {
    let mut is_next = false;
    for word in words {
        match word.strip_prefix(flag) {
            _ if is_next => return Some(word),
            Some("") => is_next = true,
            Some(rest) if rest.starts_with('=') => return rest.get(1..),
            _ => {}
        }
    }
    None
}
