//! Requests to the extender over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body, Error};

use crate::cluster_access::{Cluster, Failure};

/// The largest answer, in bytes: 5,000 nodes of 8 GPUs with 20 pods each take some 70 MiB.
const MAX_BYTES: u64 = 128 << 20;

/// Time for the whole answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Gets `path` of the cluster's extender.
///
/// # Errors
///
/// If the extender does not answer, or with an error.
pub(crate) fn get<T: DeserializeOwned>(cluster: &Cluster, path: &str) -> Result<T> {
    let url = format!("{}{path}", cluster.extender()?);
    parsed(&url, &text_of(&url, agent().get(&url).call(), hint(cluster))?)
}

/// Posts a body to the cluster's extender.
///
/// # Errors
///
/// As for [`get`].
pub(crate) fn post<T: DeserializeOwned>(
    cluster: &Cluster,
    path: &str,
    request: &impl Serialize,
) -> Result<T> {
    let url = format!("{}{path}", cluster.extender()?);
    let body = serde_json::to_string(request)?;
    let answer = agent().post(&url).header("content-type", "application/json").send(body);
    parsed(&url, &text_of(&url, answer, hint(cluster))?)
}

/// The text at an address.
///
/// # Errors
///
/// If nothing answers there, or with an error.
pub(crate) fn text(url: &str) -> Result<String> {
    text_of(url, agent().get(url).call(), "")
}

fn agent() -> Agent {
    let config = Agent::config_builder().timeout_global(Some(TIMEOUT)).proxy(None);
    config.http_status_as_error(false).build().new_agent()
}

/// What to do if the extender does not answer.
fn hint(cluster: &Cluster) -> &'static str {
    if cluster.has_url() {
        "; without --extender and PLIMSOLL_EXTENDER, kubectl finds the extender"
    } else {
        "; `kubectl plimsoll doctor` tells whether the extender runs"
    }
}

fn text_of(url: &str, answer: Result<Response<Body>, Error>, hint: &str) -> Result<String> {
    let failed = format!("cannot read {url}");
    let mut answered = answer.with_context(|| format!("{failed}{hint}"))?;
    let body = answered.body_mut().with_config().limit(MAX_BYTES).read_to_string();
    let text = body.with_context(|| failed.clone())?;
    let status = answered.status();
    if status.is_success() {
        return Ok(text);
    }
    match serde_json::from_str::<String>(&text) {
        // The extender's own error says what to do.
        Ok(error) => bail!("{error}"),
        Err(_) if status == 404 && url.contains("/v1/") => {
            let why = "an extender before this command's version has no such answer";
            Err(Failure::NotFound(format!("{failed}: {status}; {why}")).into())
        }
        Err(_) => bail!("{failed}: {status}"),
    }
}

fn parsed<T: DeserializeOwned>(url: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).with_context(|| format!("{url}: not the extender's answer"))
}
