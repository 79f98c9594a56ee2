//! Applies watch events to the view.
//!
//! Invariant: after a list, each pod in the view was in the list, or was bound after the list began and is looked up.
//! A list does not end a reservation: it stays until the API server has answered the binding.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::{ContainerRuns, Event, Events, NodeFacts, Pod, PodFacts, WatchCause};
use daemon::Shutdown;
use futures::StreamExt;
use jiff::Timestamp;
use placement::load::{EndedPod, PastUse};
use placement::names::Names;
use placement::resources::Amounts;
use placement::units::{NodeName, PodUid};

use super::{GpuPodId, View, WatchState};

/// The data of a pod that the view keeps.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchedPod {
    /// A pod that requests GPU memory, or whose request cannot be read, with its use of CPU and memory.
    Gpu(Box<PodFacts>, PodUse),
    /// A pod without such a request, whose start or end affects decisions.
    Bound(BoundPod),
}

/// A pod that was bound recently, has ended recently, or is being deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundPod {
    uid: PodUid,
    node: NodeName,
    at: Timestamp,
    usage: PodUse,
}

/// What a pod uses of CPU and memory, and until when.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodUse {
    /// Its estimated use.
    expected: Amounts,
    /// The cores that its workload was seen to use; `None` where that is not known.
    measured_cpu: Option<f64>,
    /// When its containers ran; `None` while one has not started.
    runs: Option<ContainerRuns>,
    /// When it ended; `None` while it runs.
    ended_at: Option<Timestamp>,
}

/// The data of a pod that the view keeps; `None` for most pods of a cluster.
pub fn select_pod(view: &View, names: &Names, pod: &Pod, now: Timestamp) -> Option<WatchedPod> {
    let facts = pod.facts(names);
    let usage = || {
        let (expected, measured_cpu) = view.expected_and_measured(pod, names).unwrap_or_default();
        let (runs, ended_at) = (pod.container_runs(), pod.ended_at());
        PodUse { expected, measured_cpu, runs, ended_at }
    };
    match (&facts.gpu, &facts.node, facts.bound_at) {
        (Ok(None), Some(node), Some(at)) => {
            let ended_at = pod.ended_at();
            let is_recent = |at| view.load.is_recent(at, now);
            let is_ending = facts.deleting && !facts.finished;
            let may_start = view.load.may_start(at, now);
            let counts = is_ending || may_start || is_recent(at) || ended_at.is_some_and(is_recent);
            let (uid, node) = (facts.uid, node.clone());
            counts.then(|| WatchedPod::Bound(BoundPod { uid, node, at, usage: usage() }))
        }
        (Ok(None), ..) => None,
        _ => Some(WatchedPod::Gpu(Box::new(facts), usage())),
    }
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
    let apply = |event| look_up(view.apply_pods(event, &mut settled, clock()));
    shutdown.run_until_cancelled(follow(&view.pods, watch, apply)).await;
    Ok(())
}

/// Releases the units of departed pods in time ([`CardBook::depart`](super::CardBook::depart)), and those of pods on lost cards
/// ([`CardBook::settle_lost_cards`](super::CardBook::settle_lost_cards)), until the shutdown.
///
/// # Errors
///
/// None.
pub async fn end_departures(
    view: Arc<View>,
    clock: crate::Clock,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let ending = async {
        loop {
            seconds.tick().await;
            let now = clock();
            view.cards.end_departures(now);
            view.cards.settle_lost_cards(now);
        }
    };
    shutdown.run_until_cancelled(ending).await;
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
    let apply = |event| view.apply_nodes(event, clock());
    shutdown.run_until_cancelled(follow(&view.nodes, watch, apply)).await;
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

impl PodUse {
    /// The pod's end: at `now` where it is not known. It used what its workload was seen to use, while all of its containers ran.
    fn ended(&self, pod: &PodUid, now: Timestamp) -> EndedPod {
        let ended_at = self.ended_at.unwrap_or(now);
        let used = self.runs.zip(self.measured_cpu).map(|(runs, cpu)| PastUse {
            from: runs.from,
            until: runs.until.unwrap_or(ended_at),
            cpu,
        });
        EndedPod { uid: pod.clone(), ended_at, used }
    }
}

impl View {
    /// Applies an event of the pods' watch. `settled` is state of the caller: the pods that were settled when the current list
    /// began. Returns the pods to look up: a list did not have them, and no event may come for their end.
    #[must_use]
    pub fn apply_pods(
        &self,
        event: Event<WatchedPod>,
        settled: &mut HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        match event {
            Event::Listing => {
                self.cards.begin_list();
                *settled = self.cards.settled();
            }
            Event::Listed(pods) => return self.apply_list(&pods, &std::mem::take(settled), now),
            Event::Applied(pod) => self.apply_pod(&pod, now),
            Event::Gone(WatchedPod::Gpu(facts, usage)) => {
                match facts.may_run() {
                    true => self.cards.depart(&facts.uid, now),
                    false => self.cards.forget(&facts.uid),
                }
                if let Some(node) = &facts.node {
                    self.load.ended(node, &usage.ended(&facts.uid, now));
                }
            }
            // The binding still counts in the hot value.
            Event::Gone(WatchedPod::Bound(pod)) => {
                self.load.ended(&pod.node, &pod.usage.ended(&pod.uid, now));
            }
        }
        Vec::new()
    }

    /// Counts a pod's CPU request on its node, by a watch event.
    pub fn count_cpu(&self, pod: &Pod, seen: WatchCause) {
        self.cards.count_cpu(pod, seen);
        if let (Some(node), WatchCause::Changed | WatchCause::Gone) = (pod.node(), seen) {
            self.update_requested_cpu(&node.into());
        }
    }

    /// Updates the requested CPU in a node's load, after it has changed.
    pub fn update_requested_cpu(&self, node: &NodeName) {
        self.load.set_requested_cpu(node, || self.cards.requested_cpu(node));
    }

    fn apply_list(
        &self,
        pods: &[WatchedPod],
        settled: &HashSet<PodUid>,
        now: Timestamp,
    ) -> Vec<GpuPodId> {
        pods.iter().for_each(|pod| self.apply_pod(pod, now));
        let gpu = pods.iter().filter_map(|pod| match pod {
            WatchedPod::Gpu(facts, _) => Some(facts.uid.clone()),
            WatchedPod::Bound(..) => None,
        });
        let to_look_up = self.cards.after_list(&gpu.collect(), settled, now);
        self.cards.end_list();
        self.load.set_requested_cpus(|node| self.cards.requested_cpu(node));
        self.pods.set_listed();
        to_look_up
    }

    fn apply_pod(&self, pod: &WatchedPod, now: Timestamp) {
        match pod {
            WatchedPod::Bound(BoundPod { uid, node, at, usage }) => {
                self.apply_use(uid, node, *at, usage, now);
            }
            WatchedPod::Gpu(facts, usage) => self.apply_gpu_pod(facts, usage, now),
        }
    }

    fn apply_gpu_pod(&self, facts: &PodFacts, usage: &PodUse, now: Timestamp) {
        match &facts.gpu {
            Ok(Some(gpu)) => {
                self.cards.count_admission(facts, gpu, now);
                self.apply_to_cards(facts, gpu);
            }
            Ok(None) => {}
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let (namespace, name) = (&facts.namespace, &facts.name);
                tracing::warn!(namespace, name, %error, "pod refused, its units are not counted");
            }
        }
        if let (Some(node), Some(at)) = (&facts.node, facts.bound_at) {
            self.apply_use(&facts.uid, node, at, usage, now);
        }
    }

    /// Counts the start and the end of a pod on its node.
    fn apply_use(
        &self,
        pod: &PodUid,
        node: &NodeName,
        bound_at: Timestamp,
        usage: &PodUse,
        now: Timestamp,
    ) {
        let is_recent = |at| self.load.is_recent(at, now);
        let starts = usage.runs.is_none_or(|runs| is_recent(runs.started_at));
        if is_recent(bound_at) || (starts && self.load.may_start(bound_at, now)) {
            self.load.record_binding(pod, node, bound_at, Some(usage.expected));
        }
        if let Some(runs) = usage.runs {
            self.load.record_start(pod, node, runs.started_at);
        }
        // The conditions of a pod that has never run do not change when it ends.
        let may_count = |at| is_recent(at) || self.load.may_start(bound_at, now);
        if usage.ended_at.is_some_and(may_count) {
            self.load.ended(node, &usage.ended(pod, now));
        }
    }

    /// Applies an event of the nodes' watch.
    pub fn apply_nodes(&self, event: Event<NodeFacts>, now: Timestamp) {
        match event {
            Event::Listing => {}
            Event::Listed(nodes) => {
                let names: HashSet<&NodeName> = nodes.iter().map(|node| &node.name).collect();
                let gone = self.cards.nodes().into_iter().filter(|name| !names.contains(name));
                gone.for_each(|name| self.remove_cards(&name));
                self.cards.keep_not_ready(&names);
                nodes.iter().for_each(|node| self.apply_cards(node, now));
                self.load.set_nodes(nodes, now);
                self.load.set_requested_cpus(|node| self.cards.requested_cpu(node));
                self.nodes.set_listed();
            }
            Event::Applied(node) => {
                self.apply_cards(&node, now);
                self.load.set_node(&node, now);
                self.update_requested_cpu(&node.name);
            }
            Event::Gone(node) => {
                self.remove_cards(&node.name);
                self.load.remove_node(&node.name);
            }
        }
    }

    fn remove_cards(&self, node: &NodeName) {
        self.cards.set_cards(node, Vec::new());
        self.cards.set_allocatable_cpu(node, None);
        self.cards.set_measured(node, None);
        self.cards.set_ready(node, true);
    }

    fn apply_cards(&self, node: &NodeFacts, now: Timestamp) {
        self.cards.set_ready(&node.name, node.ready != Some(false));
        match &node.cards {
            Some(Ok(cards)) => self.cards.set_cards(&node.name, cards.clone()),
            None => self.cards.set_cards(&node.name, Vec::new()),
            // The last good report stays in force: a faulty report does not mean that the cards are gone.
            Some(Err(error)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(node = %node.name, %error, "report of cards refused");
            }
        }
        self.cards.set_allocatable_cpu(&node.name, node.allocatable_cpu);
        self.cards.set_measured(&node.name, node.measured.as_ref());
        self.count_unmanaged_on(&node.name, now);
    }
}
