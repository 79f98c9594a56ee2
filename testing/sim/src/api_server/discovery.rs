//! The paths by which clients find out what is served.

use serde_json::{Map, Value, json};

use crate::objects::kind::KINDS;

/// What a real API server of this release answers; programs read the minor version.
const VERSION: &str = "v1.36.2";

/// `GET /version`.
pub(super) fn version() -> Value {
    json!({"major": "1", "minor": "36", "gitVersion": VERSION, "platform": "linux/amd64"})
}

/// `GET /api`.
pub(super) fn versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"]})
}

/// `GET /apis`: there are no groups but the core one.
pub(super) fn groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
}

/// `GET /api/v1`.
pub(super) fn resources() -> Value {
    let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let resources = KINDS.map(|kind| {
        json!({
            "name": kind.plural, "singularName": "", "namespaced": kind.namespaced,
            "kind": kind.name, "verbs": verbs, "shortNames": [kind.short],
        })
    });
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": resources,
    })
}

/// `GET /openapi/v3`: the list of pages.
pub(super) fn openapi() -> Value {
    json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}})
}

/// `GET /openapi/v3/api/v1`, as much as `kubectl apply` needs: that PATCH takes `fieldValidation`. Without it kubectl
/// refuses to send anything.
pub(super) fn openapi_core() -> Value {
    let paths: Map<String, Value> = KINDS
        .iter()
        .map(|kind| {
            let of = json!({"group": "", "version": "v1", "kind": kind.name});
            let patch = json!({
                "x-kubernetes-group-version-kind": of,
                "parameters": [{"name": "fieldValidation", "in": "query"}],
            });
            (format!("/api/v1/{}/{{name}}", kind.plural), json!({"patch": patch}))
        })
        .collect();
    let info = json!({"title": "Plimsoll's stand-in", "version": VERSION});
    json!({"openapi": "3.0.0", "info": info, "paths": paths})
}
