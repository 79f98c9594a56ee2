//! As much of OpenAPI as `kubectl apply` asks for: that the server itself checks fields. (It does not, here;
//! without these pages kubectl would rather apply nothing.)

use serde_json::{Map, Value, json};

use crate::kind::KINDS;

/// `GET /openapi/v3`: the pages that there are.
pub(super) fn index() -> Value {
    let page = |version: String| {
        let path = path(&version);
        let url = format!("/openapi/v3/{path}");
        (path, json!({"serverRelativeURL": url}))
    };
    let pages: Map<String, Value> = KINDS.iter().map(|kind| page(kind.api_version())).collect();
    json!({"paths": pages})
}

/// `GET /openapi/v3/<path>`: that PATCH takes `fieldValidation`, for every kind there.
pub(super) fn page(wanted: &str) -> Option<Value> {
    let here = KINDS.iter().filter(|kind| path(&kind.api_version()) == wanted);
    let paths: Map<String, Value> = here
        .map(|kind| {
            let of = json!({"group": kind.group, "version": kind.version, "kind": kind.name});
            let patch = json!({
                "x-kubernetes-group-version-kind": of,
                "parameters": [{"name": "fieldValidation", "in": "query"}],
            });
            (format!("/{wanted}/{}/{{name}}", kind.plural), json!({"patch": patch}))
        })
        .collect();
    let info = json!({"title": "Plimsoll's stand-in", "version": "v1.36.2"});
    (!paths.is_empty()).then(|| json!({"openapi": "3.0.0", "info": info, "paths": paths}))
}

fn path(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("apis/{api_version}")
    } else {
        format!("api/{api_version}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_the_index_is_there() {
        let index = index();
        let pages = index["paths"].as_object().unwrap();
        assert!(pages.keys().all(|path| page(path).is_some()), "{index}");
        assert!(pages.contains_key("api/v1") && page("api/v9").is_none());
    }
}
