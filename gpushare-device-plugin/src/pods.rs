//! The pods of this node, as the API server tells: a cache that a watch feeds, and fresh reads of
//! single pods.
//!
//! Invariant: the cache may be late, never wrong about what it holds; whoever finds it wanting asks
//! anew.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cluster::{Event, Events, PodFacts};
use futures::StreamExt;
use futures::future::BoxFuture;
use placement::names::Names;
use tokio::sync::watch;

/// A pod by name. The kubelet's records know no UID.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PodRef {
    /// A pod's name in its namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The name in `facts`.
    pub fn of(facts: &PodFacts) -> Self {
        Self::new(&facts.namespace, &facts.name)
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads one pod from the API server.
pub trait ReadPod: Send + Sync {
    /// The pod as it is now; `None` where there is none of that name.
    fn read<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodFacts>, String>>;
}

/// The API server itself.
#[derive(Clone)]
pub struct ApiServer {
    /// The client.
    pub client: cluster::Client,
    /// Resource and annotation names.
    pub names: Names,
    /// How long a read may take.
    pub limit: Duration,
}

impl ReadPod for ApiServer {
    fn read<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodFacts>, String>> {
        Box::pin(async move {
            let found = cluster::get_pod(&self.client, &pod.namespace, &pod.name, self.limit).await;
            found
                .map(|pod| pod.map(|pod| pod.facts(&self.names)))
                .map_err(|error| error.to_string())
        })
    }
}

/// The pods that are bound to this node.
#[derive(Debug, Default)]
pub struct PodCache {
    pods: RwLock<HashMap<PodRef, Arc<PodFacts>>>,
    changes: watch::Sender<u64>,
    listed: watch::Sender<bool>,
}

impl PodCache {
    /// The pod of that name, as last heard of.
    pub fn get(&self, pod: &PodRef) -> Option<Arc<PodFacts>> {
        self.pods.read().unwrap_or_else(PoisonError::into_inner).get(pod).cloned()
    }

    /// Every pod, as last heard of.
    pub fn all(&self) -> Vec<Arc<PodFacts>> {
        self.pods.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Tells of every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until the first whole list is in.
    pub async fn listed(&self) {
        // The sender is ours, so that it cannot be gone.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Takes in one event.
    pub fn apply(&self, event: Event<PodFacts>) {
        let whole = matches!(event, Event::Listed(_));
        let entry = |facts: PodFacts| (PodRef::of(&facts), Arc::new(facts));
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Listing => {}
            Event::Listed(all) => *pods = all.into_iter().map(entry).collect(),
            Event::Applied(facts) => pods.extend([entry(facts)]),
            Event::Gone(facts) => {
                pods.remove(&PodRef::of(&facts));
            }
        }
        drop(pods);
        if whole {
            self.listed.send_replace(true);
        }
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Follows a watch for as long as it lasts.
    pub async fn follow(&self, mut events: Events<PodFacts>) {
        while let Some(event) = events.next().await {
            self.apply(event);
        }
    }
}
