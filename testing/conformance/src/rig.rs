//! What every fact needs: requests, objects to make, and comparisons that say what was found.

use serde_json::{Value, json};

use crate::Transport;

/// Why a fact does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refuted(pub String);

/// A server, and where to work on it.
pub struct Rig<'a> {
    pub(crate) server: &'a dyn Transport,
    pub(crate) namespace: &'a str,
}

/// What a server said.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) text: String,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
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

    /// Asks at a whole path.
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
        self.call("PATCH", what, MERGE, Some(body)).await
    }

    /// Sends a strategic merge patch.
    pub(crate) async fn strategic(&self, what: &str, body: &Value) -> Result<Answer, Refuted> {
        self.call("PATCH", what, STRATEGIC, Some(body)).await
    }

    /// Posts a body of another type than JSON.
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

    /// Removes what an earlier run may have left, at once and whatever it is.
    async fn clear(&self, what: &str) -> Result<(), Refuted> {
        self.delete(what, &json!({"gracePeriodSeconds": 0})).await.map(drop)
    }

    /// A fresh config map with a label.
    pub(crate) async fn config_map(&self, name: &str) -> Result<Value, Refuted> {
        self.clear(&format!("configmaps/{name}")).await?;
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"conformance": name}}, "data": {"a": "1", "b": "2"},
        });
        self.post("configmaps", &body).await?.is(201)
    }

    /// A fresh pod that no scheduler looks at.
    pub(crate) async fn pod(&self, name: &str, gated: bool) -> Result<Value, Refuted> {
        self.clear(&format!("pods/{name}")).await?;
        let gates = if gated { json!([{"name": "example.com/wait"}]) } else { json!([]) };
        let body = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": {"claim": "old", "kept": "yes"}},
            "spec": {
                "schedulerName": "nobody", "schedulingGates": gates,
                "containers": [{"name": "main", "image": "example.com/none"}],
            },
        });
        self.post("pods", &body).await?.is(201)
    }

    /// Removes what a fact has made.
    pub(crate) async fn done(&self, what: &str) -> Result<(), Refuted> {
        self.clear(what).await
    }
}

impl Answer {
    /// The body as JSON, if the status is this one.
    pub(crate) fn is(&self, code: u16) -> Result<Value, Refuted> {
        same("the status", self.code, code)
            .map_err(|why| Refuted(format!("{why}: {}", self.text)))?;
        serde_json::from_str(&self.text)
            .map_err(|error| Refuted(format!("the answer is no JSON ({error}): {}", self.text)))
    }

    /// Refused with this status and message.
    pub(crate) fn is_refused(&self, code: u16, message: &str) -> Result<(), Refuted> {
        same("the message", text(&self.is(code)?["message"]), message)
    }

    /// Refused with this status and a message that begins so; the rest names what only Go has.
    pub(crate) fn is_refused_beginning(&self, code: u16, message: &str) -> Result<(), Refuted> {
        let refusal = self.is(code)?;
        let found = text(&refusal["message"]);
        let beginning = if found.starts_with(message) { message } else { found };
        same("the message", beginning, message)
    }
}

/// Whether something is as it should be.
#[expect(clippy::needless_pass_by_value, reason = "so that callers need not borrow what they name")]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Refuted> {
    if found == expected {
        return Ok(());
    }
    Err(Refuted(format!("{what} is {found:?}, where {expected:?} was expected")))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The object's version, which only the server can read.
pub(crate) fn version(object: &Value) -> &str {
    text(&object["metadata"]["resourceVersion"])
}
