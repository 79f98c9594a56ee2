//! What doctor looks at, as plain values. `collect` reads them, the checks judge them.

use std::collections::BTreeMap;

use api::state::State;
use jiff::Timestamp;
use placement::names::Names;
use placement::policy::LoadPolicy;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster_access::objects::{Container, Event, Lease, Meta, Node, Pod};
use crate::cluster_access::{EXTENDER, Failure};
use crate::doctor::page::Page;

/// A fact, or why it could not be read.
pub(crate) type Read<T> = Result<T, Failure>;
/// The metrics of a program's pods that run, by pod.
pub(crate) type Pages = BTreeMap<String, Read<Page>>;

/// The device plugin's DaemonSet.
pub(crate) const PLUGIN: &str = "gpushare-device-plugin";
/// The second scheduler's Deployment.
pub(crate) const SECOND_SCHEDULER: &str = "kube-scheduler";
/// The prefix of annotations, unless a setting names another.
const ANNOTATION_PREFIX: &str = "plimsoll.dev";
/// The key of the policy's ConfigMap, unless the programs' flags name another file.
const POLICY_KEY: &str = "policy.yaml";

/// Facts that are read by calls of their own. A check names those that it looks at, and only these are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    Time,
    ServerVersion,
    Workloads,
    Pods,
    Nodes,
    Schedulers,
    SchedulerLogs,
    KubeadmConfig,
    SecondConfig,
    Policy,
    ExtenderLease,
    ExtenderMetrics,
    AnnotatorMetrics,
    State,
    Certificates,
    Admission,
    Rights,
    Events,
    NodeLeases,
    PluginLogs,
    Toolkits,
}

impl Fact {
    /// The facts by which it is found.
    pub(crate) fn sources(self) -> &'static [Fact] {
        match self {
            Self::ExtenderMetrics | Self::AnnotatorMetrics | Self::PluginLogs => &[Self::Pods],
            Self::Rights => &[Self::Pods, Self::Workloads],
            Self::SchedulerLogs => &[Self::Pods, Self::Schedulers],
            Self::Policy | Self::Certificates => &[Self::Workloads],
            _ => &[],
        }
    }
}

/// Everything that is looked at. A fact that no check asked for is an error, too.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Plimsoll's namespace.
    pub(crate) namespace: String,
    /// Days before a certificate's end from which it is warned of.
    pub(crate) certificate_days: u16,
    /// The API server's time.
    pub(crate) now: Read<Timestamp>,
    /// This machine's time before it was asked, and after.
    pub(crate) own_time: [Timestamp; 2],
    /// The API server's version, as `v1.36.3`.
    pub(crate) server_version: Read<String>,
    /// Deployments and DaemonSets of Plimsoll.
    pub(crate) workloads: Read<Vec<Workload>>,
    /// Pods of Plimsoll, in all namespaces.
    pub(crate) pods: Read<Vec<Pod>>,
    /// Nodes, with who wrote their fields.
    pub(crate) nodes: Read<Vec<Node>>,
    /// kube-scheduler's pods in kube-system: static pods of kubeadm.
    pub(crate) schedulers: Read<Vec<Pod>>,
    /// The end of the log of each scheduler's pod, of Plimsoll's own second one too.
    pub(crate) scheduler_logs: Read<BTreeMap<String, Read<String>>>,
    /// kubeadm's ConfigMap; `None` if there is none.
    pub(crate) kubeadm_config: Read<Option<ConfigMap>>,
    /// The second kube-scheduler's ConfigMap; `None` if there is none.
    pub(crate) second_config: Read<Option<ConfigMap>>,
    /// The ConfigMap with the policy, which [`policy_map`] names; `None` if there is none.
    pub(crate) policy: Read<Option<ConfigMap>>,
    /// The Lease of the extender; `None` if there is none.
    pub(crate) extender_lease: Read<Option<Lease>>,
    /// The metrics of each extender.
    pub(crate) extenders: Read<Pages>,
    /// The metrics of each annotator.
    pub(crate) annotators: Read<Pages>,
    /// The extender's state.
    pub(crate) state: Read<State>,
    /// Secrets with certificates; `None` if Secrets are not asked for.
    pub(crate) certificates: Option<Vec<Secret>>,
    /// Admission policies and their bindings.
    pub(crate) policies: Read<Vec<AdmissionPolicy>>,
    pub(crate) bindings: Read<Vec<Binding>>,
    /// Rights of the accounts of Plimsoll's programs that have a pod.
    pub(crate) rights: Read<Vec<Right>>,
    /// Events of Plimsoll's programs, and those of pods that were scheduled or not.
    pub(crate) events: Read<Vec<Event>>,
    /// The Leases by which kubelets say that they live, with who wrote them.
    pub(crate) node_leases: Read<Vec<Lease>>,
    /// The end of the log of each device plugin that is not ready.
    pub(crate) plugin_logs: Read<BTreeMap<String, Read<String>>>,
    /// DaemonSets that set up NVIDIA's container runtime.
    pub(crate) toolkits: Read<Vec<Workload>>,
}

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
    pub(crate) volumes: Vec<Volume>,
}

/// A volume, as far as it names ConfigMaps and Secrets.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) config_map: Option<Source>,
    pub(crate) secret: Option<Source>,
    pub(crate) projected: Option<Projected>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Projected {
    pub(crate) sources: Vec<ProjectedSource>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProjectedSource {
    pub(crate) secret: Option<Source>,
}

/// The ConfigMap or Secret of a volume.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// The name, of a volume that is a Secret alone.
    pub(crate) secret_name: String,
    /// The keys that are mounted; all if there are none.
    pub(crate) items: Vec<Item>,
    /// Whether pods start without it.
    pub(crate) optional: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Item {
    pub(crate) key: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkloadStatus {
    pub(crate) ready_replicas: u32,
    pub(crate) number_ready: u32,
    pub(crate) desired_number_scheduled: u32,
}

/// A ConfigMap.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigMap {
    pub(crate) metadata: Meta,
    pub(crate) data: BTreeMap<String, String>,
}

/// An admission policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AdmissionPolicy {
    pub(crate) metadata: Meta,
    pub(crate) spec: AdmissionSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AdmissionSpec {
    /// `Fail` where it is absent.
    pub(crate) failure_policy: Option<String>,
    pub(crate) match_constraints: Value,
    pub(crate) match_conditions: Vec<Condition>,
}

/// A match condition of an admission policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    pub(crate) name: String,
}

/// A binding of an admission policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Binding {
    pub(crate) metadata: Meta,
    pub(crate) spec: BindingSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BindingSpec {
    pub(crate) policy_name: String,
    pub(crate) validation_actions: Vec<String>,
    pub(crate) match_resources: Value,
}

/// A Secret with a certificate.
#[derive(Debug, Clone)]
pub(crate) struct Secret {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The program whose pods do not start without it; empty if there is none.
    pub(crate) of: String,
    /// When its certificate ends; `None` if there is no such Secret.
    pub(crate) end: Read<Option<Timestamp>>,
}

/// A right, and whether an account has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Right {
    /// The account's name, in the namespace of its program.
    pub(crate) account: &'static str,
    pub(crate) verb: &'static str,
    /// With its API group, as `leases.coordination.k8s.io`.
    pub(crate) resource: &'static str,
    /// Empty for the whole cluster.
    pub(crate) namespace: String,
    /// Empty for all.
    pub(crate) name: String,
    pub(crate) allowed: bool,
}

impl Facts {
    /// The pods of a program.
    pub(crate) fn pods_of(&self, program: &str) -> Result<Vec<&Pod>, &Failure> {
        let pods = self.pods.as_ref()?;
        Ok(pods.iter().filter(|pod| name_of(&pod.metadata) == program).collect())
    }

    /// The Deployment or DaemonSet of a program; `None` if it is not installed.
    pub(crate) fn workload(&self, program: &str) -> Result<Option<&Workload>, &Failure> {
        Ok(find(self.workloads.as_ref()?, program))
    }

    /// Whether a program is known to be installed.
    pub(crate) fn has(&self, program: &str) -> bool {
        self.workload(program).is_ok_and(|workload| workload.is_some())
    }

    /// The time that counts: the API server's, or this machine's without it.
    pub(crate) fn time(&self) -> Timestamp {
        *self.now.as_ref().unwrap_or(&self.own_time[1])
    }

    /// The names of the metrics by which nodes are judged: as the extender says, or else as the policy in its ConfigMap
    /// does.
    pub(crate) fn metric_names(&self) -> Result<Vec<String>, &Failure> {
        match &self.state {
            Ok(state) => Ok(state.metrics.iter().map(|metric| metric.name.clone()).collect()),
            Err(failure) => {
                let text = self.policy_text().ok().flatten().ok_or(failure)?;
                let policy = LoadPolicy::from_yaml(text).map_err(|_| failure)?;
                Ok(policy.metrics().into_iter().map(ToString::to_string).collect())
            }
        }
    }

    /// The policy in its ConfigMap; `None` if there is no such ConfigMap, or no such key in it.
    pub(crate) fn policy_text(&self) -> Result<Option<&str>, &Failure> {
        let file = self.workload(EXTENDER)?.and_then(|it| it.setting("PLIMSOLL_POLICY_FILE"));
        let key = file.and_then(|file| file.rsplit('/').next()).unwrap_or(POLICY_KEY);
        Ok(self.policy.as_ref()?.as_ref().and_then(|map| map.data.get(key)).map(String::as_str))
    }

    /// The names that Plimsoll's programs are set to; the shipped ones where that is not known.
    pub(crate) fn names(&self) -> Names {
        let shipped = Names::default();
        Names::new(
            self.plugin_setting("PLIMSOLL_GPU_RESOURCE", shipped.gpu_resource()),
            self.plugin_setting("PLIMSOLL_GPU_COUNT_RESOURCE", shipped.gpu_count_resource()),
            self.plugin_setting("PLIMSOLL_ANNOTATION_PREFIX", ANNOTATION_PREFIX),
        )
    }

    /// A setting of the device plugin, or its default.
    pub(crate) fn plugin_setting<'a>(&'a self, variable: &str, default: &'a str) -> &'a str {
        let plugin = self.workload(PLUGIN).ok().flatten();
        plugin.and_then(|plugin| plugin.setting(variable)).unwrap_or(default)
    }
}

/// The Deployment or DaemonSet of a program.
pub(crate) fn find<'a>(workloads: &'a [Workload], program: &str) -> Option<&'a Workload> {
    workloads.iter().find(|workload| name_of(&workload.metadata) == program)
}

/// Namespace and name of the ConfigMap that the policy is read from, by the extender's flag or the annotator's volume;
/// `None` if neither is there, or neither names one.
pub(crate) fn policy_map(workloads: &[Workload]) -> Option<(String, String)> {
    let by_flag = find(workloads, EXTENDER).and_then(|it| it.setting("PLIMSOLL_POLICY_CONFIG_MAP"));
    if let Some((namespace, name)) = by_flag.and_then(|map| map.split_once('/')) {
        return Some((namespace.to_owned(), name.to_owned()));
    }
    [EXTENDER, "annotator"].iter().find_map(|program| {
        let workload = find(workloads, program)?;
        let volumes = &workload.spec.template.spec.volumes;
        let volume = volumes.iter().find(|volume| volume.name == "policy")?;
        let map = volume.config_map.as_ref()?;
        Some((workload.metadata.namespace.clone(), map.name.clone()))
    })
}

/// The label that names the program of an object.
pub(crate) fn name_of(metadata: &Meta) -> &str {
    metadata.labels.get("app.kubernetes.io/name").map_or("", String::as_str)
}

impl Workload {
    /// The value of a setting of its program: the flag, or else the variable of the same name.
    pub(crate) fn setting(&self, variable: &str) -> Option<&str> {
        let flag = variable.strip_prefix("PLIMSOLL_").unwrap_or(variable).to_lowercase();
        let flag = format!("--{}", flag.replace('_', "-"));
        let containers = &self.spec.template.spec.containers;
        let named = containers.iter().find(|it| it.name == name_of(&self.metadata));
        let container = named.or(containers.first())?;
        let by_env = container.env.iter().find(|it| it.name == variable);
        flag_of(&container.args, &flag).or(by_env.map(|it| it.value.as_str()))
    }

    /// The Secrets of its volumes that bring a certificate: the names, and whether pods start without it.
    pub(crate) fn certificates(&self) -> Vec<(&str, bool)> {
        let mut secrets = Vec::new();
        for volume in &self.spec.template.spec.volumes {
            let projected = volume.projected.iter().flat_map(|it| &it.sources);
            for secret in projected.filter_map(|it| it.secret.as_ref()).chain(&volume.secret) {
                let name = &secret.name;
                let name = if name.is_empty() { &secret.secret_name } else { name };
                let mut items = secret.items.iter();
                if secret.items.is_empty() || items.any(|item| item.key == "tls.crt") {
                    secrets.push((name.as_str(), secret.optional));
                }
            }
        }
        secrets
    }
}

/// The value of a flag among these words: `--flag=value`, or `--flag value`.
pub(crate) fn flag_of<'a>(
    words: impl IntoIterator<Item = &'a String>,
    flag: &str,
) -> Option<&'a str> {
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.strip_prefix(flag) {
            Some("") => return words.next().map(String::as_str),
            Some(rest) if rest.starts_with('=') => return rest.get(1..),
            _ => {}
        }
    }
    None
}
