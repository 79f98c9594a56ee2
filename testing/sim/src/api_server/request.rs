//! A request as the API server understands it, and the log of all requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::{Method, header, request::Parts};
use serde_json::Value;
use tokio::sync::watch;

use crate::json::list;
use crate::objects::kind::Kind;

/// What a request does, in the words of Kubernetes' RBAC. Binding and evicting a pod are verbs of their own here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// GET of one object.
    Get,
    /// GET of many objects.
    List,
    /// GET of changes, as a stream.
    Watch,
    /// POST of an object.
    Create,
    /// PUT of an object.
    Update,
    /// PATCH of an object.
    Patch,
    /// DELETE of an object.
    Delete,
    /// POST of a Binding.
    Bind,
    /// POST of an Eviction.
    Evict,
}

/// One request that the stand-in received.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What it does; `None` where the path names no kind (as `/version`) or the method is unknown.
    pub verb: Option<Verb>,
    /// The path of the URL.
    pub path: String,
    /// The URL's parameters.
    pub query: HashMap<String, String>,
    /// The kind it is about.
    pub kind: Option<Kind>,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The content type, or empty.
    pub content_type: String,
    /// The body; `Null` where it is empty or not JSON.
    pub body: Value,
}

impl Request {
    pub(crate) fn new(parts: &Parts, body: &Bytes) -> Self {
        let path = parts.uri.path().to_owned();
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or("").as_bytes());
        let mut request = Self {
            verb: None,
            query: query.into_owned().collect(),
            kind: None,
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            content_type: content_type(parts),
            body: serde_json::from_slice(body).unwrap_or(Value::Null),
            path,
        };
        request.locate();
        request.verb = request.kind.and_then(|_| request.verb(&parts.method));
        request
    }

    /// Whether it is of this verb and kind. A list that is asked for as a watch is both.
    #[must_use]
    pub fn is(&self, verb: Verb, kind: Kind) -> bool {
        let is_streamed_list = verb == Verb::List && self.flag("sendInitialEvents");
        (self.verb == Some(verb) || is_streamed_list) && self.kind == Some(kind)
    }

    /// A parameter of the URL; empty where it is missing.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Whether a parameter of the URL is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name), "true" | "1")
    }

    /// Whether it asks for a dry run. A deletion may ask in its body.
    pub(crate) fn asks_dry_run(&self) -> bool {
        self.query.contains_key("dryRun") || list(&self.body["dryRun"]).next().is_some()
    }

    /// Finds kind, namespace, name and subresource in the path.
    fn locate(&mut self) {
        let path = self.path.clone();
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (api_version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let [plural, rest @ ..] = rest else { return };
        self.kind = Kind::find(&api_version, plural);
        self.namespace = namespace.to_owned();
        self.name = rest.first().copied().unwrap_or_default().to_owned();
        self.subresource = rest.get(1).copied().unwrap_or_default().to_owned();
    }

    fn verb(&self, method: &Method) -> Option<Verb> {
        Some(match *method {
            Method::GET if !self.name.is_empty() => Verb::Get,
            Method::GET if self.flag("watch") => Verb::Watch,
            Method::GET => Verb::List,
            Method::POST if self.subresource == "binding" => Verb::Bind,
            Method::POST if self.subresource == "eviction" => Verb::Evict,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => return None,
        })
    }
}

fn content_type(parts: &Parts) -> String {
    let value = parts.headers.get(header::CONTENT_TYPE);
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    text.split(';').next().unwrap_or("").trim().to_owned()
}

/// Requests that the log keeps.
const KEPT: usize = 100_000;

/// The last 100,000 requests, oldest first. Clones share one log.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    requests: Arc<Mutex<VecDeque<Request>>>,
    /// Changes with every request.
    grown: watch::Sender<()>,
}

impl RequestLog {
    /// All requests.
    #[must_use]
    pub fn all(&self) -> Vec<Request> {
        self.lock().iter().cloned().collect()
    }

    /// The requests of one verb on one kind.
    #[must_use]
    pub fn of(&self, verb: Verb, kind: Kind) -> Vec<Request> {
        let requests = self.lock();
        requests.iter().filter(|r| r.is(verb, kind)).cloned().collect()
    }

    /// The patches of one node.
    #[must_use]
    pub fn node_patches(&self, node: &str) -> Vec<Request> {
        let mut patches = self.of(Verb::Patch, crate::NODES);
        patches.retain(|request| request.name == node);
        patches
    }

    /// The bindings of pods.
    #[must_use]
    pub fn bindings(&self) -> Vec<Request> {
        self.of(Verb::Bind, crate::PODS)
    }

    /// Forgets what was logged so far.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub(crate) fn push(&self, request: Request) {
        let mut requests = self.lock();
        requests.push_back(request);
        if requests.len() > KEPT {
            requests.pop_front();
        }
        drop(requests);
        self.grown.send_replace(());
    }

    pub(crate) fn grown(&self) -> watch::Receiver<()> {
        self.grown.subscribe()
    }

    // A panic cannot leave a change half done: each is a single push.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
