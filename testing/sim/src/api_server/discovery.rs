//! The paths by which clients find out what is served.

use serde_json::{Map, Value, json};

use crate::objects::kind::{KINDS, Kind};

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

/// `GET /apis`: the groups beside the core one.
pub(super) fn groups() -> Value {
    // Each group has one kind.
    let groups = KINDS.into_iter().filter(|kind| !kind.group().is_empty()).map(|kind| {
        let version = json!({"groupVersion": kind.api_version, "version": kind.version()});
        json!({"name": kind.group(), "versions": [version], "preferredVersion": version})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": Vec::from_iter(groups)})
}

/// Whether a kind of this API version is served.
pub(super) fn is_served(api_version: &str) -> bool {
    kinds(api_version).next().is_some()
}

fn kinds(api_version: &str) -> impl Iterator<Item = Kind> {
    KINDS.into_iter().filter(move |kind| kind.api_version == api_version)
}

/// `GET /api/v1`, or that of a group.
pub(super) fn resources(api_version: &str) -> Value {
    let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let resources: Vec<Value> = kinds(api_version)
        .map(|kind| {
            let short = Some(kind.short).filter(|short| !short.is_empty());
            json!({
                "name": kind.plural, "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.name, "verbs": verbs, "shortNames": Vec::from_iter(short),
            })
        })
        .collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version,
        "resources": resources,
    })
}

/// `GET /openapi/v3`: the list of pages.
pub(super) fn openapi() -> Value {
    let pages = KINDS.map(|kind| {
        let root = kind.root();
        let page = json!({"serverRelativeURL": format!("/openapi/v3{root}")});
        (root.trim_start_matches('/').to_owned(), page)
    });
    json!({"paths": Map::from_iter(pages)})
}

/// `GET /openapi/v3/api/v1`, or that of a group, as much as `kubectl apply` needs: that PATCH takes `fieldValidation`.
/// Without it kubectl refuses to send anything.
pub(super) fn openapi_page(api_version: &str) -> Value {
    let paths: Map<String, Value> = kinds(api_version)
        .map(|kind| {
            let of = json!({"group": kind.group(), "version": kind.version(), "kind": kind.name});
            let patch = json!({
                "x-kubernetes-group-version-kind": of,
                "parameters": [{"name": "fieldValidation", "in": "query"}],
            });
            (format!("{}/{}/{{name}}", kind.root(), kind.plural), json!({"patch": patch}))
        })
        .collect();
    let info = json!({"title": "Plimsoll's stand-in", "version": VERSION});
    json!({"openapi": "3.0.0", "info": info, "paths": paths})
}
