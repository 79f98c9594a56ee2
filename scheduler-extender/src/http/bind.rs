//! Bind: the one verb that waits, for the API server.
//!
//! Invariant: the fields of a request have the form and length that Kubernetes gives them before anything is done with
//! them: they become parts of a path, and are kept while a binding is under way.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use placement::names::limits;

use super::Answer;
use crate::Extender;
use crate::binder::{BindError, Target};
use crate::view::GpuPodId;
use crate::wire::{self, BindingArgs, BindingResult};

const BIND: &str = "gpushare-scheduler/bind";

/// Bytes of a request: its four fields take 632, and six times that where each character is escaped.
pub(super) const MAX_BODY: usize = 16 << 10;

/// A field that holds no name of Kubernetes.
#[derive(Debug, thiserror::Error)]
#[error("{field} must be {form} of 1 to {limit} bytes; this one has {length}")]
struct FieldError {
    field: &'static str,
    form: &'static str,
    limit: usize,
    length: usize,
}

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
    if let Err(error) = check(&args) {
        return failed("error", &error);
    }
    match extender.binder.bind(target(args)).await {
        Ok(()) => Answer::new("ok", &BindingResult { error: String::new() }),
        Err(error) => failed(BindError::label(&error), &error),
    }
}

fn check(args: &BindingArgs) -> Result<(), FieldError> {
    let label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let subdomain = |b: u8| label(b) || b == b'.';
    let (name, domain) = ("a DNS label", "a DNS subdomain");
    field("PodName", domain, &args.pod_name, limits::NAME, subdomain)?;
    field("PodNamespace", name, &args.pod_namespace, limits::LABEL, label)?;
    field("PodUID", "a UID", &args.pod_uid, limits::UID, |b| b.is_ascii_graphic())?;
    field("Node", domain, &args.node, limits::NAME, subdomain)
}

fn field(
    field: &'static str,
    form: &'static str,
    text: &str,
    limit: usize,
    is_legal: impl Fn(u8) -> bool,
) -> Result<(), FieldError> {
    let length = text.len();
    match (1..=limit).contains(&length) && text.bytes().all(is_legal) {
        true => Ok(()),
        false => Err(FieldError { field, form, limit, length }),
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
