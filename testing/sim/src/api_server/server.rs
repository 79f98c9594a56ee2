//! The sockets: HTTP/1.1 on a free port of the loopback.
//!
//! It uses hyper instead of axum's `serve`, because a hyper service can close a connection without an answer.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::faults::Fault;
use super::request::Request;
use super::{Api, failure_response};

/// Longest request body, in bytes: the API server's own limit.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// Makes hyper close the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed without an answer, as planned")]
struct NoAnswer;

/// A listener on a free port.
pub(crate) async fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves until it is dropped, which closes the connections.
pub(crate) async fn serve(listener: TcpListener, api: Api) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(connection(stream, api.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, api: Api) {
    let service = service_fn(|request| answer(&api, request));
    // An error is a client that has closed the connection, or a planned fault.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(api: &Api, request: hyper::Request<Incoming>) -> Result<Response<Body>, NoAnswer> {
    let (parts, body) = request.into_parts();
    let body: Bytes = to_bytes(Body::new(body), MAX_BODY).await.map_err(|_| NoAnswer)?;
    let request = Request::new(&parts, &body);
    let fault = api.faults.take(&request);
    let hang = (fault == Some(Fault::Hang)).then(|| api.faults.hang());
    api.log.push(request.clone());
    if let Some(hang) = hang {
        hang.await;
    }
    match fault {
        None | Some(Fault::Hang) => {}
        Some(Fault::Answer(failure)) => return Ok(failure_response(&failure)),
        Some(Fault::DropRequest) => return Err(NoAnswer),
        Some(Fault::DropReply) => {
            api.serve(&request);
            return Err(NoAnswer);
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
    }
    Ok(api.serve(&request))
}
