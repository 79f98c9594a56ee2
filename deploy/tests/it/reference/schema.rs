//! Tables of fields, from the JSON schemas in `crates/api/schema`. Tests of that crate hold those to the types.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{DOCUMENTS, markdown, sentence, triples};
use crate::repository::read;

/// Where the documents say more about a field: the schema, the field, a link.
const MORE: &str = "\
scheduling-policy demand [network and disk as demand](#network-and-disk-as-demand)
scheduling-policy estimates [estimates](#estimates)
scheduling-policy gpu.beyondUnits[] [beyond units](#beyond-units)
scheduling-policy gpu.placement [which node and which GPU](gpu.md#how-a-gpu-is-chosen)
scheduling-policy gpu.unmanagedMemory [memory that nobody manages](gpu.md#memory-that-nobody-manages)
scheduling-policy limits.mode [limits](#limits-soft-or-hard)
scheduling-policy metrics[].name [signals and windows](readings.md)
scheduling-policy metrics[].period [when Nodes are written](readings.md#when-nodes-are-written)
scheduling-policy metrics[].whenMissing [metrics that some nodes lack](#metrics-that-some-nodes-lack)
scheduling-policy namespaces[] [namespaces](#namespaces)
scheduling-policy nodePools[] [node pools](#node-pools)
scheduling-policy scoring.model [models](#models)
scheduling-policy scoring.scale [what a point is worth](#what-a-point-is-worth)
gpu-cards closed [nodes that cannot start a pod](gpu.md#nodes-that-cannot-start-a-pod)";

/// The rows of one table, as its schema is read.
struct Rows<'a> {
    name: &'a str,
    definitions: &'a Value,
    /// The field that has first listed the values of an enumeration, by its reference.
    listed: BTreeMap<String, String>,
    text: String,
}

/// The table of a schema's fields: of `gpu-cards` all, of `scheduling-policy spec: metrics, limits` those below `spec`,
/// in that order.
pub(super) fn table(name: &str) -> String {
    let (name, order) = name.split_once(": ").unwrap_or((name, ""));
    let (name, start) = name.split_once(' ').unwrap_or((name, ""));
    let text = read(&format!("crates/api/schema/{name}.schema.json"));
    let schema: Value = serde_json::from_str(&text).unwrap();
    let mut rows = Rows {
        name,
        definitions: &schema["$defs"],
        listed: BTreeMap::new(),
        text: "| field | |\n|---|---|\n".to_owned(),
    };
    let top = if start.is_empty() { &schema } else { &schema["properties"][start] };
    let top = rows.object(top).unwrap_or_else(|| panic!("{name} has no fields"));
    let mut fields = properties(top);
    if !order.is_empty() {
        let order: Vec<&str> = order.split(", ").collect();
        fields.sort_by_key(|(field, _)| {
            let place = order.iter().position(|name| name == field);
            place.unwrap_or_else(|| panic!("the table of {name} does not name {field}"))
        });
    }
    for (field, schema) in fields {
        rows.add(field, schema, required_place(top, field).is_some());
    }
    rows.text
}

impl<'a> Rows<'a> {
    /// Adds a field, and the fields below it.
    fn add(&mut self, path: &str, schema: &'a Value, required: bool) {
        let below = self.object(schema);
        let path = if self.is_list(schema) { format!("{path}[]") } else { path.to_owned() };
        let mut text = self.description(schema);
        text += &self.values(&path, schema);
        if required {
            text += " Required.";
        }
        let links = triples(MORE).filter(|(name, field, _)| *name == self.name && *field == path);
        for (_, _, link) in links {
            text += &format!(" More: {link}.");
        }
        self.text += &format!("| `{path}` | {text} |\n");
        let Some(below) = below else { return };
        for (field, schema) in properties(below) {
            self.add(&format!("{path}.{field}"), schema, required_place(below, field).is_some());
        }
    }

    /// The definition that a schema refers to, if any, alone or beside null.
    fn reference(&self, schema: &'a Value) -> Option<(&'a str, &'a Value)> {
        let alternatives = schema["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut all = [schema].into_iter().chain(alternatives);
        let reference = all.find_map(|schema| schema["$ref"].as_str())?;
        let name = reference.strip_prefix("#/$defs/").expect("a definition");
        Some((name, &self.definitions[name]))
    }

    fn resolved(&self, schema: &'a Value) -> &'a Value {
        self.reference(schema).map_or(schema, |(_, definition)| definition)
    }

    fn is_list(&self, schema: &'a Value) -> bool {
        self.resolved(schema)["items"].is_object()
    }

    /// The object with the fields below a schema: itself, or what its list consists of.
    fn object(&self, schema: &'a Value) -> Option<&'a Value> {
        let schema = self.resolved(schema);
        let schema =
            if schema["items"].is_object() { self.resolved(&schema["items"]) } else { schema };
        schema["properties"].is_object().then_some(schema)
    }

    fn description(&self, schema: &'a Value) -> String {
        let own = schema["description"].as_str();
        let text = own.or(self.resolved(schema)["description"].as_str()).unwrap_or_default();
        sentence(&markdown(&text.split_whitespace().collect::<Vec<_>>().join(" ")))
    }

    /// The values of an enumeration with their meanings, or the field that has them above.
    fn values(&mut self, path: &str, schema: &'a Value) -> String {
        let schema = if self.is_list(schema) { &self.resolved(schema)["items"] } else { schema };
        let Some((name, definition)) = self.reference(schema) else { return String::new() };
        let Some(values) = definition["oneOf"].as_array() else { return String::new() };
        if let Some(above) = self.listed.get(name) {
            return format!(" Values: those of `{above}`.");
        }
        self.listed.insert(name.to_owned(), path.to_owned());
        let mut text = String::new();
        for value in values {
            if let (Some(value), Some(meaning)) =
                (value["const"].as_str(), value["description"].as_str())
            {
                text += &format!(" `{value}`: {}", sentence(&markdown(meaning)));
            }
        }
        text
    }
}

/// The fields of an object, required ones first.
fn properties(object: &Value) -> Vec<(&String, &Value)> {
    let all = object["properties"].as_object().expect("fields");
    let mut fields: Vec<_> = all.iter().collect();
    fields.sort_by_key(|(field, _)| required_place(object, field).unwrap_or(usize::MAX));
    fields
}

/// Where a field stands in the list of required ones.
fn required_place(object: &Value, field: &str) -> Option<usize> {
    object["required"].as_array()?.iter().position(|name| name == field)
}

#[test]
fn every_link_is_of_a_field_that_is_in_a_table() {
    let documents = DOCUMENTS.map(read).concat();
    for (schema, field, link) in triples(MORE) {
        let start = format!("| `{field}` | ");
        let mut rows = documents.lines().filter(|line| line.starts_with(&start));
        assert!(rows.any(|row| row.contains(link)), "no table has {field} of {schema}");
    }
}
