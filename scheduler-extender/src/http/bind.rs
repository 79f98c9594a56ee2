//! Bind: the one verb that waits, for the API server.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;

use super::Answer;
use crate::Extender;
use crate::binder::{BindError, Target};
use crate::view::GpuPodId;
use crate::wire::{self, BindingArgs, BindingResult};

const BIND: &str = "gpushare-scheduler/bind";

pub(super) async fn bind(State(extender): State<Arc<Extender>>, body: Bytes) -> Answer {
    let start = Instant::now();
    let answer = match wire::parse::<BindingArgs>(&body) {
        Ok(args) => bound(&extender, args).await,
        Err(error) => failed("error", &error),
    };
    let seconds = start.elapsed().as_secs_f64();
    extender.decider.metrics.call(BIND, answer.outcome, seconds);
    answer
}

async fn bound(extender: &Extender, args: BindingArgs) -> Answer {
    if args.pod_uid.is_empty() || args.node.is_empty() {
        return failed("error", &"PodUID and Node must not be empty");
    }
    match extender.binder.bind(target(args)).await {
        Ok(()) => Answer::new("ok", &BindingResult { error: String::new() }),
        Err(error) => failed(BindError::label(&error), &error),
    }
}

fn failed(outcome: &'static str, error: &impl ToString) -> Answer {
    Answer::new(outcome, &BindingResult { error: error.to_string() })
}

fn target(args: BindingArgs) -> Target {
    Target {
        pod: GpuPodId {
            uid: args.pod_uid.into(),
            namespace: args.pod_namespace,
            name: args.pod_name,
        },
        node: args.node.into(),
    }
}
