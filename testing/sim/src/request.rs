//! A request as the API understands it, and the log of all of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::{Method, header, request::Parts};
use serde_json::Value;
use tokio::sync::watch;

use crate::error::Failure;
use crate::kind::Kind;

/// What a request wants, in the words of Kubernetes' RBAC; binding a pod stands apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// One object.
    Get,
    /// Many objects.
    List,
    /// Changes, as a stream.
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
}

/// One request that the stand-in received.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What it wants; `None` where the path names no kind (`/version`) or the method is unknown.
    pub verb: Option<Verb>,
    /// The path of the URL.
    pub path: String,
    /// The parameters of the URL.
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
    /// Whether the answer is to be a table, for people to read.
    pub as_table: bool,
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
            as_table: wants_table(parts),
            body: serde_json::from_slice(body).unwrap_or(Value::Null),
            path,
        };
        request.locate();
        request.verb = request.kind.and_then(|_| request.verb(&parts.method));
        request
    }

    /// Whether it is of this verb and kind.
    #[must_use]
    pub fn is(&self, verb: Verb, kind: Kind) -> bool {
        self.verb == Some(verb) && self.kind == Some(kind)
    }

    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name), "true" | "1")
    }

    /// Whether it only asks what would come of it.
    ///
    /// # Errors
    /// 422 where `dryRun` says anything but `All`.
    pub(crate) fn is_dry(&self) -> Result<bool, Failure> {
        let options = match self.verb {
            Some(Verb::Create | Verb::Bind) => "CreateOptions",
            Some(Verb::Update) => "UpdateOptions",
            Some(Verb::Patch) => "PatchOptions",
            Some(Verb::Delete) => "DeleteOptions",
            Some(Verb::Get | Verb::List | Verb::Watch) | None => return Ok(false),
        };
        let values = self.dry_run();
        match values.iter().all(|value| *value == "All") {
            true => Ok(!values.is_empty()),
            false => Err(Failure::unknown_dry_run(options, &values)),
        }
    }

    /// The values of `dryRun`. A deletion with a body has its options there, and nowhere else.
    fn dry_run(&self) -> Vec<&str> {
        if self.verb == Some(Verb::Delete) && !self.body.is_null() {
            let values = self.body["dryRun"].as_array().into_iter().flatten();
            return values.map(|value| value.as_str().unwrap_or_default()).collect();
        }
        self.query.get("dryRun").into_iter().map(String::as_str).collect()
    }

    /// Finds kind, namespace, name and subresource in the path.
    fn locate(&mut self) {
        let path = self.path.clone();
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let [plural, rest @ ..] = rest else { return };
        self.kind = Kind::find(group, version, plural);
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

fn wants_table(parts: &Parts) -> bool {
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("as=Table;v=v1;g=meta.k8s.io"))
}

/// Requests remembered; a demo may run for days.
const KEPT: usize = 100_000;

/// The requests since the start, oldest first, up to the last 100,000. Clones share one log.
#[derive(Debug, Clone, Default)]
pub struct RequestLog {
    requests: Arc<Mutex<VecDeque<Request>>>,
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

    /// The bindings.
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

    // Each change of the list is a single push.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
