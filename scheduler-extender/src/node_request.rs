//! Parses a request of Filter or Prioritize: the pod, the nodes by their places, and their names as JSON.
//!
//! kube-scheduler writes all requests alike, in the order of Go's struct and without spaces. So each name is looked up
//! as it is written, without parsing it.
//!
//! Invariant: the fast parser returns the same value as serde. A body in any other encoding is parsed by serde, which
//! also reports the errors.

use std::borrow::Cow;
use std::sync::Arc;

use cluster::{GpuRequestError, MAX_GPU_POD, Pod};
use memchr::memmem;
use placement::units::NodeName;
use serde::Deserialize;
use serde_json::Deserializer;
use serde_json::value::RawValue;

use crate::view::{NodeNames, Place};
use crate::wire::{self, MAX_NODES, Name, WireError};

/// A request of Filter or Prioritize.
pub struct NodeRequest<'a> {
    /// The pod to place.
    pub pod: Pod,
    /// The candidates.
    pub nodes: CandidateNodes,
    /// Their names, in the same order.
    pub names: NamesJson<'a>,
}

/// The nodes of a request in its order, by their places.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CandidateNodes {
    places: Vec<Option<Place>>,
    /// Names of nodes without a place, with their positions in the request.
    unknown: Vec<(usize, NodeName)>,
}

impl CandidateNodes {
    /// The nodes of these names.
    pub fn new<'a>(known: &NodeNames, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut nodes = Self::default();
        for name in names {
            nodes.push(known.place(name).ok_or(name));
        }
        nodes
    }

    /// The same nodes with their places after nodes have joined or left.
    #[must_use]
    pub fn moved(self, from: &Arc<NodeNames>, to: &Arc<NodeNames>) -> Self {
        if Arc::ptr_eq(from, to) {
            return self;
        }
        Self::new(to, (0..self.len()).map(|position| self.name(from, position).as_str()))
    }

    /// The nodes at these places, then nodes without a place.
    pub fn of_places(known: Vec<Place>, unknown: &[NodeName]) -> Self {
        let mut nodes = Self { places: known.into_iter().map(Some).collect(), unknown: Vec::new() };
        for name in unknown {
            nodes.push(Err(name.as_str()));
        }
        nodes
    }

    fn push(&mut self, node: Result<Place, &str>) {
        if let Err(name) = node {
            self.unknown.push((self.places.len(), NodeName::from(name)));
        }
        self.places.push(node.ok());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The place of each node; `None` for an unknown node.
    pub fn places(&self) -> &[Option<Place>] {
        &self.places
    }

    /// The name of the node at a position of the request.
    ///
    /// # Panics
    ///
    /// Where there is no such position.
    pub fn name<'a>(&'a self, names: &'a NodeNames, position: usize) -> &'a NodeName {
        match self.places[position] {
            Some(place) => names.name(place),
            None => {
                let at = self.unknown.partition_point(|(at, _)| *at < position);
                &self.unknown[at].1
            }
        }
    }

    /// Names of nodes without a place.
    pub fn unknown(&self) -> impl Iterator<Item = &NodeName> {
        self.unknown.iter().map(|(_, name)| name)
    }
}

/// Names as JSON strings, separated by commas.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamesJson<'a> {
    json: Cow<'a, [u8]>,
    /// The end offset of each name.
    ends: Vec<u32>,
}

impl NamesJson<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The name at a position, quotes included.
    pub fn get(&self, position: usize) -> &[u8] {
        self.between(position, position + 1)
    }

    /// The names at positions `from..to`, with the commas between them. Empty for an empty range.
    pub fn between(&self, from: usize, to: usize) -> &[u8] {
        if from >= to {
            return &[];
        }
        let begin = from.checked_sub(1).map_or(0, |before| self.ends[before] as usize + 1);
        &self.json[begin..self.ends[to - 1] as usize]
    }

    fn push(&mut self, name: &Name<'_>) {
        let json = self.json.to_mut();
        if !json.is_empty() {
            json.push(b',');
        }
        // Serialising a string into memory cannot fail.
        let _ = serde_json::to_writer(&mut *json, name);
        // A body has at most some MiB.
        self.ends.push(u32::try_from(json.len()).unwrap_or(u32::MAX));
    }
}

/// Reads a request.
///
/// # Errors
///
/// As [`wire::read`].
pub fn read<'a>(body: &'a [u8], known: &NodeNames) -> Result<NodeRequest<'a>, WireError> {
    match read_go_json(body, known) {
        Some(request) => Ok(request),
        None => read_with_serde(body, known),
    }
}

/// The names of a request whose pod is [too large](large_pod), which is not read. `None` for any other request, and for
/// one that kube-scheduler has not written.
pub fn read_beside_large_pod<'a>(
    body: &'a [u8],
    resource: &str,
    known: &NodeNames,
) -> Option<(GpuRequestError, NamesJson<'a>)> {
    const BEFORE_NAMES: &[u8] = br#","Nodes":null,"NodeNames":["#;
    if body.len() <= MAX_GPU_POD {
        return None;
    }
    let rest = body.strip_prefix(br#"{"Pod":"#)?;
    // Within a text the quotes would be escaped, so the last such bytes are before the names, and the key is one.
    let end = memmem::rfind(rest, BEFORE_NAMES)?;
    let (pod, names) = (&rest[..end], &rest[end + BEFORE_NAMES.len()..]);
    let fault = large_pod(pod, pod.len(), resource)?;
    let (_, names) = read_list(names, known)?;
    Some((fault, names))
}

/// The fault of a pod that asks for `resource` and is longer than [`MAX_GPU_POD`], by its JSON as the API server or a
/// user writes it.
pub fn large_stored_pod(pod: &[u8], resource: &str) -> Option<GpuRequestError> {
    if pod.len() <= MAX_GPU_POD {
        return None;
    }
    large_pod(pod, pod.len().saturating_sub(unsent_bytes(pod)), resource)
}

fn large_pod(pod: &[u8], sent: usize, resource: &str) -> Option<GpuRequestError> {
    let asks = || memmem::find(pod, format!("\"{resource}\":").as_bytes()).is_some();
    (sent > MAX_GPU_POD && asks()).then_some(GpuRequestError::LargePod(sent))
}

/// The bytes of a pod's JSON that kube-scheduler does not send: its type, and `managedFields`.
fn unsent_bytes(pod: &[u8]) -> usize {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Unsent<'a> {
        #[serde(borrow)]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        api_version: Option<&'a RawValue>,
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow)]
        managed_fields: Option<&'a RawValue>,
    }
    let Unsent { kind, api_version, metadata } = serde_json::from_slice(pod).unwrap_or_default();
    let fields =
        [("kind", kind), ("apiVersion", api_version), ("managedFields", metadata.managed_fields)];
    // A key has quotes, a colon and a comma beside it.
    fields.into_iter().filter_map(|(key, value)| Some(key.len() + 4 + value?.get().len())).sum()
}

/// Reads a request in any JSON encoding.
///
/// # Errors
///
/// As [`wire::read`].
pub fn read_with_serde(body: &[u8], known: &NodeNames) -> Result<NodeRequest<'static>, WireError> {
    let (pod, list) = wire::read(body)?;
    let mut names = NamesJson::default();
    list.iter().for_each(|name| names.push(name));
    let nodes = CandidateNodes::new(known, list.iter().map(Name::as_str));
    Ok(NodeRequest { pod, nodes, names })
}

/// Reads a request in the encoding of kube-scheduler (Go's `encoding/json`); `None` for any other encoding.
pub fn read_go_json<'a>(body: &'a [u8], known: &NodeNames) -> Option<NodeRequest<'a>> {
    let rest = body.strip_prefix(br#"{"Pod":"#)?;
    let mut pods = Deserializer::from_slice(rest).into_iter::<Pod>();
    let pod = pods.next()?.ok()?;
    let list = rest.get(pods.byte_offset()..)?.strip_prefix(br#","Nodes":null,"NodeNames":["#)?;
    let (nodes, names) = read_list(list, known)?;
    let rest = list[names.json.len()..].strip_prefix(b"]}")?;
    rest.iter().all(|byte| b" \n\r\t".contains(byte)).then_some(NodeRequest { pod, nodes, names })
}

/// Reads names up to the end of the list.
fn read_list<'a>(list: &'a [u8], known: &NodeNames) -> Option<(CandidateNodes, NamesJson<'a>)> {
    let mut ends = Vec::with_capacity(known.len());
    let mut nodes = CandidateNodes::default();
    nodes.places.reserve(known.len());
    let mut at = 0;
    while list.get(at)? != &b']' || at > 0 {
        if ends.len() == MAX_NODES {
            return None;
        }
        let (node, length) = read_name(&list[at..], known)?;
        nodes.push(node);
        at += length;
        ends.push(u32::try_from(at).ok()?);
        match list.get(at)? {
            b',' => at += 1,
            b']' => break,
            _ => return None,
        }
    }
    let json = Cow::Borrowed(&list[..at]);
    Some((nodes, NamesJson { json, ends }))
}

/// Reads the name at the start of `text`: the node's place, or the name of an unknown node, and the length of the JSON
/// string with its quotes. `None` where `text` does not begin with a string without escapes.
fn read_name<'a>(text: &'a [u8], known: &NodeNames) -> Option<(Result<Place, &'a str>, usize)> {
    let inner = text.strip_prefix(b"\"")?;
    let name = &inner[..memchr::memchr(b'"', inner)?];
    let json = &text[..name.len() + 2];
    // With a backslash before the quote this is no whole JSON string, so it equals no node's.
    if let Some(node) = known.place_of_json(json) {
        return Some((Ok(node), json.len()));
    }
    // Escapes and invalid JSON are left to serde.
    let is_plain = name.iter().all(|byte| *byte != b'\\' && *byte >= 0x20);
    if !is_plain {
        return None;
    }
    Some((Err(str::from_utf8(name).ok()?), json.len()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use placement::names::Names;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const NODES: usize = 9;

    /// The names `node-0` to `node-8`, and one that needs an escape in JSON.
    fn known() -> NodeNames {
        let names = (0..NODES).map(|number| format!("node-{number}")).chain(["a\"b".to_owned()]);
        NodeNames::new(names.map(|name| Some(name.into())))
    }

    fn body(names: &[String]) -> String {
        let pod = json!({ "metadata": { "name": "web", "uid": "u", "labels": { "a": "]}\"" } }, "spec": {} });
        format!(r#"{{"Pod":{pod},"Nodes":null,"NodeNames":{}}}"#, json!(names))
    }

    /// The names as strings.
    fn listed(request: &NodeRequest<'_>, known: &NodeNames) -> Vec<String> {
        let positions = 0..request.nodes.len();
        positions.map(|position| request.nodes.name(known, position).to_string()).collect()
    }

    fn same(one: &NodeRequest<'_>, other: &NodeRequest<'_>) -> bool {
        let names = Names::default();
        one.pod.facts(&names) == other.pod.facts(&names)
            && one.nodes == other.nodes
            && one.names == other.names
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![8 => (0..NODES + 2).prop_map(|number| format!("node-{number}")), 1 => "[a-z\u{e9}]{0,4}"]
    }

    proptest! {
        #[test]
        fn what_go_writes_is_read_without_serde_and_alike(names in prop::collection::vec(name(), 0..30)) {
            let (known, body) = (known(), body(&names));
            let request = read_go_json(body.as_bytes(), &known).unwrap();
            prop_assert_eq!(listed(&request, &known), names);
            prop_assert!(same(&request, &read_with_serde(body.as_bytes(), &known).unwrap()));
        }

        #[test]
        fn what_is_read_without_serde_serde_reads_alike(
            names in prop::collection::vec(name(), 0..6),
            edits in prop::collection::vec((any::<prop::sample::Index>(), r#"[\[\]{}",: \\ne\x00\n]|"#), 0..3),
        ) {
            let known = known();
            let mut body = body(&names);
            for (at, text) in edits {
                let at = at.index(body.len());
                if body.is_char_boundary(at) && body.is_char_boundary(at + 1) {
                    body.replace_range(at..=at, &text);
                }
            }
            if let Some(request) = read_go_json(body.as_bytes(), &known) {
                let with_serde = read_with_serde(body.as_bytes(), &known);
                prop_assert!(with_serde.is_ok_and(|with_serde| same(&request, &with_serde)), "{}", body);
            }
        }
    }

    #[test]
    fn whatever_is_written_otherwise_is_left_to_serde() {
        let known = known();
        for list in [
            r#"["node-1", "node-2"]"#,
            r#"["node-1","node-2"] "#,
            r#"["node\u002d1"]"#,
            r#"["a\"b"]"#,
            "null",
        ] {
            let body = format!(r#"{{"Pod":{{}},"Nodes":null,"NodeNames":{list}}}"#);
            let unread = read_go_json(body.as_bytes(), &known).is_none();
            assert!(unread || list.contains("a\\"), "{list}");
            assert_eq!(read(body.as_bytes(), &known).is_ok(), list != "null");
        }
        for list in
            ["[", "[,]", r#"["node-1",]"#, r#"["node-1""#, r#"["node-1"]]"#, "[1]", "[\"a\nb\"]"]
        {
            let body = format!(r#"{{"Pod":{{}},"Nodes":null,"NodeNames":{list}}}"#);
            assert!(matches!(read(body.as_bytes(), &known), Err(WireError::Json(_))), "{list}");
        }
    }

    #[test]
    fn nodes_have_other_places_among_other_names() {
        let one = Arc::new(known());
        let names = ["node-3", "gone", "node-1"];
        let nodes = CandidateNodes::new(&one, names);
        let other = Arc::new(NodeNames::new([Some("gone".into())]));
        let moved = nodes.moved(&one, &other);
        let found: Vec<_> = (0..3).map(|at| moved.name(&other, at).as_str()).collect();
        assert_eq!(found, names);
        let unknown: HashSet<_> = moved.unknown().map(NodeName::as_str).collect();
        assert_eq!(unknown, ["node-3", "node-1"].into());
    }
}
