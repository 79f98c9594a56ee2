//! The least that axum can do: two routes that serve bytes. What the exporter's scrape rate is measured against.
//!
//! `bare ADDRESS STATISTICS-FILE METRICS-FILE`

use std::env::args;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = args().collect();
    let [_, address, statistics, metrics] = &arguments[..] else {
        anyhow::bail!("usage: bare ADDRESS STATISTICS-FILE METRICS-FILE");
    };
    let statistics = Bytes::from(std::fs::read(statistics)?);
    let metrics = Bytes::from(std::fs::read(metrics)?);
    let serve = |kind: &'static str, bytes: Bytes| {
        get(move || {
            let answer = ([(CONTENT_TYPE, kind)], bytes.clone());
            async { answer }
        })
    };
    let router = Router::new()
        .route("/statistics", serve("application/json", statistics))
        .route("/metrics", serve("text/plain; version=0.0.4; charset=utf-8", metrics));
    axum::serve(tokio::net::TcpListener::bind(address).await?, router).await?;
    Ok(())
}
