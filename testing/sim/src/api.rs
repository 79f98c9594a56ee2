//! What each request does: reads and writes of the store in the API server's manner.

mod openapi;
mod table;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

pub(crate) use self::table::{Include, table};
use crate::admission::tolerate_resources;
use crate::binding::bind;
use crate::error::{Failure, json_response};
use crate::faults::Faults;
use crate::kind::{self, Kind, PODS};
use crate::merge::merge;
use crate::request::{Request, RequestLog, Verb};
use crate::selector::Selector;
use crate::store::{Store, time};
use crate::validity::{addressed, named, typed};
use crate::{strategic, watch};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The API server stand-in without its sockets.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) log: RequestLog,
}

impl Api {
    pub(crate) fn new() -> Self {
        let store = Store::new();
        Self { faults: Faults::new(store.clone()), store, log: RequestLog::default() }
    }

    /// Does what the request asks.
    pub(crate) fn serve(&self, request: &Request) -> Response<Body> {
        let outcome = match (request.kind, request.verb) {
            (Some(kind), Some(Verb::Watch)) => self.watch(kind, request),
            (Some(kind), Some(verb)) => self.act(kind, verb, request),
            (Some(_), None) => Err(Failure::new(405, "MethodNotAllowed", "method not allowed")),
            (None, _) => discover(&request.path),
        };
        outcome.unwrap_or_else(|failure| failure.response())
    }

    fn act(&self, kind: Kind, verb: Verb, request: &Request) -> Result<Response<Body>, Failure> {
        request.is_dry()?;
        match verb {
            Verb::Get | Verb::List | Verb::Watch => {}
            Verb::Patch => spoken(request, &[MERGE, STRATEGIC])?,
            // A client that does not say speaks JSON.
            Verb::Create | Verb::Update | Verb::Delete | Verb::Bind => {
                spoken(request, &[JSON, ""])?
            }
        }
        let body = match verb {
            Verb::Get => self.get(kind, request)?,
            Verb::List | Verb::Watch => self.list(kind, request)?,
            Verb::Create => return Ok(json_response(201, &self.create(kind, request)?)),
            Verb::Update => self.update(kind, request)?,
            Verb::Patch => self.patch(kind, request)?,
            Verb::Delete => self.delete(kind, request)?,
            Verb::Bind => return Ok(json_response(201, &self.bind(kind, request)?)),
        };
        Ok(json_response(200, &body))
    }

    fn get(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        if !matches!(request.subresource.as_str(), "" | "status") {
            return Err(Failure::no_such_path());
        }
        let object = self.store.get(kind, &request.namespace, &request.name);
        let object = object.ok_or_else(|| Failure::not_found(kind, &request.name))?;
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        Ok(match Include::of(request)? {
            Some(include) => table(kind, &[Value::clone(&object)], version, include),
            None => Value::clone(&object),
        })
    }

    fn list(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        let selector = selector(request)?;
        let (objects, version) = self.store.list(kind);
        let matching = objects.iter().filter(|object| selector.matches(object));
        let (items, version): (Vec<Value>, _) =
            (matching.map(|object| Value::clone(object)).collect(), version.to_string());
        if let Some(include) = Include::of(request)? {
            return Ok(table(kind, &items, &version, include));
        }
        Ok(json!({
            "kind": format!("{}List", kind.name), "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": version}, "items": items,
        }))
    }

    fn watch(&self, kind: Kind, request: &Request) -> Result<Response<Body>, Failure> {
        watch::start(&self.store, &self.faults, kind, selector(request)?, request)
    }

    fn create(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        let mut object = request.body.clone();
        sound(&object)?;
        typed(kind, &object).map_err(Failure::bad_request)?;
        addressed(kind, &object, request)?;
        let name = self.name_for(&object);
        named(kind, &name)?;
        let meta = &mut object["metadata"];
        for set_by_server in ["uid", "resourceVersion", "creationTimestamp"] {
            meta[set_by_server] = Value::Null;
        }
        if kind == PODS {
            tolerate_resources(&mut object);
            object["status"] = json!({"phase": "Pending"});
        }
        self.write(kind, request, &name, |before| match before {
            Some(_) => Err(Failure::already_exists(kind, &name)),
            None => Ok(Some(object)),
        })
    }

    /// The name that the object has or, with `generateName`, gets; else none.
    fn name_for(&self, object: &Value) -> String {
        let meta = &object["metadata"];
        match (text(&meta["name"]), text(&meta["generateName"])) {
            ("", "") => String::new(),
            ("", prefix) => format!("{prefix}{:05x}", *self.store.newest().borrow()),
            (name, _) => name.to_owned(),
        }
    }

    fn update(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        self.write(kind, request, &request.name, |before| {
            let before = before.ok_or_else(|| Failure::not_found(kind, &request.name))?;
            let after = request.body.clone();
            sound(&after)?;
            typed(kind, &after).map_err(Failure::bad_request)?;
            revise(kind, before, after, request).map(Some)
        })
    }

    fn patch(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        self.write(kind, request, &request.name, |before| {
            let before = before.ok_or_else(|| Failure::not_found(kind, &request.name))?;
            let mut after = before.clone();
            match request.content_type.as_str() {
                STRATEGIC => strategic::apply(&mut after, &request.body)?,
                _ => merge(&mut after, &request.body),
            }
            sound(&after)?;
            typed(kind, &after).map_err(|why| Failure::unusable_patch(&request.body, &why))?;
            revise(kind, before, after, request).map(Some)
        })
    }

    fn delete(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        let name = &request.name;
        self.write(kind, request, name, |before| {
            let before = before.ok_or_else(|| Failure::not_found(kind, name))?;
            let wanted = &request.body["preconditions"]["uid"];
            let found = &before["metadata"]["uid"];
            if wanted.is_string() && wanted != found {
                return Err(Failure::recreated(kind, name, text(wanted), text(found)));
            }
            Ok(None)
        })
    }

    fn bind(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        if kind != PODS {
            return Err(Failure::no_such_path());
        }
        self.write(kind, request, &request.name, |before| {
            let pod = before.ok_or_else(|| Failure::not_found(kind, &request.name))?;
            bind(pod, &request.namespace, &request.body, &time()).map(Some)
        })?;
        Ok(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201,
        }))
    }

    /// Changes the object of this name, or tells what would come of it.
    fn write(
        &self,
        kind: Kind,
        request: &Request,
        name: &str,
        change: impl FnOnce(Option<&Value>) -> Result<Option<Value>, Failure>,
    ) -> Result<Value, Failure> {
        let object = match request.is_dry()? {
            true => self.store.rehearse(kind, &request.namespace, name, change)?,
            false => self.store.change(kind, &request.namespace, name, change)?,
        };
        Ok(object.map_or(Value::Null, |object| Value::clone(&object)))
    }
}

/// Whether the body is of one of these types.
fn spoken(request: &Request, types: &[&str]) -> Result<(), Failure> {
    let named = types.iter().filter(|name| !name.is_empty()).copied();
    match types.contains(&request.content_type.as_str()) {
        true => Ok(()),
        false => Err(Failure::unknown_format(&request.content_type, &named.collect::<Vec<_>>())),
    }
}

fn selector(request: &Request) -> Result<Selector, Failure> {
    let namespace = Some(request.namespace.clone()).filter(|namespace| !namespace.is_empty());
    let fields = request.parameter("fieldSelector");
    Selector::new(namespace, fields, request.parameter("labelSelector"))
}

/// Checks a write's preconditions, and keeps apart what `/status` owns and what it does not.
fn revise(
    kind: Kind,
    before: &Value,
    mut after: Value,
    request: &Request,
) -> Result<Value, Failure> {
    addressed(kind, &after, request)?;
    check_uid(kind, before, &after["metadata"]["uid"])?;
    let version = &after["metadata"]["resourceVersion"];
    if version.is_string() && *version != before["metadata"]["resourceVersion"] {
        return Err(Failure::modified(kind, &request.name));
    }
    let kept = match request.subresource.as_str() {
        "" => "status",
        "status" => "spec",
        _ => return Err(Failure::no_such_path()),
    };
    if before[kept].is_null() {
        merge(&mut after, &json!({ kept: null }));
    } else {
        after[kept] = before[kept].clone();
    }
    // What is put in place of the server's own fields does not count as a change.
    for field in ["uid", "resourceVersion", "creationTimestamp", "name", "namespace"] {
        if !before["metadata"][field].is_null() {
            after["metadata"][field] = before["metadata"][field].clone();
        }
    }
    Ok(after)
}

/// Everything below relies on these being objects.
pub(crate) fn sound(object: &Value) -> Result<(), Failure> {
    let optional = ["spec", "status"].map(|field| &object[field]);
    let sound = object["metadata"].is_object()
        && optional.iter().all(|part| part.is_null() || part.is_object());
    sound.then_some(()).ok_or_else(|| Failure::bad_request("the body is no object with metadata"))
}

fn check_uid(kind: Kind, object: &Value, wanted: &Value) -> Result<(), Failure> {
    let meta = &object["metadata"];
    let text = |value: &Value| text(value).to_owned();
    if !wanted.is_string() || *wanted == meta["uid"] {
        return Ok(());
    }
    let (name, namespace) = (text(&meta["name"]), text(&meta["namespace"]));
    let key = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
    let (wanted, found) = (text(wanted), text(&meta["uid"]));
    Err(Failure::other_uid(kind, &key, &name, &wanted, &found))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The paths by which clients find out what is served.
fn discover(path: &str) -> Result<Response<Body>, Failure> {
    let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let body = match segments.as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64",
        })),
        ["healthz" | "livez" | "readyz"] => return Ok(Response::new(Body::from("ok"))),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["api", version] => kind::resources("", version),
        ["apis"] => Some(kind::groups()),
        ["apis", group, version] => kind::resources(group, version),
        ["openapi", "v3"] => Some(openapi::index()),
        ["openapi", "v3", path @ ..] => openapi::page(&path.join("/")),
        _ => None,
    };
    let body = body.ok_or_else(Failure::no_such_path)?;
    Ok(json_response(200, &body))
}
