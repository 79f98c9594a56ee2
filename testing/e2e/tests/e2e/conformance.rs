//! What the API stand-in of the other tests is built on holds for this API server too.

use anyhow::{Result, ensure};
use conformance::{FACTS, Later, Transport};
use kube::Client;

use crate::world::{NAMESPACE, World};
use crate::{Fact, anywhere};

pub(crate) const FACTS_OF_THE_API: &[Fact] =
    &[anywhere("this_api_server_and_the_stand_in_answer_alike", answers_alike)];

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
            let answer = self.0.send(request).await.map_err(|error| error.to_string())?;
            let code = answer.status().as_u16();
            let body =
                answer.into_body().collect_bytes().await.map_err(|error| error.to_string())?;
            Ok((code, String::from_utf8(body.into()).map_err(|error| error.to_string())?))
        })
    }
}

fn answers_alike(world: &World) -> Result<()> {
    let server = Kube(world.client());
    let mut refuted = Vec::new();
    for fact in FACTS {
        let checked =
            world.wait(async { Ok::<_, anyhow::Error>(fact.check(&server, NAMESPACE).await) })?;
        refuted.extend(checked.err().map(|why| format!("{}: {why}", fact.name)));
    }
    ensure!(refuted.is_empty(), "{}", refuted.join("\n"));
    Ok(())
}
