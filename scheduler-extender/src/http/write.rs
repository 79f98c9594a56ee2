//! Writes the answers of Filter and Prioritize from the names' JSON in the request.
//!
//! Invariant: the bytes are those that serde writes of [`FilterResult`](crate::wire::FilterResult) and of a list of
//! [`HostPriority`](crate::wire::HostPriority).

use std::io::Write;

use crate::node_request::NamesJson;

/// The nodes that may not take the pod, with the reasons. Preemption cannot help on any of them.
#[derive(Debug, Default)]
pub struct Rejections<'a> {
    /// Positions of the rejected nodes, ascending, and their causes.
    nodes: Vec<(usize, usize)>,
    causes: Vec<Cause<'a>>,
}

/// One cause of rejections.
#[derive(Debug)]
pub struct Cause<'a> {
    /// The label of the metric.
    pub label: &'a str,
    /// How many nodes it rejects.
    pub nodes: u64,
    reason: &'a str,
    /// The reason as JSON.
    json: Vec<u8>,
}

impl Cause<'_> {
    fn is(&self, label: &str, reason: &str) -> bool {
        // Nearly always the same static text, so that only pointers are compared.
        std::ptr::eq(self.reason, reason) && std::ptr::eq(self.label, label)
            || self.label == label && self.reason == reason
    }
}

impl<'a> Rejections<'a> {
    /// Adds the node at a position. Positions ascend from call to call.
    pub fn add(&mut self, position: usize, label: &'a str, reason: &'a str) {
        let known = self.causes.iter().position(|cause| cause.is(label, reason));
        let cause = known.unwrap_or(self.causes.len());
        if known.is_none() {
            // Serialising a string cannot fail.
            let json = serde_json::to_vec(reason).unwrap_or_default();
            self.causes.push(Cause { label, nodes: 0, reason, json });
        }
        self.causes[cause].nodes += 1;
        self.nodes.push((position, cause));
    }

    /// How many nodes are rejected.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether every node passes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The causes, with how many nodes each rejects.
    pub fn causes(&self) -> &[Cause<'a>] {
        &self.causes
    }

    /// Filter's answer: the other nodes pass.
    pub fn answer(&self, names: &NamesJson<'_>) -> Vec<u8> {
        let reasons: usize =
            self.causes.iter().map(|cause| cause.nodes as usize * (cause.json.len() + 2)).sum();
        let mut json = Vec::with_capacity(names.between(0, names.len()).len() + reasons + 128);
        json.extend_from_slice(br#"{"NodeNames":["#);
        let begin = json.len();
        let mut from = 0;
        for position in self.nodes.iter().map(|(position, _)| *position).chain([names.len()]) {
            let passed = names.between(from, position);
            if json.len() > begin && !passed.is_empty() {
                json.push(b',');
            }
            json.extend_from_slice(passed);
            from = position + 1;
        }
        json.extend_from_slice(br#"],"FailedNodes":{},"FailedAndUnresolvableNodes":{"#);
        for (at, (position, cause)) in self.nodes.iter().enumerate() {
            if at > 0 {
                json.push(b',');
            }
            json.extend_from_slice(names.get(*position));
            json.push(b':');
            json.extend_from_slice(&self.causes[*cause].json);
        }
        json.extend_from_slice(br#"},"Error":""}"#);
        json
    }
}

/// Filter's answer where one node alone may take the pod. kube-scheduler then needs no reasons for the others.
pub(super) fn one_node(names: &NamesJson<'_>, position: usize) -> Vec<u8> {
    let around: [&[u8]; 2] = [
        br#"{"NodeNames":["#,
        br#"],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}"#,
    ];
    around.join(names.get(position))
}

/// Prioritize's answer.
pub(super) fn priorities(names: &NamesJson<'_>, scores: &[i64]) -> Vec<u8> {
    const AROUND: usize = r#"{"Host":,"Score":100},"#.len();
    let mut json =
        Vec::with_capacity(names.between(0, names.len()).len() + scores.len() * AROUND + 2);
    json.push(b'[');
    for (position, score) in scores.iter().enumerate() {
        if position > 0 {
            json.push(b',');
        }
        json.extend_from_slice(br#"{"Host":"#);
        json.extend_from_slice(names.get(position));
        json.extend_from_slice(br#","Score":"#);
        // Writing into memory cannot fail.
        let _ = match u8::try_from(*score) {
            Ok(score @ 0..10) => json.write_all(&[b'0' + score]),
            Ok(score @ 10..100) => json.write_all(&[b'0' + score / 10, b'0' + score % 10]),
            _ => write!(json, "{score}"),
        };
        json.push(b'}');
    }
    json.push(b']');
    json
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node_request::read_with_serde;
    use crate::view::NodeNames;
    use crate::wire::{FilterResult, HostPriority, Reasons};

    proptest! {
        #[test]
        fn answers_are_those_of_serde(nodes in prop::collection::vec((".{0,12}", 0..4_usize, -5..1_200_i64), 0..20)) {
            let names: Vec<&str> = nodes.iter().map(|(name, ..)| name.as_str()).collect();
            let body = serde_json::json!({ "Pod": {}, "NodeNames": names }).to_string();
            let asked = read_with_serde(body.as_bytes(), &NodeNames::default()).unwrap();

            let reasons = [("a", "no \"room\""), ("b", "\u{e9}"), ("a", "over 0.65")];
            let mut rejections = Rejections::default();
            let mut passed = Vec::new();
            let mut failed = Vec::new();
            for (position, (name, cause, _)) in nodes.iter().enumerate() {
                match reasons.get(*cause) {
                    Some((label, reason)) => {
                        rejections.add(position, label, reason);
                        failed.push((name.as_str(), *reason));
                    }
                    None => passed.push(name.as_str()),
                }
            }
            let result = FilterResult {
                node_names: Some(passed),
                failed_and_unresolvable_nodes: Reasons(failed),
                ..FilterResult::default()
            };
            prop_assert_eq!(rejections.answer(&asked.names), serde_json::to_vec(&result).unwrap());
            let counted: u64 = rejections.causes().iter().map(|cause| cause.nodes).sum();
            prop_assert_eq!(counted as usize, rejections.len());

            let scores: Vec<i64> = nodes.iter().map(|(.., score)| *score).collect();
            let list: Vec<_> = nodes.iter().map(|(host, _, score)| HostPriority { host, score: *score }).collect();
            prop_assert_eq!(priorities(&asked.names, &scores), serde_json::to_vec(&list).unwrap());
        }
    }
}
