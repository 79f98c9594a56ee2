//! What is so of every Kubernetes API server is so of the stand-in.
//!
//! `CONFORMANCE_URL` names another server to try, e.g. that of a `kubectl proxy`.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use conformance::{FACTS, Later, Transport};
use reqwest::{Client, Method};
use sim::Sim;

struct Http {
    client: Client,
    url: String,
}

impl Transport for Http {
    fn call<'a>(
        &'a self,
        method: &'static str,
        path: &'a str,
        content_type: &'static str,
        body: Option<String>,
    ) -> Later<'a, Result<(u16, String), String>> {
        let method: Method = method.parse().unwrap();
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = request.header("content-type", content_type).body(body.unwrap_or_default());
        Box::pin(async {
            let answer = request.send().await.map_err(|error| error.to_string())?;
            let code = answer.status().as_u16();
            Ok((code, answer.text().await.map_err(|error| error.to_string())?))
        })
    }
}

#[tokio::test]
async fn every_fact_of_an_api_server_holds() {
    let sim = Sim::start().await.unwrap();
    let url = std::env::var("CONFORMANCE_URL").unwrap_or_else(|_| sim.url());
    let server = Http { client: Client::builder().no_proxy().build().unwrap(), url };
    let mut refuted = Vec::new();
    for fact in FACTS {
        if let Err(why) = fact.check(&server, "default").await {
            refuted.push(format!("{}: {why}", fact.name));
        }
    }
    assert!(refuted.is_empty(), "{}", refuted.join("\n"));
}
