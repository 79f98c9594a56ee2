//! The watches of nodes, pods and ResourceClaims, whose events change the view.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::{Event, Events, NodeFacts, Pod, WatchHealth, WatchedResourceClaim};
use daemon::{Condition, Shutdown};
use futures::StreamExt;
use jiff::Timestamp;
use placement::names::Names;
use tokio::sync::watch;

use super::index::{is_recent, may_start};
use super::{BoundPod, ClaimingPod, Current, GpuPodId, PodUse, View, WatchedPod};

/// The state of one of the view's watches.
pub struct WatchState {
    /// The health of the watch.
    pub health: WatchHealth,
    listed: AtomicBool,
    condition: Condition,
    /// The number of the last requested list.
    requested: watch::Sender<u64>,
    /// The number of the last requested list that is in the view.
    completed: watch::Sender<u64>,
}

impl WatchState {
    /// A watch without events yet; `condition` becomes ready with its first list.
    #[must_use]
    pub fn new(condition: Condition) -> Self {
        Self {
            health: WatchHealth::default(),
            listed: AtomicBool::new(false),
            condition,
            requested: watch::Sender::new(0),
            completed: watch::Sender::new(0),
        }
    }

    /// Requests a new list, and returns once a list that began after this call is in the view. `number` must be above
    /// that of every earlier call.
    pub async fn relist(&self, number: u64) {
        let mut completed = self.completed.subscribe();
        self.requested.send_replace(number);
        // Never closed: `self` holds the sender.
        let _ = completed.wait_for(|completed| *completed >= number).await;
    }

    /// Whether a list is in the view.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    pub(super) fn set_listed(&self) {
        self.listed.store(true, Ordering::Release);
        self.condition.set_ready();
    }
}

/// The data of a pod that the view keeps; `None` for most pods of a cluster.
pub fn select_pod(view: &View, names: &Names, pod: &Pod, now: Timestamp) -> Option<WatchedPod> {
    let facts = pod.facts(names);
    let current = view.current();
    match (&facts.gpu, &facts.node, facts.bound_at) {
        (Ok(None), Some(node), Some(at)) => {
            let policy = &current.snapshot.policy.policy;
            let is_ending = facts.deleting && !facts.finished;
            let has_ended = pod.ended_at(now).is_some_and(|at| is_recent(policy, at, now));
            let counts = is_recent(policy, at, now) || may_start(policy, at, now);
            // It may have waited for them.
            let has_claims = view.claims.is_some() && pod.has_resource_claims();
            if !(is_ending || has_ended || counts || has_claims) {
                return None;
            }
            let usage = pod_use(&current, pod, names, now);
            let (uid, node, ends_claims) = (facts.uid, node.clone(), has_claims && is_ending);
            Some(WatchedPod::Bound(BoundPod { uid, node, at, usage, ends_claims }))
        }
        (Ok(None), None, _) if view.claims.is_some() && pod.has_resource_claims() => {
            // Where its volumes can be, kube-scheduler has told nobody.
            let claim = pod.sole_resource_claim().filter(|_| !pod.has_volume_claims());
            let waits = facts.waits_at.zip(claim).map(|(priority, claim)| ClaimingPod {
                pod: GpuPodId::of(pod),
                claim: claim.to_owned(),
                priority,
                created_at: facts.created_at,
            });
            Some(WatchedPod::Claiming(facts.uid, waits))
        }
        (Ok(None), ..) => None,
        _ => {
            let usage = pod_use(&current, pod, names, now);
            Some(WatchedPod::Gpu(Box::new(facts), usage))
        }
    }
}

fn pod_use(current: &Current, pod: &Pod, names: &Names, now: Timestamp) -> PodUse {
    let expected = current.expected_use(pod, names).unwrap_or_default();
    PodUse { expected, runs: pod.container_runs(now), ended_at: pod.ended_at(now) }
}

/// Applies pod events to the view until the shutdown. The watch starts again for each requested list
/// ([`WatchState::relist`]). `look_up` receives the pods for which no event may come any more.
///
/// # Errors
///
/// None: the watch has no end.
pub async fn follow_pods(
    view: Arc<View>,
    watch: impl Fn() -> Events<WatchedPod> + Send,
    look_up: impl Fn(Vec<GpuPodId>) + Send,
    clock: crate::Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut settled = HashSet::new();
    let following = follow(&view.pods, watch, |event| {
        look_up(view.apply_pods(event, &mut settled, clock()));
    });
    shutdown.run_until_cancelled(following).await;
    Ok(())
}

/// Tells the view the time each second, until the shutdown: [`Index::tick`](super::Index::tick).
///
/// # Errors
///
/// None.
pub async fn tick(view: Arc<View>, clock: crate::Clock, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let ticking = async {
        loop {
            seconds.tick().await;
            view.change(|index| index.tick(clock()));
        }
    };
    shutdown.run_until_cancelled(ticking).await;
    Ok(())
}

/// Applies node events to the view until the shutdown, as [`follow_pods`] does for pods.
///
/// # Errors
///
/// None: the watch has no end.
pub async fn follow_nodes(
    view: Arc<View>,
    watch: impl Fn() -> Events<NodeFacts> + Send,
    clock: crate::Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let following = follow(&view.nodes, watch, |event| view.apply_nodes(event, clock()));
    shutdown.run_until_cancelled(following).await;
    Ok(())
}

/// Applies events of ResourceClaims to the view until the shutdown, as [`follow_pods`] does for pods. Does nothing for
/// a view without that watch.
///
/// # Errors
///
/// None: the watch has no end.
pub async fn follow_resource_claims(
    view: Arc<View>,
    watch: impl Fn() -> Events<WatchedResourceClaim> + Send,
    clock: crate::Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let Some(claims) = &view.claims else { return Ok(()) };
    let following = follow(claims, watch, |event| view.apply_resource_claims(event, clock()));
    shutdown.run_until_cancelled(following).await;
    Ok(())
}

/// Applies the events of a watch, which starts again for each requested list.
async fn follow<T>(
    source: &WatchState,
    watch: impl Fn() -> Events<T>,
    mut apply: impl FnMut(Event<T>),
) {
    let mut requested = source.requested.subscribe();
    let mut number = *requested.borrow_and_update();
    let mut events = watch();
    loop {
        tokio::select! {
            biased;
            Ok(()) = requested.changed() => {
                number = *requested.borrow_and_update();
                events = watch();
            }
            event = events.next() => {
                let Some(event) = event else { return };
                let is_list = matches!(event, Event::Listed(_));
                apply(event);
                if is_list {
                    source.completed.send_replace(number);
                }
            }
        }
    }
}
