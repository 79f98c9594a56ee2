//! `/shadow`: what the shadow policy would have decided for the pods of the last hour.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use api::explain::Pod;
use api::shadow as out;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use placement::load::Score;
use placement::units::NodeName;

use super::Answer;
use crate::Extender;
use crate::shadow::{Comparison, MAX_SAMPLES, PolicyResult};

pub(super) const PATH: &str = "/shadow";

/// Merges the comparisons of all replicas: kube-scheduler sends requests to one, and after a restart to another.
pub(super) async fn shadow(State(extender): State<Arc<Extender>>, headers: HeaderMap) -> Answer {
    let decider = &extender.decider;
    let Some(shadow) = &decider.shadow else {
        let error = "there is no shadow policy: start the extender with --shadow-policy-file";
        return Answer::failed(StatusCode::NOT_FOUND, &error);
    };
    if !shadow.has_policy() {
        let error = "the file of --shadow-policy-file is missing or faulty; the extender's log says what is wrong";
        return Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &error);
    }
    let now = decider.now();
    let mut pods: Vec<_> = shadow.last_hour(now).iter().map(|comparison| pod(comparison)).collect();
    let mut missing = Vec::new();
    if let Some(others) = extender.others_to_ask(&headers) {
        let answers = others.query(PATH, None).await;
        for text in &answers.bodies {
            if let Ok(shadow) = serde_json::from_slice::<out::Shadow>(text) {
                pods.extend(shadow.pods);
            }
        }
        pods = newest_first(pods);
        missing = answers.missing;
    }
    Answer::new("ok", &out::Shadow { time: now, missing, pods })
}

/// The newest comparison of each pod, newest first.
fn newest_first(mut pods: Vec<out::ShadowedPod>) -> Vec<out::ShadowedPod> {
    pods.sort_by_key(|pod| Reverse(pod.time));
    let mut seen = HashSet::new();
    pods.retain(|pod| seen.insert(pod.pod.uid.clone()));
    pods.truncate(MAX_SAMPLES);
    pods
}

fn pod(comparison: &Comparison) -> out::ShadowedPod {
    let Comparison { pod, time, nodes, policy, shadow, .. } = comparison;
    let differences = [
        (comparison.differs_in_filter(), out::Difference::Filter),
        (comparison.differs_in_score(), out::Difference::Score),
    ];
    out::ShadowedPod {
        pod: Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
        },
        time: *time,
        node: pod.node().map(NodeName::to_string),
        nodes: count(*nodes),
        policy: choice(policy),
        shadow: choice(shadow),
        differs: differences.into_iter().filter_map(|(is, kind)| is.then_some(kind)).collect(),
    }
}

fn choice(result: &PolicyResult) -> out::Choice {
    out::Choice {
        rejected: count(result.rejected),
        rejected_alone: count(result.rejected_alone),
        best_nodes: count(result.best_nodes),
        best: result.best.iter().map(NodeName::to_string).collect(),
        best_score: result.best_score.map(Score::get),
    }
}

/// A request names at most 100,000 nodes.
fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
