//! The API server's stand-in: what each request reads from the store or changes in it, in the API server's manner and
//! words. [`server`] has the sockets.

mod admission;
pub(crate) mod binding;
mod eviction;
pub(crate) mod faults;
mod pages;
mod patch;
pub(crate) mod request;
pub(crate) mod server;
mod watch;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::json::{name, text, uid};
use crate::objects::failure::Failure;
use crate::objects::kind::{DISRUPTION_BUDGETS, Kind, PODS};
use crate::objects::merge::merge;
use crate::objects::selector::Selector;
use crate::objects::store::{Store, time};
use crate::objects::validation::{
    check_annotations, check_name, check_path, check_shape, check_type, check_uid, check_version,
};
use faults::Faults;
use pages::Pages;
use request::{Request, RequestLog, Verb};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The API server without its sockets. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) log: RequestLog,
    /// Kinds that are not known.
    pub(crate) unserved: Arc<Mutex<BTreeSet<Kind>>>,
    /// Whether the feature WatchList is off.
    pub(crate) refuses_streamed_lists: Arc<AtomicBool>,
    pages: Pages,
}

impl Api {
    pub(crate) fn new() -> Self {
        let store = Store::new();
        Self {
            faults: Faults::new(store.clone()),
            pages: Pages::new(store.clone()),
            store,
            log: RequestLog::default(),
            unserved: Arc::default(),
            refuses_streamed_lists: Arc::default(),
        }
    }

    /// Answers a request.
    fn serve(&self, request: &Request) -> Response<Body> {
        let outcome = match (request.kind, request.verb) {
            (Some(kind), _) if self.is_unserved(kind) => Err(Failure::no_such_path()),
            (Some(kind), Some(Verb::Watch)) => self.watch(kind, request),
            (Some(kind), Some(verb)) => self.act(kind, verb, request),
            (Some(_), None) => Err(Failure::new(405, "MethodNotAllowed", "method not allowed")),
            (None, _) => discover(&request.path),
        };
        outcome.unwrap_or_else(|failure| failure_response(&failure))
    }

    fn is_unserved(&self, kind: Kind) -> bool {
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner).contains(&kind)
    }

    fn act(&self, kind: Kind, verb: Verb, request: &Request) -> Result<Response<Body>, Failure> {
        match verb {
            Verb::Get | Verb::List | Verb::Watch => {}
            Verb::Patch => check_content_type(request, &[MERGE, STRATEGIC])?,
            Verb::Create | Verb::Update | Verb::Delete | Verb::Bind | Verb::Evict => {
                check_content_type(request, &[JSON])?;
            }
        }
        if request.asks_dry_run() && verb != Verb::Evict {
            return Err(Failure::bad_request("this stand-in makes no dry runs"));
        }
        let (code, body) = match verb {
            Verb::Get => (200, self.get(kind, request)?),
            Verb::List | Verb::Watch => return self.list(kind, request),
            Verb::Create => (201, self.create(kind, request)?),
            Verb::Update => (200, self.update(kind, request)?),
            Verb::Patch => (200, self.patch(kind, request)?),
            Verb::Delete => (200, self.delete(kind, request)?),
            Verb::Bind => (201, self.bind(kind, request)?),
            Verb::Evict => (201, self.evict(kind, request)?),
        };
        Ok(json_response(code, &body))
    }

    fn get(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        if !matches!(request.subresource.as_str(), "" | "status") {
            return Err(Failure::no_such_path());
        }
        let object = self.store.get(kind, &request.namespace, &request.name);
        let object = object.ok_or_else(|| Failure::not_found(kind, &request.name))?;
        Ok(Value::clone(&object))
    }

    fn list(&self, kind: Kind, request: &Request) -> Result<Response<Body>, Failure> {
        check_list_options(request, self.refuses_streamed_lists.load(Ordering::Relaxed))?;
        let page = self.pages.page(kind, &selector(request)?, request)?;
        let meta = page.meta();
        let head = json!({
            "kind": format!("{}List", kind.name), "apiVersion": kind.api_version, "metadata": meta,
        });
        // One object at a time is text, so that the answer takes no more memory than the objects do.
        let head = head.to_string();
        let begin = format!("{},\"items\":[", head.strip_suffix('}').unwrap_or_default());
        let objects = page.objects.into_iter().enumerate().map(|(at, object)| {
            let comma = if at == 0 { "" } else { "," };
            format!("{comma}{object}")
        });
        let parts = std::iter::once(begin).chain(objects).chain(["]}".to_owned()]);
        let parts = futures::stream::iter(parts.map(Ok::<_, std::io::Error>));
        let mut response = Response::new(Body::from_stream(parts));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        Ok(response)
    }

    fn watch(&self, kind: Kind, request: &Request) -> Result<Response<Body>, Failure> {
        check_list_options(request, self.refuses_streamed_lists.load(Ordering::Relaxed))?;
        watch::start(&self.store, &self.faults, kind, selector(request)?, request)
    }

    fn create(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        let mut object = request.body.clone();
        check_shape(&object)?;
        check_type(kind, &object).map_err(Failure::bad_request)?;
        check_path(kind, &object, &request.namespace, &request.name)?;
        let name = self.name_for(&object);
        check_name(kind, &name)?;
        check_annotations(kind, &name, &object)?;
        for set_by_server in ["uid", "resourceVersion", "creationTimestamp"] {
            object["metadata"][set_by_server] = Value::Null;
        }
        if kind == PODS {
            admission::tolerate_extended_resources(&mut object);
            object["status"] = json!({"phase": "Pending"});
        }
        self.write(kind, request, &name, |before| match before {
            Some(_) => Err(Failure::already_exists(kind, &name)),
            None => Ok(Some(object)),
        })
    }

    /// The object's name, or one that begins with its `generateName`; empty where it has neither.
    fn name_for(&self, object: &Value) -> String {
        match (name(object), text(&object["metadata"]["generateName"])) {
            ("", "") => String::new(),
            ("", prefix) => format!("{prefix}{:05x}", *self.store.newest().borrow()),
            (name, _) => name.to_owned(),
        }
    }

    fn update(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        self.write(kind, request, &request.name, |before| {
            let before = before.ok_or_else(|| Failure::not_found(kind, &request.name))?;
            let after = request.body.clone();
            check_shape(&after)?;
            check_type(kind, &after).map_err(Failure::bad_request)?;
            revise(kind, before, after, request).map(Some)
        })
    }

    fn patch(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        self.write(kind, request, &request.name, |before| {
            let before = before.ok_or_else(|| Failure::not_found(kind, &request.name))?;
            let mut after = before.clone();
            match request.content_type.as_str() {
                STRATEGIC => patch::apply_strategic(&mut after, &request.body)?,
                _ => merge(&mut after, &request.body),
            }
            check_shape(&after)?;
            check_type(kind, &after).map_err(|why| Failure::unusable_patch(&request.body, &why))?;
            revise(kind, before, after, request).map(Some)
        })
    }

    fn delete(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        let name = &request.name;
        self.write(kind, request, name, |before| {
            let before = before.ok_or_else(|| Failure::not_found(kind, name))?;
            let wanted = &request.body["preconditions"]["uid"];
            if wanted.is_string() && text(wanted) != uid(before) {
                return Err(Failure::recreated(kind, name, text(wanted), uid(before)));
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
            binding::bind(pod, &request.body, &time()).map(Some)
        })?;
        Ok(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201,
        }))
    }

    fn evict(&self, kind: Kind, request: &Request) -> Result<Value, Failure> {
        if kind != PODS {
            return Err(Failure::no_such_path());
        }
        let body = &request.body;
        let name = request.name.as_str();
        eviction::check(body, name)?;
        let pod = self.store.get(kind, &request.namespace, name);
        let pod = pod.ok_or_else(|| Failure::not_found(kind, name))?;
        let wanted = &body["deleteOptions"]["preconditions"]["uid"];
        if wanted.is_string() && text(wanted) != uid(&pod) {
            return Err(Failure::recreated(kind, name, text(wanted), uid(&pod)));
        }
        let dry_run = request.asks_dry_run() || eviction::asks_dry_run(body);
        if !eviction::passes_budgets(&pod) {
            self.use_up_budget(&pod, dry_run)?;
        }
        if !dry_run {
            self.write(kind, request, name, |_| Ok(None))?;
        }
        Ok(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "code": 201,
        }))
    }

    /// In a dry run the budget is asked alone.
    fn use_up_budget(&self, pod: &Value, dry_run: bool) -> Result<(), Failure> {
        let mut budgets = self.store.list(DISRUPTION_BUDGETS).0;
        budgets.retain(|budget| eviction::covers(budget, pod));
        let [budget] = budgets.as_slice() else {
            let more = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return if budgets.is_empty() { Ok(()) } else { Err(Failure::internal(more)) };
        };
        if dry_run {
            return eviction::use_up(budget, name(pod), &time()).map(drop);
        }
        let namespace = text(&budget["metadata"]["namespace"]);
        self.store
            .change(DISRUPTION_BUDGETS, namespace, name(budget), |budget: Option<&Value>| {
                budget.map(|budget| eviction::use_up(budget, name(pod), &time())).transpose()
            })
            .map(drop)
    }

    /// Changes the object of this name. Returns its last state.
    fn write(
        &self,
        kind: Kind,
        request: &Request,
        name: &str,
        change: impl FnOnce(Option<&Value>) -> Result<Option<Value>, Failure>,
    ) -> Result<Value, Failure> {
        let object = self.store.change(kind, &request.namespace, name, change)?;
        Ok(object.map_or(Value::Null, |object| Value::clone(&object)))
    }
}

/// Whether the body is of an accepted type. A body without a type counts as JSON.
fn check_content_type(request: &Request, accepted: &[&str]) -> Result<(), Failure> {
    let found = request.content_type.as_str();
    if accepted.contains(&found) || (found.is_empty() && accepted.contains(&JSON)) {
        Ok(())
    } else {
        Err(Failure::unknown_format(found, accepted))
    }
}

fn selector(request: &Request) -> Result<Selector, Failure> {
    let namespace = Some(request.namespace.clone()).filter(|namespace| !namespace.is_empty());
    let fields = request.parameter("fieldSelector");
    Selector::new(namespace, fields, request.parameter("labelSelector"))
}

/// Checks a write's preconditions. Returns the object to store: a write of `/status` keeps the spec, any other one the
/// status, and both keep the server's own fields.
fn revise(
    kind: Kind,
    before: &Value,
    mut after: Value,
    request: &Request,
) -> Result<Value, Failure> {
    check_path(kind, &after, &request.namespace, &request.name)?;
    check_uid(kind, before, &after["metadata"]["uid"])?;
    check_version(kind, before, &after["metadata"]["resourceVersion"])?;
    check_annotations(kind, &request.name, &after)?;
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
    for field in ["uid", "resourceVersion", "creationTimestamp", "name", "namespace"] {
        if !before["metadata"][field].is_null() {
            after["metadata"][field] = before["metadata"][field].clone();
        }
    }
    Ok(after)
}

/// As `ValidateListOptions` of k8s.io/apimachinery/pkg/apis/meta/internalversion/validation.
fn check_list_options(request: &Request, refuses_streams: bool) -> Result<(), Failure> {
    let is_watch = request.verb == Some(Verb::Watch);
    let initial = request.query.contains_key("sendInitialEvents");
    let matching = request.parameter("resourceVersionMatch");
    let field = "resourceVersionMatch: Forbidden";
    let mut wrong = Vec::new();
    if is_watch && initial && matching != "NotOlderThan" {
        wrong.push(format!(
            "{field}: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        ));
    }
    if is_watch && initial && refuses_streams {
        wrong.push(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
                .to_owned(),
        );
    }
    if is_watch && !initial && !matching.is_empty() {
        wrong.push(format!("{field}: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
    }
    if !is_watch && !matching.is_empty() && request.parameter("resourceVersion").is_empty() {
        wrong.push(format!(
            "{field}: resourceVersionMatch is forbidden unless resourceVersion is provided"
        ));
    }
    if !is_watch && initial {
        wrong.push(
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list".to_owned(),
        );
    }
    let why = match wrong.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {why}");
    Err(Failure::new(422, "Invalid", message))
}

/// What is of no kind: probes, and the version of a real API server of this release.
fn discover(path: &str) -> Result<Response<Body>, Failure> {
    match path.trim_matches('/') {
        "healthz" | "livez" | "readyz" => Ok(Response::new(Body::from("ok"))),
        "version" => Ok(json_response(
            200,
            &json!({
                "major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64",
            }),
        )),
        _ => Err(Failure::no_such_path()),
    }
}

fn json_response(code: u16, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

fn failure_response(failure: &Failure) -> Response<Body> {
    let mut response = json_response(failure.code, &failure.status());
    if failure.code == 429 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
