//! The custom resource `NodeLoad`: a node's readings, in an object that kube-scheduler does not watch.
//!
//! There is one for each node, with the node's name. The group's name is that of the CustomResourceDefinition, whatever
//! the value of `--annotation-prefix`. Times are UTC, whatever the value of `--time-zone`, since no program for crane's
//! annotations reads them.

use std::collections::BTreeMap;

use placement::reading::{ReadingCodec, ReadingError};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The API group.
pub const GROUP: &str = "plimsoll.dev";
/// The version.
pub const VERSION: &str = "v1alpha1";
/// The kind.
pub const KIND: &str = "NodeLoad";
/// The name in URLs.
pub const PLURAL: &str = "nodeloads";

/// The most metrics of one node: as many as a policy may have. The API server refuses a NodeLoad with more.
pub const MAX_METRICS: usize = placement::policy::MAX_METRICS;

/// The fields of a NodeLoad in addition to its metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeLoad {
    /// The last reading of each metric of the policy's syncPolicy, by the metric's name, such as cpu_usage_avg_5m.
    #[schemars(extend("maxProperties" = MAX_METRICS))]
    pub readings: BTreeMap<String, Reading>,
}

/// One value of one metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reading {
    /// A fraction with five decimals: 0 idle, 1 full, such as 0.63012. A load average by CPU can be above 1.
    #[schemars(regex(pattern = r"^([0-9]{1,15}(\.[0-9]{1,9})?|inf)$"))]
    pub value: String,
    /// When it was taken, to the second, in UTC: 2026-11-20T09:00:00Z.
    #[schemars(regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"))]
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}

impl Reading {
    /// The reading as it is written.
    #[must_use]
    pub fn new(reading: &placement::reading::Reading) -> Self {
        let text = ReadingCodec::default().encode(reading);
        let (value, time) = text.split_once(',').unwrap_or_default();
        Self { value: value.to_owned(), time: time.to_owned() }
    }

    /// Reads it, with the same checks as an annotation.
    ///
    /// # Errors
    ///
    /// Names the value or the time that is wrong, and what was expected.
    pub fn read(&self) -> Result<placement::reading::Reading, ReadingError> {
        ReadingCodec::default().decode(&format!("{},{}", self.value, self.time))
    }
}

/// A column of `kubectl get nodeloads`: a field of one reading.
fn column(name: &str, kind: &str, description: &str, metric: &str, field: &str) -> Value {
    json!({
        "name": name, "type": kind, "description": description,
        "jsonPath": format!(".readings.{metric}.{field}"),
    })
}

/// The CustomResourceDefinition, as `deploy/components/nodeloads/crd.yaml` has it.
#[must_use]
pub fn definition() -> Value {
    let cpu = "cpu_shared_busy_avg_5m";
    let usage = "cpu_usage_avg_5m";
    let memory = "mem_usage_avg_5m";
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{PLURAL}.{GROUP}"),
            "labels": {"app.kubernetes.io/part-of": "plimsoll"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": KIND, "listKind": "NodeLoadList", "plural": PLURAL, "singular": "nodeload"},
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema()},
                "additionalPrinterColumns": [
                    column("CPU", "string", "cpu_shared_busy_avg_5m, a fraction of the CPUs that pods share", cpu, "value"),
                    column("CPU usage", "string", "cpu_usage_avg_5m of crane's policies", usage, "value"),
                    column("Memory", "string", "mem_usage_avg_5m, a fraction of all memory", memory, "value"),
                    column("Read", "date", "When the exporter gave the value of memory", memory, "time"),
                ],
            }],
        },
    })
}

/// The schema of the whole object. The API server adds `metadata`.
fn schema() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<NodeLoad>().to_value();
    if let Value::Object(schema) = &mut schema {
        schema.retain(|keyword, _| !["$schema", "title", "components"].contains(&keyword.as_str()));
    }
    schema
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use placement::units::Ratio;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back_to_five_decimals_and_the_second(
            value in prop_oneof![0.0..2.0, 0.0..1e9, Just(f64::INFINITY)],
            second in 0i64..253_402_000_000,
        ) {
            let at = Timestamp::from_second(second).unwrap();
            let reading = placement::reading::Reading::new(Ratio::or_infinite(value).unwrap(), at);
            prop_assert_eq!(Reading::new(&reading).read(), Ok(reading.as_written()));
        }

        #[test]
        fn any_text_is_read_or_refused(value in ".{0,40}", time in ".{0,40}") {
            let _ = Reading { value, time }.read();
        }
    }

    /// What the API server demands of a schema, so far as ours could break it.
    #[test]
    fn the_schema_is_structural() {
        fn check(schema: &Value) {
            assert!(schema["type"].is_string(), "{schema}");
            assert!(schema.get("$ref").is_none() && schema.get("$defs").is_none(), "{schema}");
            let children =
                schema["properties"].as_object().into_iter().flat_map(|map| map.values());
            children.chain(schema.get("additionalProperties")).for_each(check);
        }
        check(&schema());
    }
}
