//! Bind: waits for the API server.
//!
//! Invariant: the form and length of a request's fields are checked first, by the rules of Kubernetes: they become
//! parts of a URL path, and are kept in memory while a binding is under way.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;

use super::answer::{Answer, timed};
use crate::Extender;
use crate::binder::{BindError, Target};
use crate::field::{self, FieldError};
use crate::view::GpuPodId;
use crate::wire::{self, BindingArgs, BindingResult};

const BIND: &str = "gpushare-scheduler/bind";

/// Bytes of a request at most: its four fields take 632, and six times that where each character is escaped.
pub(super) const MAX_BODY: usize = 16 << 10;

pub(super) async fn bind(State(extender): State<Arc<Extender>>, body: Bytes) -> Answer {
    let answer = async {
        match wire::parse::<BindingArgs>(&body) {
            Ok(args) => run_bind(&extender, args).await,
            Err(error) => failed("error", &error),
        }
    };
    timed(&extender.decider, BIND, answer).await
}

async fn run_bind(extender: &Extender, args: BindingArgs) -> Answer {
    if let Err(error) = check(&args) {
        return failed("error", &error);
    }
    match extender.binder.bind(target(args)).await {
        Ok(()) => Answer::new("ok", &BindingResult { error: String::new() }),
        Err(error) => failed(BindError::label(&error), &error),
    }
}

fn check(args: &BindingArgs) -> Result<(), FieldError> {
    field::subdomain("PodName", &args.pod_name)?;
    field::label("PodNamespace", &args.pod_namespace)?;
    field::uid("PodUID", &args.pod_uid)?;
    field::subdomain("Node", &args.node)
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
