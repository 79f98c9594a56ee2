//! The sockets: HTTP/1.1 on a free port of the loopback.
//!
//! hyper is used below axum's `serve`, since only a service that may fail can close a connection
//! without an answer.

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

use crate::api::Api;
use crate::faults::Fault;
use crate::request::Request;

/// Largest request body taken: the API server's own limit.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// The answer is withheld, and the connection closes.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed without an answer, as planned")]
struct Withheld;

/// A listener on a free port.
pub(crate) async fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves until dropped; the connections end with it.
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
    // An error here is a client that left, or an answer that was withheld.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(api: &Api, request: hyper::Request<Incoming>) -> Result<Response<Body>, Withheld> {
    let (parts, body) = request.into_parts();
    let body: Bytes = to_bytes(Body::new(body), MAX_BODY).await.map_err(|_| Withheld)?;
    let request = Request::new(&parts, &body);
    let fault = api.faults.take(&request);
    let hang = (fault == Some(Fault::Hang)).then(|| api.faults.hang());
    api.log.push(request.clone());
    if let Some(hang) = hang {
        hang.await;
    }
    match fault {
        None | Some(Fault::Hang) => {}
        Some(Fault::Answer(failure)) => return Ok(failure.response()),
        Some(Fault::DropRequest) => return Err(Withheld),
        Some(Fault::DropReply) => {
            api.serve(&request);
            return Err(Withheld);
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
    }
    Ok(api.serve(&request))
}
