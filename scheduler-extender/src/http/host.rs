//! Accepts requests on the read-only port only by names that are its own, and not from other web sites.
//!
//! A web site can have its own name resolve to 127.0.0.1, and so read what a browser on that machine reaches there:
//! an operator's forwarded port. The browser sends the site's name in `Host`. Nobody outside can have a name without a
//! dot, or one under `.svc`, `.cluster.local` or `.localhost`, resolve in a browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Answer;
use crate::Extender;

/// The ends of names that only the cluster, or the machine itself, resolves.
const INTERNAL: [&str; 3] = [".svc", ".cluster.local", ".localhost"];

/// Says to browsers that pages of other sites may not load an answer, as an image or a script.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Middleware: refuses a request to a foreign name, and one that a browser makes for another site's page. Such a page
/// could not read the answer, but would make this server work.
pub(super) async fn is_own(
    State(extender): State<Arc<Extender>>,
    request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(HOST).map(|host| host.to_str().unwrap_or_default());
    // Browsers always send it.
    if host.is_some_and(|host| !accepts(host, &extender.host_names)) {
        let error =
            "the name in the header Host is none of this server's; --inspect-host-names adds names";
        return Answer::failed(StatusCode::MISDIRECTED_REQUEST, &error).into_response();
    }
    if is_of_another_site(request.headers()) {
        let error = "a page of another site asks; only this server's own pages and tools may";
        return Answer::failed(StatusCode::FORBIDDEN, &error).into_response();
    }
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    answer
}

/// Whether a browser says that a page of another site asks. A link that a user follows is no such request: it has the
/// mode `navigate`.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is_navigation = text("sec-fetch-mode") == Some("navigate");
    matches!(text("sec-fetch-site"), Some("cross-site" | "same-site")) && !is_navigation
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
    fn a_page_of_another_site_may_link_here_and_ask_for_nothing() {
        let is_refused = |site: &'static str, mode: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            headers.insert("sec-fetch-mode", HeaderValue::from_static(mode));
            is_of_another_site(&headers)
        };
        for site in ["cross-site", "same-site"] {
            assert!(is_refused(site, "cors") && is_refused(site, "no-cors"), "{site}");
            assert!(!is_refused(site, "navigate"), "{site}");
        }
        assert!(!is_refused("same-origin", "cors") && !is_refused("none", "navigate"));
        // Tools send neither.
        assert!(!is_of_another_site(&HeaderMap::new()));
    }

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
