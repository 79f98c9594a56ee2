//! The fields of a `SchedulingPolicy` as in the YAML text. Their comments are the descriptions in the JSON schema.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::super::fields::{Entries, Hot, Text};
use super::scalar::{EnumValue, Scalar};
use crate::gpu::Strategy;
use crate::policy::{BeyondUnitsName, Direction, Model, Unknown, UnmanagedMemory};

/// A field that may be absent, with its position in the YAML text for errors.
type OptionalField<T> = Option<Spanned<T>>;

/// Which metrics of nodes are fetched, which have limits, and how they count when pods are placed. Read by Plimsoll's
/// annotator and scheduler-extender.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SchedulingPolicy {
    /// The version of this format.
    #[schemars(schema_with = "api_version")]
    pub(super) api_version: Spanned<String>,
    /// The kind of this object.
    #[schemars(schema_with = "kind")]
    pub(super) kind: Spanned<String>,
    /// As in every Kubernetes object; not used.
    #[serde(default)]
    #[schemars(with = "Option<BTreeMap<String, serde_json::Value>>")]
    #[allow(dead_code, reason = "accepted as in every Kubernetes object")]
    metadata: Option<serde_json::Value>,
    /// The policy.
    #[serde(default)]
    pub(super) spec: Option<Spec>,
}

/// The policy.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    /// The metrics, at most 100, each once. A metric without limit and weight is only fetched and written on Nodes.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Metric>>", length(max = 100))]
    pub(super) metrics: Entries<Metric>,
    /// How the metrics with weights become a node's score.
    #[serde(default)]
    pub(super) scoring: Option<ScoringFields>,
    /// What happens when all nodes are over limits, and which pods are exempt.
    #[serde(default)]
    pub(super) limits: Option<LimitsFields>,
    /// How the use of pods counts that no reading shows yet: recently bound pods, pods in flight to a node, and the pod
    /// to be placed.
    #[serde(default)]
    pub(super) estimates: Option<Estimates>,
    /// How what pods declare of network and disk counts, for the pods that declare it. By default it does not.
    #[serde(default)]
    pub(super) demand: Option<DemandFields>,
    /// crane's measure of recent bindings, at most 20 rules. None by default, since estimates already count the use of
    /// recent pods.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Hot>>", length(max = 20))]
    pub(super) hot_value: Entries<Hot>,
    /// Nodes with limits and weights of their own, at most 100 pools. A node belongs to the first pool that it matches.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Pool>>", length(max = 100))]
    pub(super) node_pools: Entries<Pool>,
    /// Namespaces whose pods go to certain nodes only; at most 1,000 names in all.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Namespaces>>", length(max = 1000))]
    pub(super) namespaces: Entries<Namespaces>,
    /// How pods that request GPU memory are placed.
    #[serde(default)]
    pub(super) gpu: Option<GpuFields>,
}

/// A metric that is fetched from the exporters.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["name", "period"]))]
pub(super) struct Metric {
    /// A signal and an aggregate, such as `cpu_usage_avg_5m`. Its readings are fractions: 0 is idle, 1 is full.
    #[serde(default)]
    #[schemars(
        with = "String",
        required,
        regex(pattern = "^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
    )]
    pub(super) name: Text,
    /// How often it is fetched and written on Nodes, such as `1m`. `never`: another program writes it.
    #[serde(default)]
    #[schemars(with = "String", extend("examples" = ["1m", "5m", "never"]))]
    pub(super) period: Text,
    /// How long a reading counts after it was taken; `period` plus 5 minutes by default.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("examples" = ["6m"]))]
    pub(super) max_age: Text,
    /// A node with a reading above this fraction takes no new pods: above 0, such as 0.8. No limit by default.
    #[serde(default)]
    #[schemars(schema_with = "limit")]
    pub(super) limit: OptionalField<Scalar>,
    /// How much the metric counts in scores; only the ratios between weights matter. 0, the default: it does not count.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) weight: OptionalField<Scalar>,
    /// What happens if the reading is too old; `penalise` by default.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_stale: OptionalField<EnumValue<Unknown>>,
    /// What happens without a reading, because the node is not measured, or because the window is too young; `penalise`
    /// by default, and `ignore` for metrics that some nodes cannot have, as of GPUs.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_missing: OptionalField<EnumValue<Unknown>>,
}

/// How the metrics with weights become a node's score.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ScoringFields {
    /// The formula; `aboveTypical` by default.
    #[serde(default)]
    #[schemars(with = "Option<Model>")]
    pub(super) model: OptionalField<EnumValue<Model>>,
    /// `spread` by default. `pack` only with `craneLinear`.
    #[serde(default)]
    #[schemars(with = "Option<Direction>")]
    pub(super) direction: OptionalField<EnumValue<Direction>>,
    /// The highest score that kube-scheduler receives, a whole number from 1 to 100; 30 by default. At weight 1 of the
    /// extender, kube-scheduler adds 10 points for each; its plugins for the spread of replicas add up to 200 each.
    #[serde(default)]
    #[schemars(schema_with = "scale")]
    pub(super) scale: OptionalField<Scalar>,
}

/// What happens when all nodes are over limits, and which pods are exempt.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LimitsFields {
    /// `soft` by default.
    #[serde(default)]
    #[schemars(with = "Option<Mode>")]
    pub(super) mode: OptionalField<EnumValue<Mode>>,
    /// `hard` only: after this time a waiting pod may go to the least loaded nodes; `never`: it keeps waiting. `5m` by
    /// default.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("examples" = ["5m", "never"]))]
    pub(super) max_wait: Text,
    /// Priority classes whose pods are exempt from limits, at most 100; by default `system-node-critical` and
    /// `system-cluster-critical`. Pods of DaemonSets are always exempt.
    #[serde(default)]
    #[schemars(with = "Option<Vec<String>>", length(max = 100))]
    pub(super) exempt_priority_classes: OptionalField<Vec<Spanned<String>>>,
}

/// What happens if every node of a request is over a limit.
#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mode {
    /// Nodes near the least loaded one pass.
    Soft,
    /// The pod waits.
    Hard,
}

/// How the use of pods counts that no reading shows yet.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Estimates {
    /// `false`: estimates do not count, and `learned` has no effect.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub(super) enabled: OptionalField<bool>,
    /// Whether a pod's use is estimated from what the running pods of its workload use; `true` by default.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub(super) learned: OptionalField<bool>,
}

/// How what pods declare of network and disk counts, for the pods that declare it: against the node's speed, by its
/// annotation or the exporter's `network_speed_bytes_active`. A node of unknown speed is not judged.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DemandFields {
    /// What pods receive, by the annotation `kubernetes.io/ingress-bandwidth`.
    #[serde(default)]
    #[schemars(with = "Option<DemandRuleFields>")]
    pub(super) ingress: OptionalField<DemandRuleFields>,
    /// What pods send, by the annotation `kubernetes.io/egress-bandwidth`.
    #[serde(default)]
    #[schemars(with = "Option<DemandRuleFields>")]
    pub(super) egress: OptionalField<DemandRuleFields>,
    /// What pods read from disks, by the annotation `plimsoll.dev/disk-read`.
    #[serde(default)]
    #[schemars(with = "Option<DemandRuleFields>")]
    pub(super) disk_read: OptionalField<DemandRuleFields>,
    /// What pods write to disks, by the annotation `plimsoll.dev/disk-write`.
    #[serde(default)]
    #[schemars(with = "Option<DemandRuleFields>")]
    pub(super) disk_write: OptionalField<DemandRuleFields>,
}

/// How one demand counts. It needs a limit or a weight.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DemandRuleFields {
    /// A node whose pods would declare or use more than this fraction of its speed takes no pod that declares the
    /// demand; may be above 1, since a declared bandwidth is a ceiling. No limit by default.
    #[serde(default)]
    #[schemars(schema_with = "limit")]
    pub(super) limit: OptionalField<Scalar>,
    /// How much the demand counts in the scores for pods that declare it, as the weight of a metric. 0, the default: it
    /// does not count.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) weight: OptionalField<Scalar>,
    /// A metric of `spec.metrics` that measures it, such as `network_transmit_bytes_avg_5m`: the larger of what is
    /// measured and what is declared counts. By default only what is declared.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub(super) measured: Text,
}

/// Nodes with limits and weights of their own.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["name", "selector"]))]
pub(super) struct Pool {
    /// Its name, for messages.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) name: Text,
    /// Selects its nodes, in the form of kubectl's `--selector`: `pool=batch`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) selector: Text,
    /// What differs for metrics of `spec.metrics`; what is not set is as there.
    #[serde(default)]
    #[schemars(with = "Option<Vec<PoolMetric>>", length(max = 100))]
    pub(super) metrics: Entries<PoolMetric>,
}

/// A metric of `spec.metrics`, as it counts on the nodes of a pool.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["name"]))]
pub(super) struct PoolMetric {
    /// Its name in `spec.metrics`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) name: Text,
    /// The limit in this pool; `none`: no limit.
    #[serde(default)]
    #[schemars(schema_with = "limit")]
    pub(super) limit: OptionalField<Scalar>,
    /// The weight in this pool; 0: it does not count.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) weight: OptionalField<Scalar>,
    /// What happens if the reading is too old.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_stale: OptionalField<EnumValue<Unknown>>,
    /// What happens without a reading.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_missing: OptionalField<EnumValue<Unknown>>,
}

/// Pods of these namespaces go to these nodes only; pods of DaemonSets are exempt.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["names", "nodeSelector"]))]
pub(super) struct Namespaces {
    /// The namespaces.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub(super) names: OptionalField<Vec<Spanned<String>>>,
    /// Selects their nodes, in the form of kubectl's `--selector`: `team=a`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) node_selector: Text,
}

/// How pods that request GPU memory are placed.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GpuFields {
    /// How nodes and GPUs are chosen for pods without the annotation `gpu-placement`; `least-fragmentation` by
    /// default.
    #[serde(default)]
    #[schemars(with = "Option<Strategy>")]
    pub(super) placement: OptionalField<EnumValue<Strategy>>,
    /// Whether memory counts that is in use on a GPU beyond what pods hold there, as by processes outside of
    /// Kubernetes; `ignore` by default.
    #[serde(default)]
    #[schemars(with = "Option<UnmanagedMemory>")]
    pub(super) unmanaged_memory: OptionalField<EnumValue<UnmanagedMemory>>,
    /// Namespaces whose pods may take more of GPUs than the units that they request, which are all that ResourceQuota
    /// counts; at most 1,000 names in all. None by default: then exclusive GPUs cost all their units, a pod's part of
    /// a GPU's compute is at most its part of the memory, and no memory limit is above the request.
    #[serde(default)]
    #[schemars(with = "Option<Vec<BeyondUnitsFields>>", length(max = 1000))]
    pub(super) beyond_units: Entries<BeyondUnitsFields>,
}

/// What pods of some namespaces may take of GPUs beyond their units.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["namespaces", "allow"]))]
pub(super) struct BeyondUnitsFields {
    /// The namespaces; `*` for all.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub(super) namespaces: OptionalField<Vec<Spanned<String>>>,
    /// What they may take.
    #[serde(default)]
    #[schemars(with = "Vec<BeyondUnitsName>", length(min = 1))]
    pub(super) allow: OptionalField<Vec<Spanned<EnumValue<BeyondUnitsName>>>>,
}

fn api_version(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "const": super::API_VERSION })
}

fn kind(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "const": super::KIND })
}

fn limit(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "number", "exclusiveMinimum": 0 }, { "const": "none" }, { "type": "null" }] })
}

fn scale(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "null"], "minimum": 1, "maximum": 100 })
}
