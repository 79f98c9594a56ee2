//! What doctor looks at, as plain values. `collect` reads them, the checks judge them.

use std::collections::BTreeMap;

use api::health::Health;
use jiff::Timestamp;
use placement::names::Names;
use serde::Deserialize;
use serde_json::Value;

pub(crate) use crate::cluster_access::objects::ConfigMap;
use crate::cluster_access::objects::{Event, Lease, Meta, Node, Pod};
use crate::cluster_access::workload::{Workload, find, name_of};
use crate::cluster_access::{EXTENDER, Failure};

/// A fact, or why it could not be read.
pub(crate) type Read<T> = Result<T, Failure>;

/// The device plugin's DaemonSet.
pub(crate) const PLUGIN: &str = "gpushare-device-plugin";
/// The second scheduler's Deployment.
pub(crate) const SECOND_SCHEDULER: &str = "kube-scheduler";
/// The label of gpushare's nodes.
pub(crate) const GPUSHARE: &str = "gpushare";
/// The prefix of annotations, unless a setting names another.
const ANNOTATION_PREFIX: &str = "plimsoll.dev";
/// The key of the policy's ConfigMap, unless the programs' flags name another file.
const POLICY_KEY: &str = "policy.yaml";

/// What is read where a check names it. Plimsoll's workloads and pods, by which other facts are found, are always read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    Time,
    ServerVersion,
    Nodes,
    Schedulers,
    KubeadmConfig,
    SecondConfig,
    AutoscalerStatus,
    Policy,
    ExtenderHealth,
    AnnotatorHealth,
    PluginHealth,
    Certificates,
    Admission,
    Rights,
    Events,
    NodeLeases,
    Toolkits,
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
    /// Deployments and DaemonSets of Plimsoll, in its namespaces.
    pub(crate) workloads: Read<Vec<Workload>>,
    /// Pods of Plimsoll, in its namespaces.
    pub(crate) pods: Read<Vec<Pod>>,
    /// Nodes, with who wrote their fields.
    pub(crate) nodes: Read<Vec<Node>>,
    /// kube-scheduler's pods in kube-system: static pods of kubeadm.
    pub(crate) schedulers: Read<Vec<Pod>>,
    /// kubeadm's ConfigMap; `None` if there is none.
    pub(crate) kubeadm_config: Read<Option<ConfigMap>>,
    /// The second kube-scheduler's ConfigMap; `None` if there is none.
    pub(crate) second_config: Read<Option<ConfigMap>>,
    /// The ConfigMap in kube-system in which Cluster Autoscaler says how it is; `None` if there is none.
    pub(crate) autoscaler_status: Read<Option<ConfigMap>>,
    /// The ConfigMap with the policy, which [`PolicyMap`](crate::cluster_access::PolicyMap) names; `None` if there is
    /// none.
    pub(crate) policy: Read<Option<ConfigMap>>,
    /// What each program says of itself.
    pub(crate) extenders: Read<Healths>,
    pub(crate) annotators: Read<Healths>,
    pub(crate) plugins: Read<Healths>,
    /// Secrets with certificates; `None` if Secrets are not asked for.
    pub(crate) certificates: Option<Vec<CertificateSecret>>,
    /// Admission policies and their bindings.
    pub(crate) policies: Read<Vec<AdmissionObject>>,
    pub(crate) bindings: Read<Vec<AdmissionObject>>,
    /// Rights of the accounts of Plimsoll's programs that have a pod.
    pub(crate) rights: Read<Vec<Right>>,
    /// Events of Plimsoll's programs, and those of pods that were scheduled or not.
    pub(crate) events: Read<Vec<Event>>,
    /// The Leases by which kubelets say that they live, with who wrote them.
    pub(crate) node_leases: Read<Vec<Lease>>,
    /// DaemonSets that set up NVIDIA's container runtime.
    pub(crate) toolkits: Read<Vec<Workload>>,
}

/// The health of a program's pods that run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Healths {
    /// By pod.
    pub(crate) pods: BTreeMap<String, Read<Health>>,
    /// How many more run that were not asked.
    pub(crate) not_asked: usize,
}

/// An admission policy, or a binding of one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AdmissionObject {
    pub(crate) metadata: Meta,
    pub(crate) spec: Value,
}

/// A Secret with a certificate.
#[derive(Debug, Clone)]
pub(crate) struct CertificateSecret {
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

/// Whether Plimsoll's device plugin is to serve the node, or does.
pub(crate) fn is_gpu_node(node: &Node, names: &Names) -> bool {
    let labels = &node.metadata.labels;
    labels.get(GPUSHARE).is_some_and(|value| value == "true") || has_gpus(node, names)
}

/// Whether the node reports GPUs.
pub(crate) fn has_gpus(node: &Node, names: &Names) -> bool {
    node.metadata.annotations.contains_key(&names.gpus())
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
            self.plugin_setting("PLIMSOLL_ANNOTATION_PREFIX", ANNOTATION_PREFIX),
        )
    }

    /// A setting of the device plugin, or its default.
    pub(crate) fn plugin_setting<'a>(&'a self, variable: &str, default: &'a str) -> &'a str {
        let plugin = self.workload(PLUGIN).ok().flatten();
        plugin.and_then(|plugin| plugin.setting(variable)).unwrap_or(default)
    }
}
