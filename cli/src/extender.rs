//! Requests to the extender over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body, Error};

/// The largest answer, in bytes: 5,000 nodes of 8 cards with 20 pods each take some 70 MiB.
const MAX_BYTES: u64 = 128 << 20;

/// Time for the whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Gets `path`. `command` is the command whose `--help` shows how to reach the extender.
///
/// # Errors
///
/// If the extender does not answer, or with an error.
pub(crate) fn get<T: DeserializeOwned>(extender: &str, path: &str, command: &str) -> Result<T> {
    let url = format!("{extender}{path}");
    let answer = agent().get(&url).call();
    read(&url, answer, command)
}

/// Posts a body. `command` is as in [`get`].
///
/// # Errors
///
/// As for [`get`].
pub(crate) fn post<T: DeserializeOwned>(
    extender: &str,
    path: &str,
    request: &impl Serialize,
    command: &str,
) -> Result<T> {
    let url = format!("{extender}{path}");
    let body = serde_json::to_string(request)?;
    let answer = agent().post(&url).header("content-type", "application/json").send(body);
    read(&url, answer, command)
}

fn agent() -> Agent {
    let config = Agent::config_builder().timeout_global(Some(TIMEOUT)).proxy(None);
    config.http_status_as_error(false).build().new_agent()
}

fn read<T: DeserializeOwned>(
    url: &str,
    answer: Result<Response<Body>, Error>,
    command: &str,
) -> Result<T> {
    let hint =
        format!("cannot read {url} (`plimsoll {command} --help` shows how to reach the extender)");
    let mut answer = answer.with_context(|| hint.clone())?;
    let text = answer.body_mut().with_config().limit(MAX_BYTES).read_to_string();
    let text = text.with_context(|| url.to_owned())?;
    if !answer.status().is_success() {
        match serde_json::from_str::<String>(&text) {
            // The extender's own error says what to do.
            Ok(error) => bail!("{error}"),
            Err(_) => bail!("{hint}: {}", answer.status()),
        }
    }
    serde_json::from_str(&text).with_context(|| format!("{url}: not the extender's answer"))
}
