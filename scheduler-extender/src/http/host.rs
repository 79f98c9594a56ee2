//! Accepts requests on the read-only port only by names that are its own.
//!
//! A web site can have its own name resolve to 127.0.0.1, and so read what a browser on that machine reaches there:
//! an operator's forwarded port. The browser sends the site's name in `Host`. Nobody outside can have a name without a
//! dot, or one under `.svc`, `.cluster.local` or `.localhost`, resolve in a browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Answer;
use crate::Extender;

/// The ends of names that only the cluster, or the machine itself, resolves.
const INTERNAL: [&str; 3] = [".svc", ".cluster.local", ".localhost"];

/// Middleware: refuses a request to a foreign name.
pub(super) async fn is_own(
    State(extender): State<Arc<Extender>>,
    request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
    match host {
        Some(host) if !accepts(host, &extender.host_names) => {
            let error = "the name in the header Host is none of this server's; --inspect-host-names adds names";
            Answer::failed(StatusCode::MISDIRECTED_REQUEST, &error).into_response()
        }
        // Browsers always send it.
        Some(_) | None => next.run(request).await,
    }
}

fn accepts(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok()
        || !name.contains('.')
        || INTERNAL.iter().any(|end| name.ends_with(end))
        || names.iter().any(|own| own.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_internal_names_and_configured_names_are_accepted() {
        let names = ["plimsoll.example.com".to_owned()];
        for own in [
            "127.0.0.1:19107",
            "[::1]:19107",
            "10.0.0.7",
            "localhost:8080",
            "LOCALHOST",
            "scheduler-extender:19107",
            "scheduler-extender.plimsoll.svc:19107",
            "scheduler-extender.plimsoll.svc.cluster.local.",
            "a.localhost",
            "plimsoll.example.com",
            "Plimsoll.Example.com:443",
        ] {
            assert!(accepts(own, &names), "{own}");
        }
        for foreign in [
            "evil.example.com",
            "plimsoll.example.com.evil.org",
            "127.0.0.1.evil.org:19107",
            "xsvc.evil",
            "",
            "a b.c",
        ] {
            assert!(!accepts(foreign, &names), "{foreign}");
        }
    }
}
