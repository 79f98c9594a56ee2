//! What the shadow policy would have decided for the pods of the last hour.

use std::sync::Arc;

use api::explain::Pod;
use api::shadow as out;
use axum::extract::State;
use axum::http::StatusCode;
use placement::load::Score;
use placement::units::NodeName;

use super::Answer;
use crate::Extender;
use crate::shadow::{Choice, Comparison};

pub(super) async fn shadow(State(extender): State<Arc<Extender>>) -> Answer {
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
    let pods = shadow.last_hour(now).iter().map(|comparison| pod(comparison)).collect();
    Answer::new("ok", &out::Shadow { time: now, pods })
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

fn choice(choice: &Choice) -> out::Choice {
    out::Choice {
        rejected: count(choice.rejected),
        rejected_alone: count(choice.rejected_alone),
        best_nodes: count(choice.best_nodes),
        best: choice.best.iter().map(NodeName::to_string).collect(),
        best_score: choice.best_score.map(Score::get),
    }
}

/// A request names at most 100,000 nodes.
fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
