//! The fields of the kind as they are written. Their comments are the descriptions in the JSON schema.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::super::fields::{Entries, Hot, Text};
use super::scalar::{EnumValue, Scalar};
use crate::estimate::Statistic;
use crate::gpu::Strategy;
use crate::policy::{Direction, Unknown, UnmanagedMemory};

/// A field that may be absent, with its position in the YAML text for errors.
type OptionalField<T> = Option<Spanned<T>>;

/// Which metrics of nodes are fetched, which have limits, and how they bear on where pods go. Read by Plimsoll's annotator
/// and scheduler-extender.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SchedulingPolicy {
    /// The version of this format.
    #[schemars(schema_with = "api_version")]
    pub(super) api_version: Spanned<String>,
    /// The kind of this object.
    #[schemars(schema_with = "kind")]
    pub(super) kind: Spanned<String>,
    /// As in every Kubernetes object; without meaning here.
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
    /// The metrics, at most 100, each once. One without limit and weight is fetched and written on Nodes only.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Metric>>", length(max = 100))]
    pub(super) metrics: Entries<Metric>,
    /// How the metrics with weights become a node's score.
    #[serde(default)]
    pub(super) scoring: Option<Scoring>,
    /// What limits do.
    #[serde(default)]
    pub(super) limits: Option<Limits>,
    /// How much the pods count that no reading shows yet: those just bound, those on their way to a node, and the one to be
    /// placed.
    #[serde(default)]
    pub(super) estimates: Option<Estimates>,
    /// crane's measure of recent bindings; none by default, since estimates count them by what they use. At most 20.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Hot>>", length(max = 20))]
    pub(super) hot_value: Entries<Hot>,
    /// Nodes with limits and weights of their own, at most 100 pools. A node is of the first pool that it matches.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Pool>>", length(max = 100))]
    pub(super) node_pools: Entries<Pool>,
    /// Namespaces whose pods go to certain nodes alone; at most 1,000 names in all.
    #[serde(default)]
    #[schemars(with = "Option<Vec<Namespaces>>", length(max = 1000))]
    pub(super) namespaces: Entries<Namespaces>,
    /// How pods that ask for GPU memory are placed.
    #[serde(default)]
    pub(super) gpu: Option<Gpu>,
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
    /// For how long a reading counts after it was taken; `period` and 5 minutes by default.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("examples" = ["6m"]))]
    pub(super) max_age: Text,
    /// A node above it takes no new pod: a fraction above 0, such as 0.8. None by default.
    #[serde(default)]
    #[schemars(schema_with = "limit")]
    pub(super) limit: OptionalField<Scalar>,
    /// How much it counts in scores; only the ratios between weights matter. 0 by default: it does not count.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) weight: OptionalField<Scalar>,
    /// What is done on a node whose reading is too old; `penalise` by default.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_stale: OptionalField<EnumValue<Unknown>>,
    /// What is done on a node without a reading, because it is not measured, or because the window is too young to be
    /// written; `penalise` by default.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_missing: OptionalField<EnumValue<Unknown>>,
}

/// How the metrics with weights become a node's score.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Scoring {
    /// The formula; `learned` by default.
    #[serde(default)]
    #[schemars(with = "Option<ModelName>")]
    pub(super) model: OptionalField<EnumValue<ModelName>>,
    /// `spread` by default. `pack` only with `craneLinear`, `dominantResource` and `learned`.
    #[serde(default)]
    #[schemars(with = "Option<Direction>")]
    pub(super) direction: OptionalField<EnumValue<Direction>>,
    /// The highest score that kube-scheduler is answered: 100, the default, or 10 as extenders do by contract. It goes with
    /// the `weight` of the extender in KubeSchedulerConfiguration: see `plimsoll scheduler-config`.
    #[serde(default)]
    #[schemars(schema_with = "scale")]
    pub(super) scale: OptionalField<Scalar>,
    /// `dominantResource` and `learned` only, with estimates and without `pack`: how much it counts, from 0 to 1, that a node uses more or
    /// less CPU than its pods' requests do on average. Pods that use more of their requests than others then go to nodes that use less, and
    /// the other way round; limits see the load alone. 0, the default: it does not count; 0.5 was tried.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0, max = 1))]
    pub(super) pairing: OptionalField<Scalar>,
    /// `targetLoadPacking` only: the best load, above 0 and below 1; 0.4 by default.
    #[serde(default)]
    #[schemars(with = "Option<f64>", extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub(super) target: OptionalField<Scalar>,
    /// `variationRisk` only: how much the standard deviation counts; 1 by default.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) margin: OptionalField<Scalar>,
    /// `variationRisk` only: the deviation counts to the power of 1 ÷ `sensitivity`; 1 by default.
    #[serde(default)]
    #[schemars(with = "Option<f64>", extend("exclusiveMinimum" = 0))]
    pub(super) sensitivity: OptionalField<Scalar>,
}

/// A formula for scores.
#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum ModelName {
    /// The weighted mean of 1 − load, as crane-scheduler.
    CraneLinear,
    /// Best at a target load, worse on both sides, as Trimaran's TargetLoadPacking.
    TargetLoadPacking,
    /// Mean and standard deviation of the worst resource, as Trimaran's LoadVariationRiskBalancing. Deviations are metrics
    /// such as `cpu_usage_stddev_15m`.
    VariationRisk,
    /// 1 − load of the most loaded resource, each the weighted mean of its metrics.
    DominantResource,
    /// As `dominantResource`, and not without estimates that are learned of each workload.
    Learned,
}

/// What limits do.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Limits {
    /// `soft` by default.
    #[serde(default)]
    #[schemars(with = "Option<Mode>")]
    pub(super) mode: OptionalField<EnumValue<Mode>>,
    /// `hard` only: a pod that has waited so long may go to the least loaded nodes; `never`: it waits on. `5m` by default.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("examples" = ["5m", "never"]))]
    pub(super) max_wait: Text,
    /// Priority classes whose pods no limit applies to, at most 100; by default `system-node-critical` and
    /// `system-cluster-critical`. Pods of DaemonSets are exempt in any case.
    #[serde(default)]
    #[schemars(with = "Option<Vec<String>>", length(max = 100))]
    pub(super) exempt_priority_classes: OptionalField<Vec<Spanned<String>>>,
}

/// What is done where every node that is asked about is over a limit.
#[derive(Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mode {
    /// The least loaded nodes pass.
    Soft,
    /// The pod waits.
    Hard,
}

/// How much the pods count that no reading shows yet.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Estimates {
    /// `false`: they do not count, whatever else is set here.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub(super) enabled: OptionalField<bool>,
    /// Whether a pod is estimated by what the running pods of its workload use; `true` by default.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    pub(super) learned: OptionalField<bool>,
    /// Which part of the learned use counts; `mean` by default, since estimates of several pods are added up.
    #[serde(default)]
    #[schemars(with = "Option<Statistic>")]
    pub(super) statistic: OptionalField<EnumValue<Statistic>>,
    /// What part of its CPU request (or limit, where that is higher) a pod of an unknown workload is taken to use; 0.85 by
    /// default.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) cpu_factor: OptionalField<Scalar>,
    /// The same for memory; 0.7 by default.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) memory_factor: OptionalField<Scalar>,
    /// The CPU that a pod with neither request nor limit is taken to use; `250m` by default.
    #[serde(default)]
    #[schemars(schema_with = "quantity")]
    pub(super) default_cpu: OptionalField<Scalar>,
    /// The same for memory; `200Mi` by default.
    #[serde(default)]
    #[schemars(schema_with = "quantity")]
    pub(super) default_memory: OptionalField<Scalar>,
}

/// Nodes with limits and weights of their own.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["name", "selector"]))]
pub(super) struct Pool {
    /// Its name, for people.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) name: Text,
    /// Which nodes are of it, as kubectl's `--selector`: `pool=batch`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) selector: Text,
    /// What is different for metrics of `spec.metrics`; everything else is as there.
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
    /// The limit here; `none`: no limit.
    #[serde(default)]
    #[schemars(schema_with = "limit")]
    pub(super) limit: OptionalField<Scalar>,
    /// The weight here; 0: it does not count.
    #[serde(default)]
    #[schemars(with = "Option<f64>", range(min = 0))]
    pub(super) weight: OptionalField<Scalar>,
    /// What is done on a node whose reading is too old.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_stale: OptionalField<EnumValue<Unknown>>,
    /// What is done on a node without a reading.
    #[serde(default)]
    #[schemars(with = "Option<Unknown>")]
    pub(super) when_missing: OptionalField<EnumValue<Unknown>>,
}

/// Pods of these namespaces go to these nodes alone; pods of DaemonSets are exempt.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("required" = ["names", "nodeSelector"]))]
pub(super) struct Namespaces {
    /// The namespaces.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub(super) names: OptionalField<Vec<Spanned<String>>>,
    /// Their nodes, as kubectl's `--selector`: `team=a`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub(super) node_selector: Text,
}

/// How pods that ask for GPU memory are placed.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Gpu {
    /// How nodes and cards are chosen for pods without the annotation `gpu-placement`; `least-fragmentation` by default.
    #[serde(default)]
    #[schemars(with = "Option<Strategy>")]
    pub(super) placement: OptionalField<EnumValue<Strategy>>,
    /// What becomes of memory that is in use on a card beyond what pods hold there, as by processes outside of Kubernetes;
    /// `ignore` by default.
    #[serde(default)]
    #[schemars(with = "Option<UnmanagedMemory>")]
    pub(super) unmanaged_memory: OptionalField<EnumValue<UnmanagedMemory>>,
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
    json_schema!({ "enum": [100, 10, null] })
}

fn quantity(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "number", "null"], "examples": ["250m", "200Mi"] })
}
