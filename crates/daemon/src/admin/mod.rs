//! The admin endpoints of a process: `/metrics`, `/livez`, `/readyz`, `/version`, `/v1/health`.

mod exposition;
mod health;
mod process;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

pub(crate) use self::exposition::text_of;
pub use self::health::{Condition, Health, Status, few};
pub use self::process::ProcessMetrics;
use crate::Context;

/// The admin endpoints over a process's context.
pub fn router(context: &Context) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/version", get(version))
        .route("/v1/health", get(health))
        .with_state(context.clone())
}

async fn metrics(State(context): State<Context>) -> Response {
    match context.metrics() {
        Ok(page) => ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// 200 unless a task died; then the process is about to end.
async fn livez(State(context): State<Context>) -> (StatusCode, String) {
    match context.tasks().dead().as_slice() {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        dead => (StatusCode::SERVICE_UNAVAILABLE, format!("[-] task died: {}\n", dead.join(", "))),
    }
}

/// 200 while every gate holds. A process that is stopping is not ready, so that Services send it nothing more.
async fn readyz(State(context): State<Context>) -> (StatusCode, String) {
    let report = context.health().report();
    if context.shutdown().is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, format!("[-] stopping\n{report}"))
    } else if context.health().is_ready() {
        (StatusCode::OK, report)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, report)
    }
}

async fn health(State(context): State<Context>) -> Json<api::health::Health> {
    context.health().refresh();
    let program = context.program();
    Json(api::health::Health {
        program: program.name.to_owned(),
        version: program.version.to_owned(),
        conditions: context.health().conditions(),
    })
}

async fn version(State(context): State<Context>) -> Json<serde_json::Value> {
    let program = context.program();
    let mut body = json!({ "name": program.name, "version": program.version });
    if let Some(git) = program.git {
        body["git"] = git.into();
    }
    Json(body)
}
