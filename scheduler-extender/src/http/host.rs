//! Accepts requests on the read-only port only by names that are its own, and not from other web sites.
//!
//! A web site can have a name resolve to 127.0.0.1, and so read what a browser on that machine reaches there: an
//! operator's forwarded port. The browser sends that name in `Host`. In an operator's network others can answer for
//! names without a dot (LLMNR, search domains) and under `.local` (mDNS). So through a forwarded port, whose
//! connections come from the pod's own address 127.0.0.1, no name of the cluster is accepted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use daemon::http::Client;

use super::{Answer, page};
use crate::Extender;

/// What clusters add to the name of a Service by default.
const CLUSTER_DOMAIN: &str = ".cluster.local";

/// Says to browsers that pages of other sites may not load an answer, as an image or a script.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The names by which requests may come.
#[derive(Debug)]
pub struct HostNames {
    /// From anywhere.
    configured: Vec<String>,
    /// From other pods.
    of_service: Vec<String>,
}

impl HostNames {
    /// `service` is the whole name of this program's Service, `NAME.NAMESPACE.svc`.
    #[must_use]
    pub fn new(service: &impl AsRef<str>, configured: &[String]) -> Self {
        let name = service.as_ref();
        let mut of_service: Vec<String> =
            name.match_indices('.').map(|(end, _)| name[..end].to_owned()).collect();
        of_service.extend([name.to_owned(), format!("{name}{CLUSTER_DOMAIN}")]);
        Self { configured: configured.to_vec(), of_service }
    }

    fn accepts(&self, host: &str, is_forwarded: bool) -> bool {
        let Some(name) = name_of(host) else { return false };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        // Browsers resolve names under `.localhost` themselves.
        let is_local = name == "localhost" || name.ends_with(".localhost");
        address.is_ok()
            || is_local
            || has(&self.configured, &name)
            || !is_forwarded && has(&self.of_service, &name)
    }

    /// Whether a page at `origin` is one of this server, which the browser reached as `host`.
    fn is_origin(&self, origin: &str, host: Option<&str>) -> bool {
        let Some((_, authority)) = origin.split_once("://") else { return false };
        let is_configured = name_of(authority).is_some_and(|name| has(&self.configured, &name));
        host.is_some_and(|host| authority.eq_ignore_ascii_case(host)) || is_configured
    }
}

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// The name or address of a header, without the port.
fn name_of(host: &str) -> Option<String> {
    let authority = host.parse::<Authority>().ok()?;
    Some(authority.host().trim_end_matches('.').to_ascii_lowercase())
}

/// Middleware: refuses a request to a foreign name, and one that a browser makes for another site's page. Such a page
/// could not read the answer, but would make this server work.
pub(super) async fn is_own(
    State(extender): State<Arc<Extender>>,
    request: Request,
    next: Next,
) -> Response {
    let client = request.extensions().get::<Client>();
    let is_forwarded = client.is_some_and(|client| client.0.is_loopback());
    let (status, error) = match check(&request, &extender.host_names, is_forwarded) {
        Ok(()) => {
            let mut answer = next.run(request).await;
            let headers = answer.headers_mut();
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
            return answer;
        }
        Err(Foreign::Host) => (
            StatusCode::MISDIRECTED_REQUEST,
            "the name in the header Host is none of this server's here: ask by its address, or add the name to \
             --inspect-host-names",
        ),
        Err(Foreign::Site) => (
            StatusCode::FORBIDDEN,
            "a page of another site asks; only this server's own pages and tools may",
        ),
    };
    Answer::failed(status, &error).into_response()
}

/// What of a request is foreign.
#[derive(Debug, PartialEq, Eq)]
enum Foreign {
    Host,
    Site,
}

fn check(request: &Request, names: &HostNames, is_forwarded: bool) -> Result<(), Foreign> {
    let host = text(request.headers(), HOST);
    // Browsers always send it.
    if host.is_some_and(|host| !names.accepts(host, is_forwarded)) {
        return Err(Foreign::Host);
    }
    let origin = text(request.headers(), ORIGIN);
    if origin.is_some_and(|origin| !names.is_origin(origin, host)) {
        return Err(Foreign::Site);
    }
    if is_of_another_site(request.headers()) && !opens_the_page(request) {
        return Err(Foreign::Site);
    }
    Ok(())
}

/// A header; one that is no text is as an empty one.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Whether a browser says that a page of another site asks: of another name, or of another port of the same one. Tools
/// do not send this header, and `none` is an address that a user typed.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = text(headers, HeaderName::from_static("sec-fetch-site"));
    site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

/// Whether a browser opens the page itself, as by a link of another site: not in a frame, and with nothing to do.
fn opens_the_page(request: &Request) -> bool {
    let kind = text(request.headers(), HeaderName::from_static("sec-fetch-dest"));
    request.method() == Method::GET
        && request.uri().path() == page::PATH
        && kind == Some("document")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const OWN: &str = "127.0.0.1:19107";

    fn names() -> HostNames {
        HostNames::new(&"scheduler-extender.plimsoll.svc", &["plimsoll.example.com".to_owned()])
    }

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
        let request = Request::builder().method(method).uri(path).header(HOST, OWN);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(Body::empty()).unwrap()
    }

    fn outcome(method: &str, path: &str, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        check(&request(method, path, headers), &names(), true)
    }

    proptest! {
        #[test]
        fn another_sites_page_opens_the_page_and_gets_nothing_else(
            method in select(vec!["GET", "POST", "HEAD", "PUT", "OPTIONS"]),
            path in select(vec!["/", "/ui", "/ui/", "/ui/app.js", "/explain", "/v1/moves", "/version"]),
            site in select(vec!["cross-site", "same-site", "Cross-Site", "", "none", "same-origin"]),
            mode in select(vec!["navigate", "cors", "no-cors"]),
            kind in select(vec!["document", "iframe", "frame", "object", "empty", "script"]),
        ) {
            let headers = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", kind)];
            let is_own = matches!(site, "none" | "same-origin");
            let is_link = (method, path, kind) == ("GET", "/ui/", "document");
            prop_assert_eq!(outcome(method, path, &headers).is_ok(), is_own || is_link);
        }
    }

    #[test]
    fn a_foreign_origin_is_refused_whatever_else_the_browser_says() {
        for foreign in [
            "null",
            "",
            "https://evil.example",
            "http://127.0.0.1:8000",
            "http://127.0.0.1",
            "http://localhost:19107",
            "127.0.0.1:19107",
            "http://plimsoll.example.com.evil.org",
        ] {
            for path in ["/explain", "/ui/"] {
                let headers = [("origin", foreign), ("sec-fetch-site", "same-origin")];
                assert_eq!(outcome("POST", path, &headers), Err(Foreign::Site), "{foreign}");
                assert_eq!(outcome("GET", path, &headers[..1]), Err(Foreign::Site), "{foreign}");
            }
        }
        // An Ingress may send another Host on than the one that the browser knows.
        for own in [
            "http://127.0.0.1:19107",
            "https://plimsoll.example.com",
            "https://Plimsoll.example.com:8443",
        ] {
            assert_eq!(outcome("POST", "/explain", &[("origin", own)]), Ok(()), "{own}");
        }
        assert_eq!(outcome("POST", "/explain", &[]), Ok(()), "tools send none");
    }

    #[test]
    fn names_that_others_can_answer_for_are_accepted_only_from_pods_and_only_the_services_own() {
        let names = names();
        for own in [
            "127.0.0.1:19107",
            "[::1]:19107",
            "10.0.0.7",
            "localhost:8080",
            "LOCALHOST",
            "a.localhost",
            "plimsoll.example.com",
            "Plimsoll.Example.com:443",
        ] {
            assert!(names.accepts(own, true) && names.accepts(own, false), "{own}");
        }
        for of_service in [
            "scheduler-extender:19107",
            "scheduler-extender.plimsoll",
            "scheduler-extender.plimsoll.svc:19107",
            "scheduler-extender.plimsoll.svc.cluster.local.",
        ] {
            assert!(
                !names.accepts(of_service, true) && names.accepts(of_service, false),
                "{of_service}"
            );
        }
        for foreign in [
            "wpad",
            "evil.cluster.local",
            "evil.svc",
            "evil.local",
            "scheduler-extender.local",
            "cluster.local",
            "scheduler-extender.plimsoll.svc.evil.org",
            "evil.example.com",
            "plimsoll.example.com.evil.org",
            "127.0.0.1.evil.org:19107",
            "localhost.evil.org",
            "svc",
            "",
            "a b.c",
            ".",
        ] {
            assert!(!names.accepts(foreign, true) && !names.accepts(foreign, false), "{foreign}");
        }
    }
}
