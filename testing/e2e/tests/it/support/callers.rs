//! Owns calls to the API by others than the administrator: users that the administrator impersonates, and service
//! accounts.

use anyhow::{Context, Result, ensure};
use conformance::Transport;
use kube::Client;
use kube::config::AuthInfo;
use serde_json::{Value, json};

use crate::cluster::api_conformance::Kube;
use crate::env::{TestEnv, parse};

/// What a call does with an object. The last four are PATCHes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Replace,
    Merge,
    Strategic,
    JsonPatch,
    Apply,
}

impl Verb {
    /// The method and the type of the body.
    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Create => ("POST", "application/json"),
            Self::Replace => ("PUT", "application/json"),
            Self::Merge => ("PATCH", "application/merge-patch+json"),
            Self::Strategic => ("PATCH", "application/strategic-merge-patch+json"),
            Self::JsonPatch => ("PATCH", "application/json-patch+json"),
            Self::Apply => ("PATCH", "application/apply-patch+yaml"),
        }
    }
}

/// Someone who calls the API.
pub(crate) struct Caller(Kube);

impl Caller {
    /// A user in these groups. RBAC refuses a member of `system:masters` nothing, so only policies can.
    pub(crate) fn user(env: &TestEnv, name: &str, groups: &[&str]) -> Result<Self> {
        let mut config = env.config();
        config.auth_info.impersonate = Some(name.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|&g| g.to_owned()).collect());
        env.client_of(config).map(Self::over)
    }

    /// An administrator who is no program of Plimsoll.
    pub(crate) fn administrator(env: &TestEnv) -> Result<Self> {
        Self::user(env, "mallory", &["system:masters"])
    }

    /// A cluster administrator that acts as the extender's service account, which the shipped admission policies let
    /// write claims, and in the kubelets' group, which they let create GPU pods that name their node.
    pub(crate) fn unhindered(env: &TestEnv) -> Result<Self> {
        let groups = ["system:masters", "system:nodes"];
        Self::user(env, "system:serviceaccount:plimsoll:scheduler-extender", &groups)
    }

    /// The kubelet of this node.
    pub(crate) fn kubelet(env: &TestEnv, node: &str) -> Result<Self> {
        Self::user(env, &format!("system:node:{node}"), &["system:nodes", "system:authenticated"])
    }

    /// A caller that authenticates with this bearer token.
    pub(crate) fn with_token(env: &TestEnv, token: &str) -> Result<Self> {
        let mut config = env.config();
        config.auth_info = parse::<AuthInfo>(json!({"token": token}))?;
        env.client_of(config).map(Self::over)
    }

    fn over(client: Client) -> Self {
        Self(Kube(client))
    }

    /// Makes a call, and returns the status and the object, or the API server's reason.
    pub(crate) fn call(
        &self,
        env: &TestEnv,
        verb: Verb,
        path: &str,
        body: &Value,
    ) -> Result<(u16, Value)> {
        let (method, content_type) = verb.parts();
        let (status, text) = env.block_on(async {
            let called = self.0.call(method, path, content_type, Some(body.to_string()));
            called.await.map_err(anyhow::Error::msg)
        })?;
        Ok((status, serde_json::from_str(&text).with_context(|| text.clone())?))
    }

    /// As [`Caller::call`], and an error unless the API server did it.
    pub(crate) fn done(
        &self,
        env: &TestEnv,
        verb: Verb,
        path: &str,
        body: &Value,
    ) -> Result<Value> {
        let (status, answer) = self.call(env, verb, path, body)?;
        ensure!((200..300).contains(&status), "{verb:?} {path}: {status} {}", answer["message"]);
        Ok(answer)
    }

    /// As [`Caller::call`], and an error unless that shipped policy refused it.
    pub(crate) fn refused(
        &self,
        env: &TestEnv,
        verb: Verb,
        path: &str,
        body: &Value,
        policy: &str,
    ) -> Result<()> {
        self.refusal(env, verb, path, body, policy).map(drop)
    }

    /// As [`Caller::refused`], and returns the text.
    pub(crate) fn refusal(
        &self,
        env: &TestEnv,
        verb: Verb,
        path: &str,
        body: &Value,
        policy: &str,
    ) -> Result<String> {
        let (status, answer) = self.call(env, verb, path, body)?;
        let message = answer["message"].as_str().unwrap_or_default();
        let named = message.contains(&format!("ValidatingAdmissionPolicy '{policy}'"));
        let shown: String = body.to_string().chars().take(1000).collect();
        ensure!(status == 403 && named, "{verb:?} {path} of {shown}: {status} {message}");
        Ok(message.to_owned())
    }
}
