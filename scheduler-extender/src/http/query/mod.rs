//! The instant query of Prometheus' HTTP API, over the nodes' measured loads: so a descheduler moves pods by the same
//! values by which new pods are placed.
//!
//! Invariants: a node without a fresh reading is left out of the answer, or has the query's default; it is never 0.
//! Values hold measured load only: an estimate of what pods will use must not cause evictions.

mod expression;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::RawFormRejection;
use axum::extract::{RawForm, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use placement::load::{Evaluation, MetricLoad, PodToPlace};
use placement::units::NodeName;
use serde::Serialize;

use self::expression::Expression;
use super::Answer;
use crate::Extender;
use crate::view::Snapshot;

pub(super) const PATH: &str = "/api/v1/query";
/// The label of the metric.
const VERB: &str = "query";

/// The series of each node's limit ratio, from measured load: 1 is at the limit.
const LIMIT_RATIO: &str = "plimsoll_limit_ratio";

/// The largest value of an answer: clients that read fractions reject a whole answer with a larger one.
const MAX_VALUE: f64 = 1.0;

/// Bytes of a request at most.
pub(super) const MAX_BODY: usize = 8 << 10;

/// Evaluates `query` at the current time. Ignores `time` and all other fields.
pub(super) async fn query(
    State(extender): State<Arc<Extender>>,
    form: Result<RawForm, RawFormRejection>,
) -> Answer {
    let start = Instant::now();
    let decider = &extender.decider;
    let answer = match form {
        Ok(RawForm(form)) => answer(&decider.view.read(), &form, decider.now()),
        Err(error) => refused(error.body_text()),
    };
    decider.metrics.count_call(VERB, answer.outcome, start.elapsed().as_secs_f64());
    answer
}

fn answer(snapshot: &Snapshot, form: &[u8], now: Timestamp) -> Answer {
    let mut fields = form_urlencoded::parse(form);
    let Some((_, text)) = fields.find(|(name, _)| name == "query") else {
        return refused("the form has no field `query`".to_owned());
    };
    let expression = match Expression::parse(&text) {
        Ok(expression) => expression,
        Err(error) => return refused(error.to_string()),
    };
    let Some(series) = Series::named(expression.series, snapshot) else {
        return refused(unknown_series(expression.series, snapshot));
    };
    let at = now.as_millisecond() as f64 / 1000.0;
    let mut result = Vec::new();
    for (name, node) in snapshot.loads() {
        let pod = PodToPlace::ORDINARY;
        let measured = series.measured(Evaluation { policy: &snapshot.policy, node, pod, now });
        let quotient = measured.map(|measured| measured / expression.divisor);
        if let Some(value) = quotient.or(expression.default) {
            let value = (at, value.min(MAX_VALUE).to_string());
            result.push(NodeSample { metric: Labels { instance: name }, value });
        }
    }
    let data = Data { result_type: "vector", result };
    Answer::new("ok", &QueryResult { status: "success", data })
}

/// The series of an expression.
enum Series<'a> {
    /// [`LIMIT_RATIO`].
    LimitRatio,
    /// A metric of the policy.
    Metric(&'a str),
}

impl<'a> Series<'a> {
    fn named(name: &'a str, snapshot: &Snapshot) -> Option<Self> {
        match name {
            LIMIT_RATIO => Some(Self::LimitRatio),
            name => {
                let known = snapshot.policy.policy.metrics();
                known.iter().any(|metric| metric.as_str() == name).then_some(Self::Metric(name))
            }
        }
    }

    /// The measured value of a node; `None` where it is not known.
    fn measured(&self, node: Evaluation<'_, '_>) -> Option<f64> {
        match self {
            Self::LimitRatio => node.measured_limit_ratio(),
            Self::Metric(name) => {
                let limit = node.limits().find(|check| check.limit.metric.name.as_str() == *name);
                let term = || node.terms().find(|term| term.weight.metric.name.as_str() == *name);
                let load =
                    limit.map(|check| check.load).or_else(|| term().map(|term| term.load))?;
                MetricLoad::measured(load)
            }
        }
    }
}

fn unknown_series(name: &str, snapshot: &Snapshot) -> String {
    let metrics = snapshot.policy.policy.metrics();
    let names: Vec<&str> = metrics.iter().map(|metric| metric.as_str()).collect();
    format!(
        "there is no series {name}: there are {LIMIT_RATIO} and the metrics to which the policy gives a limit or a \
         weight: {}",
        names.join(", ")
    )
}

fn refused(error: String) -> Answer {
    let body = QueryFailure { status: "error", error_type: "bad_data", error };
    Answer { status: StatusCode::BAD_REQUEST, ..Answer::new("error", &body) }
}

/// Prometheus' answer to an instant query.
#[derive(Serialize)]
struct QueryResult<'a> {
    status: &'static str,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    result_type: &'static str,
    result: Vec<NodeSample<'a>>,
}

#[derive(Serialize)]
struct NodeSample<'a> {
    metric: Labels<'a>,
    /// The time in seconds, and the number as a text.
    value: (f64, String),
}

#[derive(Serialize)]
struct Labels<'a> {
    /// The node's name, where descheduler looks for it.
    instance: &'a NodeName,
}

/// Prometheus' answer to a faulty query.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueryFailure {
    status: &'static str,
    error_type: &'static str,
    error: String,
}
