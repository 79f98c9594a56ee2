//! All workloads, and which of them are dropped when the limit is reached.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::estimate::LearnedUse;
use crate::resources::{PerResource, PodResources};
use crate::shares::gives_way;
use crate::workload::{HALF_LIFE, MOST_POD_MINUTES, WorkloadId};
use jiff::{SignedDuration, Timestamp};

use super::usage::{Usage, is_possible};

/// One of this many workloads is dropped when the limit is reached, so that a flood of new workloads does not sort all
/// others each time.
const BATCH: usize = 64;

/// The limits on workloads and their age.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The largest number of workloads.
    pub workloads: usize,
    /// After this time an observation weighs half as much as a new one.
    pub half_life: SignedDuration,
    /// A workload without observations for this long is dropped before all others.
    pub max_age: SignedDuration,
}

/// 10,000 workloads; a day, so that the learned use covers a daily cycle; two weeks, for weekly jobs.
impl Default for Limits {
    fn default() -> Self {
        Self {
            workloads: 10_000,
            half_life: HALF_LIFE,
            max_age: SignedDuration::from_hours(14 * 24),
        }
    }
}

/// Counts since the start, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Current workloads.
    pub workloads: usize,
    /// Observations of a pod.
    pub observations: u64,
    /// Observations with an amount that no pod can use: not finite, negative, or beyond 1,048 cores or 8 TiB.
    pub refused: u64,
    /// Dropped workloads.
    pub evicted: u64,
    /// Workloads that [`Learner::restore`] made.
    pub restored: u64,
}

/// A workload with its learned use.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// The workload.
    pub id: WorkloadId,
    /// `None` for a resource with too little evidence.
    pub used: PerResource<Option<LearnedUse>>,
    /// The observed pod-minutes, weighted as of `last_seen`: older minutes count less.
    pub pod_minutes: f64,
    /// When it was last observed.
    pub last_seen: Timestamp,
}

/// The histograms of each workload's use.
#[derive(Debug)]
pub struct Learner {
    limits: Limits,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    stats: Stats,
    /// The state of the draws that decide about fractions of a count.
    random: u64,
}

/// All workloads at one time. The learner continues; it copies the workloads that it changes while the snapshot exists.
#[derive(Debug, Clone)]
pub struct Snapshot(Vec<(WorkloadId, Arc<Usage>)>);

#[derive(Debug, Default)]
struct Namespace {
    by_name: HashMap<Arc<str>, Vec<Workload>>,
    workloads: usize,
}

#[derive(Debug)]
struct Workload {
    kind: Arc<str>,
    template: u64,
    /// A [`Snapshot`] may hold it too.
    usage: Arc<Usage>,
}

impl Default for Learner {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Learner {
    /// A learner without workloads.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, namespaces: BTreeMap::new(), stats: Stats::default(), random: 1 }
    }

    /// Records the mean use of one pod, in cores and bytes, over the time `lasting` that ends at `now`. Impossible
    /// amounts are refused. `resources` are the pod's requests and limits.
    pub fn observe(
        &mut self,
        id: &WorkloadId,
        resources: &PodResources,
        used: PerResource<Option<f64>>,
        lasting: SignedDuration,
        now: Timestamp,
    ) {
        let possible = PerResource::of(|resource| {
            used.get(resource).filter(|used| is_possible(resource, *used))
        });
        self.stats.refused += u64::from(possible != used);
        if possible == PerResource::default() || !lasting.is_positive() {
            return;
        }
        self.stats.observations += 1;
        let minutes = (lasting.as_secs_f64() / 60.0) as f32;
        let half_life = self.limits.half_life;
        let draws = self.draws();
        let mut new = None;
        let usage = match self.known(id) {
            Some(usage) => usage,
            None => new.insert(self.first_use(id, now)),
        };
        usage.age(growth(usage.last_seen, now, half_life));
        usage.record(resources, possible, minutes, now, draws);
        if let Some(usage) = new {
            self.insert(id, usage);
        }
    }

    /// Replaces all workloads by those that another learner had at `now`, and goes on from there. Nothing of what it
    /// had itself stays: the other may have learned that too. The list comes from outside, so what it says of time is
    /// limited: otherwise nothing would count beside it. A list with less than half of this learner's evidence is of
    /// one that had just begun, and changes nothing.
    pub fn restore(&mut self, list: impl IntoIterator<Item = Learned>, now: Timestamp) {
        let others: Vec<Learned> = list.into_iter().collect();
        let evidence = |learned: &Learned| {
            let growth = growth(learned.last_seen, now, self.limits.half_life);
            learned.pod_minutes.clamp(0.0, MOST_POD_MINUTES) / f64::from(growth)
        };
        let own: f64 = self.snapshot().iter().map(|learned| evidence(&learned)).sum();
        if others.iter().map(evidence).sum::<f64>() < own / 2.0 {
            return;
        }
        self.namespaces.clear();
        self.stats.workloads = 0;
        for Learned { id, used, pod_minutes, last_seen } in others {
            let seen = last_seen.min(now);
            let is_over = now.duration_since(seen) > self.limits.max_age;
            if !is_over && self.known(&id).is_none() {
                let minutes = pod_minutes.clamp(0.0, MOST_POD_MINUTES);
                self.insert(&id, Usage::restored(&used, minutes, seen));
                self.stats.restored += 1;
            }
        }
    }

    /// The learned use of the workload, otherwise of the best known template of the same controller; `None` if the
    /// controller is unknown.
    #[must_use]
    pub fn learned(&self, id: &WorkloadId) -> Option<PerResource<Option<LearnedUse>>> {
        let alike = self.namespaces.get(&id.namespace)?.by_name.get(&id.name)?;
        let same = alike.iter().find(|workload| workload.is(id));
        let workload = same.or_else(|| self.best_known(alike, &id.kind))?;
        Some(workload.usage.learned())
    }

    /// All workloads as they are now. This takes little time: statistics are computed when the snapshot is read.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut all = Vec::with_capacity(self.stats.workloads);
        for (namespace, of_namespace) in &self.namespaces {
            for (name, alike) in &of_namespace.by_name {
                for workload in alike {
                    all.push((workload.id(namespace, name), Arc::clone(&workload.usage)));
                }
            }
        }
        Snapshot(all)
    }

    /// Counts for metrics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    fn known(&mut self, id: &WorkloadId) -> Option<&mut Usage> {
        let alike = self.namespaces.get_mut(&id.namespace)?.by_name.get_mut(&id.name)?;
        alike
            .iter_mut()
            .find(|workload| workload.is(id))
            .map(|workload| Arc::make_mut(&mut workload.usage))
    }

    /// The best known workload of that kind. Not the last observed one, which may be a single pod that names the
    /// controller as its owner without having been created by it.
    fn best_known<'a>(&self, alike: &'a [Workload], kind: &str) -> Option<&'a Workload> {
        let is_of_kind = |workload: &&Workload| *workload.kind == *kind;
        let evidence = |workload: &Workload| workload.usage.evidence(self.limits.half_life);
        alike.iter().filter(is_of_kind).max_by(|a, b| evidence(a).total_cmp(&evidence(b)))
    }

    /// The initial use of a new workload: that of its controller's best known template.
    fn first_use(&self, id: &WorkloadId, now: Timestamp) -> Usage {
        let alike = self.namespaces.get(&id.namespace).and_then(|all| all.by_name.get(&id.name));
        match alike.and_then(|alike| self.best_known(alike, &id.kind)) {
            Some(Workload { usage, .. }) if usage.learned() != PerResource::default() => {
                usage.inherited(growth(usage.last_seen, now, self.limits.half_life), now)
            }
            _ => Usage::new(now),
        }
    }

    /// Adds an unknown workload, and drops others if the limit is reached.
    fn insert(&mut self, id: &WorkloadId, usage: Usage) {
        if self.stats.workloads >= self.limits.workloads {
            self.make_room(&id.namespace, usage.last_seen);
        }
        let namespace = self.namespaces.entry(Arc::clone(&id.namespace)).or_default();
        let alike = namespace.by_name.entry(Arc::clone(&id.name)).or_default();
        // Templates, also of controllers of other kinds with the same name.
        if alike.len() >= id.most_templates() {
            let half_life = self.limits.half_life;
            let evidence = |at: &usize| alike[*at].usage.evidence(half_life);
            let least_known = (0..alike.len()).min_by(|a, b| evidence(a).total_cmp(&evidence(b)));
            least_known.map(|at| alike.swap_remove(at));
            namespace.workloads -= 1;
            self.stats.workloads -= 1;
            self.stats.evicted += 1;
        }
        let (kind, template) = (Arc::clone(&id.kind), id.template);
        alike.reserve_exact(1);
        alike.push(Workload { kind, template, usage: Arc::new(usage) });
        namespace.workloads += 1;
        self.stats.workloads += 1;
    }

    /// Drops the expired workloads. If there are none, drops the least recently observed ones of the namespace that
    /// [`gives_way`].
    fn make_room(&mut self, namespace: &str, now: Timestamp) {
        let max_age = self.limits.max_age;
        for namespace in self.namespaces.values_mut() {
            namespace.retain(|workload| now.duration_since(workload.usage.last_seen) <= max_age);
        }
        if self.count() >= self.limits.workloads {
            let counts = self.namespaces.iter().map(|(name, each)| (name, each.workloads));
            let loses = gives_way(self.limits.workloads, counts, namespace).cloned();
            let loser = loses.and_then(|name| self.namespaces.get_mut(&name));
            loser.into_iter().for_each(Namespace::drop_oldest);
        }
        self.namespaces.retain(|_, namespace| namespace.workloads > 0);
        let left = self.count();
        self.stats.evicted += (self.stats.workloads - left) as u64;
        self.stats.workloads = left;
    }

    fn count(&self) -> usize {
        self.namespaces.values().map(|namespace| namespace.workloads).sum()
    }

    /// Four numbers from 0 up to 1. They need be no more than spread evenly: splitmix64.
    fn draws(&mut self) -> [f32; 4] {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        [0, 16, 32, 48].map(|shift| f32::from((bits >> shift) as u16) / 65_536.0)
    }
}

impl Namespace {
    fn retain(&mut self, keep: impl Fn(&Workload) -> bool) {
        self.by_name.retain(|_, alike| {
            alike.retain(&keep);
            !alike.is_empty()
        });
        self.workloads = self.by_name.values().map(Vec::len).sum();
    }

    /// Drops one in [`BATCH`], at least one: the least recently observed ones.
    fn drop_oldest(&mut self) {
        let mut all = Vec::with_capacity(self.workloads);
        for (name, alike) in &self.by_name {
            for Workload { kind, template, usage } in alike {
                all.push((usage.last_seen, Arc::clone(name), Arc::clone(kind), *template));
            }
        }
        all.sort_unstable();
        for (_, name, kind, template) in all.iter().take(self.workloads.div_ceil(BATCH)) {
            if let Some(alike) = self.by_name.get_mut(name) {
                alike.retain(|each| (&each.kind, &each.template) != (kind, template));
            }
        }
        self.retain(|_| true);
    }
}

impl Workload {
    fn is(&self, id: &WorkloadId) -> bool {
        self.template == id.template && self.kind == id.kind
    }

    fn id(&self, namespace: &Arc<str>, name: &Arc<str>) -> WorkloadId {
        WorkloadId {
            namespace: Arc::clone(namespace),
            kind: Arc::clone(&self.kind),
            name: Arc::clone(name),
            template: self.template,
        }
    }
}

impl Learned {
    fn new(id: WorkloadId, usage: &Usage) -> Self {
        let (pod_minutes, last_seen) = (usage.pod_minutes(), usage.last_seen);
        Self { id, used: usage.learned(), pod_minutes, last_seen }
    }
}

impl Snapshot {
    /// The workloads with a learned use, by namespace.
    pub fn iter(&self) -> impl Iterator<Item = Learned> + '_ {
        let learned = |(id, usage): &(WorkloadId, Arc<Usage>)| Learned::new(id.clone(), usage);
        self.0.iter().map(learned).filter(|learned| learned.used != PerResource::default())
    }
}

/// How much more an observation at `now` weighs than one at `before`. A clock that was set back changes nothing.
fn growth(before: Timestamp, now: Timestamp, half_life: SignedDuration) -> f32 {
    if now <= before {
        return 1.0;
    }
    let passed = now.duration_since(before).as_secs_f64();
    (passed / half_life.as_secs_f64().max(1.0)).exp2() as f32
}
