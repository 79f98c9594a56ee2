//! How commands reach the cluster: objects by kubectl, the extender by kubectl's port-forward.
//!
//! Invariant: kubectl makes each connection, with the credentials and the context that its user has set, so that every
//! login that works for kubectl works here: it has the user's terminal, and what it says while it waits is shown. A
//! port-forward ends with the command. Labels select objects within Plimsoll's own namespaces alone, which [`places`]
//! finds: in others, everybody who may write there can set them.

mod failure;
mod forward;
mod kubectl;
pub(crate) mod objects;
mod places;
mod policy_map;
mod running;
pub(crate) mod workload;

use std::cell::OnceCell;
use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::args::access::{Access, Namespaces};
pub(crate) use failure::Failure;
pub(crate) use forward::Forward;
pub(crate) use kubectl::Kubectl;
use objects::{Lease, List, Object, Pod};
use places::Places;
pub(crate) use policy_map::PolicyMap;
use workload::Workload;

/// The extender's read-only port.
pub(crate) const INSPECT_PORT: u16 = 19107;
/// The extender's Lease, in Plimsoll's namespace.
pub(crate) const EXTENDER_LEASE: &str = "plimsoll-scheduler-extender";
/// The Secret with the extender's certificate.
pub(crate) const SERVER_SECRET: &str = "scheduler-extender-tls";
/// The Secret with kube-scheduler's certificate. Control-plane nodes have a copy.
pub(crate) const CLIENT_SECRET: &str = "kube-scheduler-tls";
/// The annotation of kubeadm-config with the nodes on which `plimsoll scheduler enable` has run.
pub(crate) const ENABLED_NODES: &str = "plimsoll.dev/kube-scheduler-nodes";
/// The extender's Deployment.
pub(crate) const EXTENDER: &str = "scheduler-extender";
/// Where Plimsoll is, if its ClusterRoleBindings name no other namespace or cannot be read.
const DEFAULT_NAMESPACE: &str = "plimsoll";
/// Selects all objects of Plimsoll in its own namespaces.
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of=plimsoll";

/// The flag for objects of this namespace, or of all.
pub(crate) fn scope_flag(namespace: Option<&str>) -> String {
    namespace.map_or("--all-namespaces".to_owned(), |name| format!("--namespace={name}"))
}

/// A cluster and its extender.
pub(crate) struct Cluster {
    kubectl: Kubectl,
    /// Where the extender answers, by a flag.
    given_url: Option<String>,
    given_namespace: Option<String>,
    places: OnceCell<Places>,
    forward: OnceCell<(Forward, String)>,
}

impl Cluster {
    /// By these flags. Nothing is called yet.
    pub(crate) fn new(access: &Access) -> Self {
        Self {
            kubectl: Kubectl::new(&access.connection),
            given_url: access.extender.clone(),
            given_namespace: access.plimsoll_namespace.clone(),
            places: OnceCell::new(),
            forward: OnceCell::new(),
        }
    }

    /// kubectl, with the flags of its connection.
    pub(crate) fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Whether the extender's address is given, so that a command can do without kubectl.
    pub(crate) fn has_url(&self) -> bool {
        self.given_url.is_some()
    }

    /// The namespace of the extender: the flag's, or that of the ServiceAccount in its ClusterRoleBinding. `plimsoll`
    /// where there is none, or none may be read.
    ///
    /// # Errors
    ///
    /// If kubectl reaches no cluster.
    pub(crate) fn namespace(&self) -> Result<&str> {
        match &self.given_namespace {
            Some(given) => Ok(given),
            None => Ok(self.places()?.own.as_deref().unwrap_or(DEFAULT_NAMESPACE)),
        }
    }

    /// The namespaces of Plimsoll: the extender's, and that of the node agents where they have one of their own.
    ///
    /// # Errors
    ///
    /// If kubectl reaches no cluster.
    pub(crate) fn namespaces(&self) -> Result<Vec<&str>> {
        let own = self.namespace()?;
        let mut all = vec![own];
        all.extend(self.places()?.node_agents.as_deref().filter(|agents| *agents != own));
        Ok(all)
    }

    /// Whether Plimsoll is installed without an extender, and no flag says where one is. `false` where that is not
    /// known.
    ///
    /// # Errors
    ///
    /// If kubectl reaches no cluster.
    pub(crate) fn has_no_extender(&self) -> Result<bool> {
        let is_given = self.given_url.is_some() || self.given_namespace.is_some();
        Ok(!is_given && self.places()?.has_no_extender)
    }

    fn places(&self) -> Result<&Places> {
        if let Some(known) = self.places.get() {
            return Ok(known);
        }
        let found = match Places::read(&self.kubectl) {
            Err(Failure::Forbidden(_)) => Places::default(),
            other => other?,
        };
        Ok(self.places.get_or_init(|| found))
    }

    /// The objects of these kinds that are Plimsoll's, by its label in its own namespaces.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub(crate) fn list_ours<T: DeserializeOwned>(&self, kinds: &str) -> Result<Vec<T>, Failure> {
        let namespaces = self.namespaces().map_err(|error| {
            error.downcast().unwrap_or_else(|other| Failure::Other(format!("{other:#}")))
        })?;
        let mut objects = Vec::new();
        for namespace in namespaces {
            objects.extend(self.list_in::<T>(namespace, kinds, PART_OF)?);
        }
        Ok(objects)
    }

    fn list_in<T>(&self, namespace: &str, kinds: &str, labels: &str) -> Result<Vec<T>, Failure>
    where
        T: DeserializeOwned,
    {
        let namespace = format!("--namespace={namespace}");
        let selector = format!("--selector={labels}");
        Ok(self.kubectl.get::<List<T>>(&[kinds, &namespace, &selector])?.items)
    }

    /// The base URL of the extender. Unless it is given, the first call opens a port-forward to the pod that leads.
    ///
    /// # Errors
    ///
    /// If there is no extender, or no port-forward to it is possible.
    pub(crate) fn extender(&self) -> Result<&str> {
        if let Some(url) = &self.given_url {
            return Ok(url);
        }
        if let Some((_, url)) = self.forward.get() {
            return Ok(url);
        }
        let forward = self.forward_to_leader()?;
        let url = format!("http://127.0.0.1:{}", forward.ports()[0]);
        let (_, url) = self.forward.get_or_init(|| (forward, url));
        Ok(url)
    }

    /// A port-forward to the extender that leads, or to any if none is known to, or its pod cannot be reached.
    ///
    /// # Errors
    ///
    /// If there is no extender, or kubectl may not forward a port to it.
    pub(crate) fn forward_to_leader(&self) -> Result<Forward> {
        let namespace = self.namespace()?;
        if let Some(leader) = self.leader() {
            if let Some(forward) = self.forward_to(&leader)? {
                return Ok(forward);
            }
            // The Lease still names a pod that is gone, or whose node is.
            for pod in self.ready_extenders().iter().filter(|pod| **pod != leader) {
                if let Some(forward) = self.forward_to(pod)? {
                    return Ok(forward);
                }
            }
        }
        let any = format!("deployment/{EXTENDER}");
        match Forward::open(&self.kubectl, namespace, &any, &[INSPECT_PORT]) {
            Err(Failure::NotFound(_)) => bail!(
                "there is no extender in namespace {namespace}: install Plimsoll, name its namespace with \
                 --plimsoll-namespace, or the extender's address with --extender"
            ),
            other => Ok(other?),
        }
    }

    /// A port-forward to a pod of the extender; `None` if that pod cannot be reached.
    fn forward_to(&self, pod: &str) -> Result<Option<Forward>> {
        let target = format!("pod/{pod}");
        match Forward::open(&self.kubectl, self.namespace()?, &target, &[INSPECT_PORT]) {
            Ok(forward) => Ok(Some(forward)),
            Err(Failure::NotFound(_) | Failure::Other(_)) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// The names of the extender's pods that are ready; none if they cannot be listed.
    fn ready_extenders(&self) -> Vec<String> {
        let Ok(namespace) = self.namespace() else { return Vec::new() };
        let labels = format!("app.kubernetes.io/name={EXTENDER},{PART_OF}");
        let pods: Vec<Pod> = self.list_in(namespace, "pods", &labels).unwrap_or_default();
        pods.into_iter().filter(Pod::is_ready).map(|pod| pod.metadata.name).collect()
    }

    /// The pod of the extender that leads, by its Lease; `None` if that cannot be read.
    pub(crate) fn leader(&self) -> Option<String> {
        let namespace = format!("--namespace={}", self.namespace().ok()?);
        let lease: Lease = self.kubectl.get(&["lease", EXTENDER_LEASE, &namespace]).ok()?;
        lease.holder_pod()
    }

    /// The ConfigMap that extender and annotator have the policy from; the shipped one if no Deployment names one.
    ///
    /// # Errors
    ///
    /// If the Deployments cannot be listed.
    pub(crate) fn policy_map(&self) -> Result<PolicyMap> {
        let namespace = self.namespace()?;
        let found: Vec<Workload> = self.list_in(namespace, "deployments", PART_OF).context(
            "which ConfigMap has the policy is not known without the Deployments of Plimsoll",
        )?;
        Ok(PolicyMap::of(&found).unwrap_or_else(|| PolicyMap::shipped(namespace)))
    }

    /// The namespaces of pods that these flags choose; `None` for all.
    pub(crate) fn namespace_of(&self, flags: &Namespaces) -> Option<String> {
        let one = || flags.namespace.clone().unwrap_or_else(|| self.context_namespace());
        (!flags.all_namespaces).then(one)
    }

    /// The namespace of kubectl's context, or `default`.
    pub(crate) fn context_namespace(&self) -> String {
        let words = ["config", "view", "--minify", "--output=jsonpath={..namespace}"];
        let found = self.kubectl.run(&words).unwrap_or_default();
        if found.trim().is_empty() { "default".to_owned() } else { found.trim().to_owned() }
    }

    /// The names of the nodes that a selector of labels chooses.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub(crate) fn nodes_with(&self, selector: &str) -> Result<BTreeSet<String>> {
        let words = ["nodes", &format!("--selector={selector}")];
        let nodes: List<Object> = self.kubectl.get(&words).context("the nodes of --selector")?;
        Ok(nodes.items.into_iter().map(|node| node.metadata.name).collect())
    }
}
