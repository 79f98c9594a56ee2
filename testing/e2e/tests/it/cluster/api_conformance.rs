//! The conformance facts about an API server, checked on this one. Other tests check them on the stand-in.

use anyhow::{Result, ensure};
use conformance::{Later, Transport};
use kube::Client;

use crate::env::{NAMESPACE, TestEnv};
use crate::{Fact, on_any_cluster};

pub(crate) const FACTS: &[Fact] =
    &[on_any_cluster("this_api_server_and_the_stand_in_answer_alike", answers_alike)
        .takes(25)
        .smoke()];

/// A connection, for the suite.
pub(crate) struct Kube(pub(crate) Client);

impl Transport for Kube {
    fn call<'a>(
        &'a self,
        method: &'static str,
        path: &'a str,
        content_type: &'static str,
        body: Option<String>,
    ) -> Later<'a, Result<(u16, String), String>> {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body.unwrap_or_default().into_bytes().into());
        Box::pin(async move {
            let request = request.map_err(|error| error.to_string())?;
            let response = self.0.send(request).await.map_err(|error| error.to_string())?;
            let code = response.status().as_u16();
            let body =
                response.into_body().collect_bytes().await.map_err(|error| error.to_string())?;
            Ok((code, String::from_utf8(body.into()).map_err(|error| error.to_string())?))
        })
    }
}

fn answers_alike(env: &TestEnv) -> Result<()> {
    // The connection of the other tests tries again, for minutes, where a budget refuses an eviction (429).
    let mut config = env.config();
    config.default_retry = false;
    let server = Kube(env.client_of(config)?);
    let mut refuted = Vec::new();
    for fact in conformance::FACTS {
        let checked =
            env.block_on(async { Ok::<_, anyhow::Error>(fact.check(&server, NAMESPACE).await) })?;
        refuted.extend(checked.err().map(|why| format!("{}: {why}", fact.name)));
    }
    ensure!(refuted.is_empty(), "{}", refuted.join("\n"));
    Ok(())
}
