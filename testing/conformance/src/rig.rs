//! What the facts share: requests, objects, and comparisons whose failure says what was found.

use serde_json::{Value, json};

use crate::Transport;

/// Why a fact does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refuted(pub String);

/// A server, and the namespace of the facts.
pub struct Rig<'a> {
    pub(crate) server: &'a dyn Transport,
    pub(crate) namespace: &'a str,
}

/// A server's answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) text: String,
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

impl Rig<'_> {
    /// `pods/x` in the namespace, as a path.
    fn path(&self, what: &str) -> String {
        format!("/api/v1/namespaces/{}/{what}", self.namespace)
    }

    async fn call(
        &self,
        method: &'static str,
        what: &str,
        kind: &'static str,
        body: Option<&Value>,
    ) -> Result<Answer, Refuted> {
        self.at(method, &self.path(what), kind, body).await
    }

    /// Sends a request to a path of the API.
    pub(crate) async fn at(
        &self,
        method: &'static str,
        path: &str,
        kind: &'static str,
        body: Option<&Value>,
    ) -> Result<Answer, Refuted> {
        let answer = self.server.call(method, path, kind, body.map(Value::to_string)).await;
        let (code, text) =
            answer.map_err(|why| Refuted(format!("{method} {path}: no answer: {why}")))?;
        Ok(Answer { code, text })
    }

    /// A node.
    pub(crate) async fn node(&self, name: &str) -> Result<Value, Refuted> {
        self.at("GET", &format!("/api/v1/nodes/{name}"), JSON, None).await?.is(200)
    }

    pub(crate) async fn get(&self, what: &str) -> Result<Answer, Refuted> {
        self.call("GET", what, JSON, None).await
    }

    pub(crate) async fn post(&self, what: &str, body: &Value) -> Result<Answer, Refuted> {
        self.call("POST", what, JSON, Some(body)).await
    }

    pub(crate) async fn put(&self, what: &str, body: &Value) -> Result<Answer, Refuted> {
        self.call("PUT", what, JSON, Some(body)).await
    }

    pub(crate) async fn patch(&self, what: &str, body: &Value) -> Result<Answer, Refuted> {
        self.call("PATCH", what, MERGE_PATCH, Some(body)).await
    }

    /// Sends a strategic merge patch.
    pub(crate) async fn strategic(&self, what: &str, body: &Value) -> Result<Answer, Refuted> {
        self.call("PATCH", what, STRATEGIC, Some(body)).await
    }

    /// Posts a body with this content type.
    pub(crate) async fn post_as(
        &self,
        what: &str,
        kind: &'static str,
        body: &Value,
    ) -> Result<Answer, Refuted> {
        self.call("POST", what, kind, Some(body)).await
    }

    pub(crate) async fn delete(&self, what: &str, body: &Value) -> Result<Answer, Refuted> {
        self.call("DELETE", what, JSON, Some(body)).await
    }

    /// Sends a request about a Lease of the namespace; an empty name stands for all.
    pub(crate) async fn lease(
        &self,
        method: &'static str,
        name: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Refuted> {
        let root = "/apis/coordination.k8s.io/v1/namespaces";
        let path = format!("{root}/{}/leases/{name}", self.namespace);
        self.at(method, path.trim_end_matches('/'), JSON, body).await
    }

    /// Deletes an object at once, whether it exists or not.
    pub(crate) async fn remove(&self, what: &str) -> Result<(), Refuted> {
        self.delete(what, &json!({"gracePeriodSeconds": 0})).await.map(drop)
    }

    /// Creates a config map with a label, in place of an earlier one.
    pub(crate) async fn config_map(&self, name: &str) -> Result<Value, Refuted> {
        self.remove(&format!("configmaps/{name}")).await?;
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"conformance": name}}, "data": {"a": "1", "b": "2"},
        });
        self.post("configmaps", &body).await?.is(201)
    }

    /// Creates a pod that no scheduler places, in place of an earlier one.
    pub(crate) async fn pod(&self, name: &str, gated: bool) -> Result<Value, Refuted> {
        self.remove(&format!("pods/{name}")).await?;
        let gates = if gated { json!([{"name": "example.com/wait"}]) } else { json!([]) };
        let body = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": {"claim": "old", "kept": "yes"}},
            "spec": {
                "schedulerName": "none", "schedulingGates": gates,
                "containers": [{"name": "main", "image": "example.com/none"}],
            },
        });
        self.post("pods", &body).await?.is(201)
    }
}

impl Answer {
    /// Checks the status. Returns the body.
    pub(crate) fn is(&self, code: u16) -> Result<Value, Refuted> {
        same("the status", self.code, code)
            .map_err(|why| Refuted(format!("{why}: {}", self.text)))?;
        serde_json::from_str(&self.text)
            .map_err(|error| Refuted(format!("the answer is no JSON ({error}): {}", self.text)))
    }

    /// Checks for a refusal with this status and message.
    pub(crate) fn is_refused(&self, code: u16, message: &str) -> Result<(), Refuted> {
        same("the message", text(&self.is(code)?["message"]), message)
    }

    /// Checks for a refusal with this status and a message that begins so. The rest names Go's types.
    pub(crate) fn is_refused_beginning(&self, code: u16, message: &str) -> Result<(), Refuted> {
        let refusal = self.is(code)?;
        let found = text(&refusal["message"]);
        let beginning = if found.starts_with(message) { message } else { found };
        same("the message", beginning, message)
    }
}

/// Checks that something is as expected.
#[expect(clippy::needless_pass_by_value, reason = "callers need not borrow")]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Refuted> {
    if found == expected {
        return Ok(());
    }
    Err(Refuted(format!("{what}: found {found:?}, expected {expected:?}")))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The object's resource version.
pub(crate) fn version(object: &Value) -> &str {
    text(&object["metadata"]["resourceVersion"])
}
