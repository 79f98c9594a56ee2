//! What doctor looks at, as plain values. `collect` reads them, the checks judge them.

use std::collections::BTreeMap;

use api::state::State;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster_access::Failure;
use crate::cluster_access::objects::{Container, Event, Lease, Meta, Node, Pod};
use crate::doctor::page::Page;

/// A fact, or why it could not be read.
pub(crate) type Read<T> = Result<T, Failure>;

/// Everything that is looked at.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The API server's time.
    pub(crate) now: Read<Timestamp>,
    /// This machine's time when it was asked.
    pub(crate) own_time: Timestamp,
    /// Plimsoll's namespace.
    pub(crate) namespace: String,
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
    pub(crate) scheduler_logs: Read<BTreeMap<String, String>>,
    /// kubeadm's ConfigMap; `None` if there is none.
    pub(crate) kubeadm_config: Read<Option<ConfigMap>>,
    /// The second kube-scheduler's ConfigMap; `None` if there is none.
    pub(crate) second_config: Read<Option<ConfigMap>>,
    /// The ConfigMap with the policy; `None` if there is none.
    pub(crate) policy: Read<Option<ConfigMap>>,
    /// The Lease of the extender.
    pub(crate) extender_lease: Read<Lease>,
    /// The metrics of each extender.
    pub(crate) extenders: BTreeMap<String, Read<Page>>,
    /// The metrics of each annotator.
    pub(crate) annotators: BTreeMap<String, Read<Page>>,
    /// The extender's state.
    pub(crate) state: Read<State>,
    /// Certificates by their Secrets' names: when they end; `None` if there is no such Secret.
    pub(crate) certificates: BTreeMap<String, Read<Option<Timestamp>>>,
    /// Admission policies and their bindings.
    pub(crate) bindings: Read<Vec<Binding>>,
    pub(crate) policies: Read<Vec<String>>,
    /// Rights of Plimsoll's accounts.
    pub(crate) rights: Read<Vec<Right>>,
    /// Events of Plimsoll's programs, and those of pods that were not scheduled.
    pub(crate) events: Read<Vec<Event>>,
    /// The Leases by which kubelets say that they live, with who wrote them.
    pub(crate) node_leases: Read<Vec<Lease>>,
    /// The end of the log of each device plugin that is not ready.
    pub(crate) plugin_logs: BTreeMap<String, Read<String>>,
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
    pub(crate) name: &'static str,
    pub(crate) allowed: bool,
}

impl Facts {
    /// The pods of a program.
    pub(crate) fn pods_of(&self, program: &str) -> Vec<&Pod> {
        let pods = self.pods.as_deref().unwrap_or_default().iter();
        pods.filter(|pod| name_of(&pod.metadata) == program).collect()
    }

    /// The Deployment or DaemonSet of a program.
    pub(crate) fn workload(&self, program: &str) -> Option<&Workload> {
        let workloads = self.workloads.as_deref().unwrap_or_default();
        workloads.iter().find(|workload| name_of(&workload.metadata) == program)
    }

    /// The time that counts: the API server's, or this machine's without it.
    pub(crate) fn time(&self) -> Timestamp {
        *self.now.as_ref().unwrap_or(&self.own_time)
    }

    /// The names of the metrics by which nodes are judged.
    pub(crate) fn metric_names(&self) -> Vec<&str> {
        let state = self.state.as_ref();
        let of_policy =
            state.map(|state| state.metrics.iter().map(|it| it.name.as_str()).collect());
        of_policy.unwrap_or_default()
    }
}

/// The label that names the program of an object.
pub(crate) fn name_of(metadata: &Meta) -> &str {
    metadata.labels.get("app.kubernetes.io/name").map_or("", String::as_str)
}

impl Workload {
    /// The value of a setting of its first container: a variable, or the flag of the same name.
    pub(crate) fn setting(&self, variable: &str) -> Option<&str> {
        let flag = variable.strip_prefix("PLIMSOLL_").unwrap_or(variable).to_lowercase();
        let flag = format!("--{}=", flag.replace('_', "-"));
        let container = self.spec.template.spec.containers.first()?;
        let by_flag = container.args.iter().find_map(|arg| arg.strip_prefix(flag.as_str()));
        let by_env = container.env.iter().find(|it| it.name == variable);
        by_flag.or(by_env.map(|it| it.value.as_str()))
    }
}
