//! Accepts requests on the read-only port only by names that are its own, and not from other web sites.
//!
//! A web site can have a name resolve to 127.0.0.1, and so read what a browser on that machine reaches there: an
//! operator's forwarded port. The browser sends that name in `Host`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use daemon::http::Client;

use super::{Answer, page};
use crate::Extender;
use crate::host_names::HostNames;

/// Says to browsers that pages of other sites may not load an answer, as an image or a script.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

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
}
