//! Watches of nodes and pods, as endless streams.
//!
//! Invariant: a disconnect removes nothing. After it a stream
//! goes on where it was; where that is impossible it lists again, and only the whole new list, as one
//! [`Event::Listed`], replaces the old one.

mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::{self, BoxStream, Stream, StreamExt};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff};
use kube::{Api, Client, Resource};
use placement::units::NodeName;

use crate::config_map::{ConfigMap, ConfigMapFacts};
use crate::endpoints::{EndpointSlice, of_service};
use crate::object::Object;
use crate::resource_claim::{ResourceClaim, WatchedResourceClaim};
use crate::resource_slice::{DeviceSlice, NODE_FIELD, ResourceSlice};
use crate::{Node, Pod, ServicePort, SliceFacts, call};
use source::{Selection, SourceError, source};

/// One event of a list or a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<T> {
    /// A list begins. What is learned in another way from now on, such as by a binding, may be newer than the list.
    Listing,
    /// Everything that exists: objects that are not in here are gone.
    Listed(Vec<T>),
    /// One object is new or has changed.
    Applied(T),
    /// One object is gone; this is its last state.
    Gone(T),
}

/// An endless stream of events.
pub type Events<T> = BoxStream<'static, Event<T>>;

/// How an object came with the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchCause {
    /// In a list.
    Listed,
    /// As new or changed.
    Changed,
    /// As deleted, in its last state.
    Gone,
}

/// Which objects to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of the cluster.
    All,
    /// The node of that name, or the pods bound to it.
    Node(NodeName),
}

impl Scope {
    /// Itself as selectors; `name` is the field with the node's name.
    fn selection(self, name: &str) -> Selection {
        match self {
            Self::All => Selection::default(),
            Self::Node(node) => Selection { fields: Some(format!("{name}={node}")), labels: None },
        }
    }
}

/// Counters of a watch, for metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct WatchHealth(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    events: AtomicU64,
    lists: AtomicU64,
    errors: AtomicU64,
}

impl WatchHealth {
    /// Events received so far, objects of lists included.
    pub fn events(&self) -> u64 {
        self.0.events.load(Ordering::Relaxed)
    }

    /// Lists begun so far; more than one means that a watch could not be resumed.
    pub fn lists(&self) -> u64 {
        self.0.lists.load(Ordering::Relaxed)
    }

    /// Failed calls and broken streams so far.
    pub fn errors(&self) -> u64 {
        self.0.errors.load(Ordering::Relaxed)
    }
}

/// Watches pods. `select`, which is told how each was seen, drops pods that the caller does not need and turns the
/// others into its own type at once, so that a list of the whole cluster stays small in memory.
pub fn watch_pods<T: Send + 'static>(
    client: Client,
    scope: Scope,
    health: WatchHealth,
    select: impl Fn(Pod, WatchCause) -> Option<T> + Send + 'static,
) -> Events<T> {
    let selection = scope.selection("spec.nodeName");
    follow(Api::all(client), selection, "pods", health, select)
}

/// Watches nodes, as [`watch_pods`] does pods.
pub fn watch_nodes<T: Send + 'static>(
    client: Client,
    scope: Scope,
    health: WatchHealth,
    select: impl Fn(Node) -> Option<T> + Send + 'static,
) -> Events<T> {
    let selection = scope.selection("metadata.name");
    follow(Api::all(client), selection, "nodes", health, move |node, _| select(node))
}

/// Watches the EndpointSlices of a Service, as [`watch_pods`] does pods.
pub fn watch_service(
    client: Client,
    service: ServicePort,
    health: WatchHealth,
) -> Events<SliceFacts> {
    let selection = Selection { labels: Some(of_service(&service)), fields: None };
    let slices: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    follow(slices, selection, "endpointslices", health, move |slice: EndpointSlice, _| {
        Some(slice.facts(service.port.as_deref()))
    })
}

/// Watches one ConfigMap, as [`watch_pods`] does pods.
pub fn watch_config_map(
    client: Client,
    namespace: &str,
    name: &str,
    health: WatchHealth,
) -> Events<ConfigMapFacts> {
    let selection = Selection { labels: None, fields: Some(format!("metadata.name={name}")) };
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    follow(maps, selection, "configmaps", health, |map: ConfigMap, _| Some(map.facts()))
}

/// Watches the ResourceSlices of a node, as [`watch_pods`] does pods.
pub fn watch_device_slices(
    client: Client,
    node: NodeName,
    health: WatchHealth,
) -> Events<DeviceSlice> {
    let selection = Scope::Node(node).selection(NODE_FIELD);
    follow(Api::all(client), selection, "resourceslices", health, |slice: ResourceSlice, _| {
        Some(slice.facts())
    })
}

/// Watches the ResourceClaims of all namespaces that have a device of `driver` or ask for one of the DeviceClass
/// `class`, as [`watch_pods`] does pods. A change of another claim comes as well, since it may have had a device
/// before; then nothing is allocated to it.
pub fn watch_resource_claims(
    client: Client,
    driver: &str,
    class: &str,
    health: WatchHealth,
) -> Events<WatchedResourceClaim> {
    let (driver, class) = (driver.to_owned(), class.to_owned());
    let select = move |claim: ResourceClaim, cause| {
        let concerns = cause != WatchCause::Listed || claim.concerns(&driver, &class);
        concerns.then(|| claim.watched(&driver, &class))
    };
    follow(Api::all(client), Selection::default(), "resourceclaims", health, select)
}

fn follow<K, T>(
    api: Api<K>,
    selection: Selection,
    what: &'static str,
    health: WatchHealth,
    select: impl Fn(K, WatchCause) -> Option<T> + Send + 'static,
) -> Events<T>
where
    K: Resource + Object + Clone + Send + 'static,
    T: Send + 'static,
{
    let path = api.resource_url().to_owned();
    let follower = Follower {
        source: source::<K>(api.into_client(), &path, selection).boxed(),
        select,
        what,
        health,
        listing: Vec::new(),
        backoff: DefaultBackoff::default(),
    };
    stream::unfold(follower, |mut follower: Follower<_, _, T>| async {
        let event = follower.next().await?;
        Some((event, follower))
    })
    .boxed()
}

struct Follower<S, F, T> {
    source: S,
    select: F,
    what: &'static str,
    health: WatchHealth,
    /// The list that is being read; dropped where reading it fails half-way.
    listing: Vec<T>,
    backoff: DefaultBackoff,
}

impl<S, F, K, T> Follower<S, F, T>
where
    S: Stream<Item = Result<watcher::Event<K>, SourceError>> + Unpin,
    F: Fn(K, WatchCause) -> Option<T>,
{
    async fn next(&mut self) -> Option<Event<T>> {
        loop {
            match self.source.next().await? {
                Ok(event) => {
                    if let Some(event) = self.take(event) {
                        return Some(event);
                    }
                }
                Err(error) => self.wait_after(&error).await,
            }
        }
    }

    fn take(&mut self, event: watcher::Event<K>) -> Option<Event<T>> {
        let counts = &self.health.0;
        counts.events.fetch_add(1, Ordering::Relaxed);
        // The backoff starts anew only after a whole list or a change: a list that fails half-way counts as a failure.
        if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
            self.backoff.reset();
        }
        match event {
            watcher::Event::Init => {
                counts.lists.fetch_add(1, Ordering::Relaxed);
                self.listing = Vec::new();
                Some(Event::Listing)
            }
            watcher::Event::InitApply(object) => {
                self.listing.extend((self.select)(object, WatchCause::Listed));
                None
            }
            watcher::Event::InitDone => Some(Event::Listed(std::mem::take(&mut self.listing))),
            watcher::Event::Apply(object) => {
                (self.select)(object, WatchCause::Changed).map(Event::Applied)
            }
            watcher::Event::Delete(object) => {
                (self.select)(object, WatchCause::Gone).map(Event::Gone)
            }
        }
    }

    async fn wait_after(&mut self, error: &SourceError) {
        self.health.0.errors.fetch_add(1, Ordering::Relaxed);
        let cause = call::innermost(error);
        tracing::warn!(watch = self.what, error = cause, "watch failed; trying again");
        // The backoff grows to 30 s, with jitter; it never gives up.
        if let Some(pause) = self.backoff.next() {
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Received = Result<watcher::Event<&'static str>, SourceError>;

    async fn events(received: Vec<Received>) -> (Vec<Event<&'static str>>, WatchHealth) {
        let health = WatchHealth::default();
        let mut follower = Follower {
            source: stream::iter(received),
            select: |text: &'static str, _| (text != "dull").then_some(text),
            what: "texts",
            health: health.clone(),
            listing: Vec::new(),
            backoff: DefaultBackoff::default(),
        };
        let mut events = Vec::new();
        while let Some(event) = follower.next().await {
            events.push(event);
        }
        (events, health)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_arrives_as_a_whole_and_without_what_is_not_selected() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let received = [Init, InitApply("a"), InitApply("dull"), InitApply("b"), InitDone];
        let received = received.into_iter().chain([Apply("dull"), Apply("c"), Delete("a")]);
        let (events, health) = events(received.map(Ok).collect()).await;
        let changes = [Event::Applied("c"), Event::Gone("a")];
        assert_eq!(events[..2], [Event::Listing, Event::Listed(vec!["a", "b"])]);
        assert_eq!(events[2..], changes);
        assert_eq!((health.lists(), health.errors()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_breaks_off_replaces_nothing() {
        use watcher::Event::{Init, InitApply, InitDone};
        let broken = [Ok(Init), Ok(InitApply("a")), Err(SourceError::NoVersion)];
        let whole = [Ok(Init), Ok(InitApply("b")), Ok(InitDone)];
        let (events, health) = events(broken.into_iter().chain(whole).collect()).await;
        let wanted = [Event::Listing, Event::Listing, Event::Listed(vec!["b"])];
        assert_eq!(events, wanted);
        assert_eq!((health.lists(), health.errors()), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_wait_ever_longer() {
        let start = tokio::time::Instant::now();
        let (_, health) = events(
            (0..6).flat_map(|_| [Ok(watcher::Event::Init), Err(SourceError::NoVersion)]).collect(),
        )
        .await;
        // 0.8 s doubled five times, jitter only ever added: at least 0.8 · (2⁶ − 1) without the cap of 30 s.
        assert!(start.elapsed() > std::time::Duration::from_secs(40), "{:?}", start.elapsed());
        assert_eq!(health.errors(), 6);
    }
}
