//! `/ui/`: the page. Its files are part of the program; it gets everything else from `/v1`, `/explain` and `/shadow`.
//!
//! Invariant: the page runs no script but the files of this server, and cannot be framed. It has no link to another
//! site. It can be read where it is served; it changes nothing.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use tower_http::compression::CompressionLayer;

/// The content security policy. The hash is that of the import map in `index.html`.
const POLICY: &str = concat!(
    "default-src 'none'; script-src 'self' 'sha256-",
    "R0jCtL1dLTVHlZVietHJQyhLb0Ugs+H67/L89QcQ3LI=",
    "'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'"
);

/// The headers of every file.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    // A newer program has other files.
    (CACHE_CONTROL, "no-cache"),
];

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_bytes!(concat!("../../ui/", $path)) as &[u8])),*]
    };
}

/// The files by their path below `/ui/`.
static FILES: [(&str, &[u8]); 15] = files![
    "app.js",
    "elements.js",
    "heatmap.js",
    "index.html",
    "measures.js",
    "nodes.js",
    "pods.js",
    "policy.js",
    "state.js",
    "style.css",
    "vendor/LICENSE-htm",
    "vendor/LICENSE-preact",
    "vendor/hooks.mjs",
    "vendor/htm.mjs",
    "vendor/preact.mjs",
];

/// The page's address.
pub(super) const PATH: &str = "/ui/";

/// The routes. Redirects are relative: the page may lie below another path, as that of `plimsoll ui` does.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(async || Redirect::temporary("ui/")))
        .route("/ui", get(async || Redirect::permanent("ui/")))
        .route(PATH, get(async || file("index.html")))
        .route("/ui/{*path}", get(async |Path(path): Path<String>| file(&path)))
        .layer(CompressionLayer::new())
}

fn file(path: &str) -> Response {
    let Some((path, content)) = FILES.iter().find(|(known, _)| *known == path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let kind = match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    (HEADERS, [(CONTENT_TYPE, kind)], *content).into_response()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn add_files(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                add_files(&entry.path(), &format!("{name}/"), found);
            } else if !name.ends_with(".json") {
                found.push(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let mut found = Vec::new();
        add_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("ui"), "", &mut found);
        found.sort_unstable();
        assert_eq!(FILES.map(|(path, _)| path).to_vec(), found);
    }
}
