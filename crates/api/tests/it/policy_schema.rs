//! The JSON schema of our own policies agrees with their parser.

use boon::{Compiler, SchemaIndex, Schemas};
use placement::policy::LoadPolicy;
use serde_json::Value;

const FULL: &str = include_str!("../../../placement/tests/golden/scheduling-policy.yaml");
const SHIPPED: &str = include_str!("../../../../deploy/chart/policies/shipped.yaml");

struct Schema(Schemas, SchemaIndex);

impl Schema {
    fn new() -> Self {
        let text = serde_json::to_string(&placement::policy::json_schema()).unwrap();
        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        let place = "file:///scheduling-policy.schema.json";
        compiler.add_resource(place, serde_json::from_str(&text).unwrap()).unwrap();
        let index = compiler.compile(place, &mut schemas).unwrap();
        Self(schemas, index)
    }

    fn check(&self, yaml: &str) -> Result<(), String> {
        let value: Value = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
        self.0.validate(&value, self.1).map_err(|error| error.to_string())
    }
}

#[test]
fn policies_that_the_parser_takes_are_valid_by_the_schema() {
    let schema = Schema::new();
    let printed = LoadPolicy::from_yaml(FULL).unwrap().to_yaml();
    let empty = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\n".to_owned();
    let nulls = format!("{empty}spec:\n  metrics:\n  scoring:\n  limits: {{mode: }}\n");
    for text in [FULL.to_owned(), SHIPPED.to_owned(), printed, empty, nulls] {
        assert!(LoadPolicy::from_yaml(&text).is_ok());
        assert_eq!(schema.check(&text), Ok(()), "{text}");
    }
}

#[test]
fn faults_of_single_fields_are_faults_by_the_schema_too() {
    let schema = Schema::new();
    for (from, to) in [
        ("kind: SchedulingPolicy", "kind: Policy"),
        ("maxAge: 6m", "maxage: 6m"),
        ("limit: 0.80", "limit: 0"),
        ("limit: 0.80", "limit: \"0.8\""),
        ("weight: 0.5", "weight: -1"),
        ("whenStale: ignore", "whenStale: penalize"),
        ("name: mem_usage_avg_5m", "name: mem usage"),
        ("model: aboveTypical", "model: magic"),
        ("scale: 50", "scale: 0"),
        ("mode: hard", "mode: firm"),
        ("count: 5", "count: 0"),
        ("    selector: pool=batch,!spot\n", ""),
        ("names: [team-a, team-b]", "names: []"),
        ("    period: 1m\n", ""),
    ] {
        assert!(FULL.contains(from), "the fixture has no `{from}`");
        let faulty = FULL.replacen(from, to, 1);
        assert!(LoadPolicy::from_yaml(&faulty).is_err(), "{to}");
        assert!(schema.check(&faulty).is_err(), "{to}");
    }
}
