//! The rows of all nodes, with the number of the answer in which each changed last.
//!
//! Invariants: a client that has merged every answer since a complete one has exactly the rows of the last one. The
//! report is bounded by the cluster: it holds one row for each node, and the names of at most as many nodes that are
//! gone. A client that has missed more gets all rows.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::state::{GpuColumns, Metric, Nodes, Pool, Replica, State};
use jiff::{SignedDuration, Timestamp};
use placement::load::ResolvedPolicy;
use placement::units::{MetricName, NodeName};

use super::row::{Row, Rows};
use crate::view::View;

/// Rows are computed anew at most this often, however many clients ask.
const EVERY: SignedDuration = SignedDuration::from_millis(500);

/// Names of nodes that are gone at least, beyond one for each node.
const GONE: usize = 64;

/// The rows as last computed.
#[derive(Debug)]
pub struct StateReport {
    /// Differs between processes, so that a version of another process is not understood.
    process: u64,
    computed: Mutex<Computed>,
}

#[derive(Debug, Default)]
struct Computed {
    at: Option<Timestamp>,
    /// The number of the last answer.
    number: u64,
    /// The first number that a client may go on from: the lists below have not changed since.
    base: u64,
    policy: Option<Arc<ResolvedPolicy>>,
    metrics: Vec<MetricName>,
    models: Names,
    zones: Names,
    replica: Replica,
    rows: HashMap<NodeName, (u64, Row)>,
    /// Nodes that are gone, and the number of the answer that said so.
    gone: HashMap<NodeName, u64>,
}

/// Names by the order in which they were first seen.
#[derive(Debug, Default)]
struct Names {
    names: Vec<Arc<str>>,
    positions: HashMap<Arc<str>, u32>,
}

impl Names {
    fn position(&mut self, name: &Arc<str>) -> u32 {
        if let Some(position) = self.positions.get(name) {
            return *position;
        }
        let position = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(Arc::clone(name));
        self.positions.insert(Arc::clone(name), position);
        position
    }

    fn to_strings(&self) -> Vec<String> {
        self.names.iter().map(ToString::to_string).collect()
    }
}

impl Default for StateReport {
    fn default() -> Self {
        // The standard library's hashers have random keys.
        Self { process: RandomState::new().hash_one(0), computed: Mutex::default() }
    }
}

impl StateReport {
    /// Computes the rows at `now`, unless that was done a moment ago. Returns their version.
    pub fn refresh(&self, view: &View, replica: Replica, now: Timestamp) -> String {
        let mut computed = self.lock();
        let age = computed.at.map(|at| now.duration_since(at));
        if age.is_none_or(|age| age.is_negative() || age >= EVERY) || computed.replica != replica {
            computed.update(view, replica, now);
        }
        self.version(computed.number)
    }

    /// The state, or what has changed since the version `since`, as last computed.
    pub fn since(&self, since: Option<&str>, now: Timestamp) -> State {
        let mut computed = self.lock();
        let kept = computed.base..=computed.number;
        let from = since.and_then(|version| self.number(version)).filter(|at| kept.contains(at));
        let version = self.version(computed.number);
        computed.state(version, from.map(|number| (number, self.version(number))), now)
    }

    fn version(&self, number: u64) -> String {
        format!("{:x}-{number}", self.process)
    }

    /// The number of a version; `None` for one of another process.
    fn number(&self, version: &str) -> Option<u64> {
        let (process, number) = version.split_once('-')?;
        let is_own = u64::from_str_radix(process, 16) == Ok(self.process);
        if is_own { number.parse().ok() } else { None }
    }

    // An update that panics leaves rows that the next one corrects.
    fn lock(&self) -> MutexGuard<'_, Computed> {
        self.computed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Computed {
    fn update(&mut self, view: &View, replica: Replica, now: Timestamp) {
        let snapshot = view.read();
        let number = self.number + 1;
        let mut has_changed = self.replica != replica;
        let is_same_policy =
            self.policy.as_ref().is_some_and(|policy| Arc::ptr_eq(policy, &snapshot.policy));
        // Names of models and zones are sent whole with each answer, and only grow.
        let nodes = snapshot.names().places().len();
        let has_room = self.models.names.len().max(self.zones.names.len()) <= 2 * nodes + GONE;
        if !is_same_policy || !has_room {
            *self = Self { number: self.number, base: number, ..Self::default() };
            self.metrics = metrics(&snapshot.policy);
            self.policy = Some(Arc::clone(&snapshot.policy));
            has_changed = true;
        }
        self.replica = replica;
        let metrics = std::mem::take(&mut self.metrics);
        let rows = Rows { view, snapshot: &snapshot, metrics: &metrics, now };
        let mut seen: HashSet<&NodeName> = HashSet::with_capacity(nodes);
        for (name, state) in snapshot.states() {
            seen.insert(name);
            let row = rows.row(name, state);
            if self.rows.get(name).is_none_or(|(_, known)| *known != row) {
                self.rows.insert(name.clone(), (number, row));
                self.gone.remove(name);
                has_changed = true;
            }
        }
        let gone: Vec<NodeName> =
            self.rows.keys().filter(|name| !seen.contains(name)).cloned().collect();
        for name in gone {
            self.rows.remove(&name);
            self.gone.insert(name, number);
            has_changed = true;
        }
        if self.gone.len() > nodes + GONE {
            self.gone.clear();
            self.base = number;
        }
        self.metrics = metrics;
        self.at = Some(now);
        if has_changed {
            self.number = number;
        }
    }

    /// All rows, or those of answers after `since`, a number and its version.
    fn state(&mut self, version: String, since: Option<(u64, String)>, now: Timestamp) -> State {
        let after = since.as_ref().map_or(0, |(number, _)| *number);
        let mut changed: Vec<(&NodeName, &Row)> = Vec::new();
        for (name, (number, row)) in &self.rows {
            if *number > after || since.is_none() {
                changed.push((name, row));
            }
        }
        changed.sort_unstable_by_key(|(name, _)| *name);
        let (mut nodes, mut gpus) = (Nodes::default(), GpuColumns::default());
        nodes.readings = vec![Vec::with_capacity(changed.len()); self.metrics.len()];
        nodes.in_flight = nodes.readings.iter().map(|_| Vec::new()).collect();
        let pools =
            self.policy.as_deref().map_or_else(Vec::new, |policy| pools(&self.metrics, policy));
        for (name, row) in changed {
            push(&mut nodes, name, row, &mut self.zones);
            if !pools.is_empty() {
                nodes.pool.push(row.pool);
            }
            push_gpus(&mut gpus, row, &mut self.models);
        }
        let mut removed = Vec::new();
        for (name, number) in &self.gone {
            if since.is_some() && *number > after {
                removed.push(name.to_string());
            }
        }
        removed.sort_unstable();
        State {
            version,
            since: since.map(|(_, version)| version),
            time: now,
            replica: self.replica.clone(),
            metrics: described(&self.metrics, self.policy.as_deref()),
            pools,
            models: self.models.to_strings(),
            zones: self.zones.to_strings(),
            nodes,
            gpus,
            removed,
        }
    }
}

fn push(nodes: &mut Nodes, name: &NodeName, row: &Row, zones: &mut Names) {
    nodes.name.push(name.to_string());
    nodes.limit_ratio.push(row.limit_ratio);
    nodes.limit.push(row.limit);
    nodes.score.push(row.score);
    for (metric, (reading, in_flight)) in row.loads.iter().enumerate() {
        nodes.readings[metric].push(*reading);
        nodes.in_flight[metric].push(*in_flight);
    }
    nodes.read_at.push(row.read_at);
    nodes.missing.push(row.missing);
    nodes.zone.push(row.zone.as_ref().map(|zone| zones.position(zone)));
    nodes.gpus.push(u32::try_from(row.gpus.len()).unwrap_or(u32::MAX));
    nodes.unplaced.push(row.unplaced);
    nodes.backed_off.push(row.backed_off);
}

fn push_gpus(gpus: &mut GpuColumns, row: &Row, models: &mut Names) {
    for gpu in &row.gpus {
        let position = u32::try_from(gpus.index.len()).unwrap_or(u32::MAX);
        if !gpu.healthy {
            gpus.unhealthy.push(position);
        } else if gpu.closed {
            gpus.closed.push(position);
        }
        gpus.index.push(gpu.index);
        gpus.model.push(models.position(&gpu.model));
        gpus.units.push(gpu.units);
        gpus.held.push(gpu.held);
        gpus.held_cores.push(gpu.held_cores);
        gpus.pods.push(gpu.pods);
        gpus.memory.push(gpu.memory);
        gpus.used.push(gpu.used);
    }
}

/// The metrics of a policy, once each: those of limits first.
fn metrics(policy: &ResolvedPolicy) -> Vec<MetricName> {
    let mut names: Vec<MetricName> = Vec::new();
    let mut add = |name: &MetricName| {
        if !names.contains(name) {
            names.push(name.clone());
        }
    };
    policy.all_rules().flat_map(|rules| &rules.limits).for_each(|limit| add(&limit.metric.name));
    policy.all_rules().flat_map(|rules| &rules.weights).for_each(|weight| add(&weight.metric.name));
    names
}

/// Metrics with the limits and weights of a policy for nodes of no pool.
fn described(metrics: &[MetricName], policy: Option<&ResolvedPolicy>) -> Vec<Metric> {
    let Some(common) = policy.and_then(|policy| policy.all_rules().next()) else {
        return Vec::new();
    };
    let metric = |name: &MetricName| {
        let limit = common.limits.iter().find(|limit| limit.metric.name == *name);
        let weight = common.weights.iter().find(|weight| weight.metric.name == *name);
        let (max, share) = (limit.map(|limit| limit.max), weight.map(|weight| weight.share));
        Metric { name: name.to_string(), max, share }
    };
    metrics.iter().map(metric).collect()
}

/// The pools of a policy with their limits.
fn pools(metrics: &[MetricName], policy: &ResolvedPolicy) -> Vec<Pool> {
    let mut pools = Vec::new();
    for (pool, rules) in policy.policy.pools.iter().zip(policy.all_rules().skip(1)) {
        let max_of = |name: &MetricName| {
            Some(rules.limits.iter().find(|limit| limit.metric.name == *name)?.max)
        };
        let max = metrics.iter().map(max_of).collect();
        pools.push(Pool { name: pool.name.to_string(), max });
    }
    pools
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::{Event, NodeFacts};
    use placement::gpu::Gpu;
    use placement::policy::LoadPolicy;
    use proptest::prelude::*;

    use super::*;
    use crate::view::fixtures;

    /// What a client has: for each node its columns, with names in place of positions.
    #[derive(Debug, Default, PartialEq)]
    struct Client {
        nodes: BTreeMap<String, String>,
    }

    impl Client {
        fn merge(&mut self, state: &State) {
            if state.since.is_none() {
                self.nodes.clear();
            }
            let mut gpu = 0;
            for (at, name) in state.nodes.name.iter().enumerate() {
                let mut columns = format!("{:?}", state.nodes.score[at]);
                for _ in 0..state.nodes.gpus[at] {
                    let model = &state.models[state.gpus.model[gpu] as usize];
                    let is_unhealthy = state.gpus.unhealthy.contains(&(gpu as u32));
                    columns += &format!(" {model} {} {is_unhealthy}", state.gpus.units[gpu]);
                    gpu += 1;
                }
                self.nodes.insert(name.clone(), columns);
            }
            for name in &state.removed {
                self.nodes.remove(name);
            }
        }
    }

    const POLICIES: [&str; 2] = [
        "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {}",
        "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec: {metrics: [{name: cpu_usage_avg_5m, period: 1m, limit: 0.8}]}",
    ];

    proptest! {
        #[test]
        fn a_client_that_merges_each_answer_it_gets_has_what_a_new_client_is_told(
            steps in prop::collection::vec((0..200_usize, 0..6_u8, any::<bool>()), 1..120),
        ) {
            let (view, report) = (fixtures::view(), StateReport::default());
            let mut client = Client::default();
            let mut version: Option<String> = None;
            for (step, (node, act, asks)) in steps.into_iter().enumerate() {
                let name = format!("n{node}");
                match act {
                    0 => fixtures::leave(&view, &name),
                    1 => fixtures::join(&view, &name, Vec::new()),
                    2 => {
                        let policy = LoadPolicy::from_yaml(POLICIES[node % 2]).unwrap();
                        view.change(|index| index.set_policy(policy));
                    }
                    _ => {
                        let model = format!("model {}", node % 7).as_str().into();
                        let gpu = Gpu { healthy: act == 3, model, ..fixtures::gpu() };
                        fixtures::join(&view, &name, vec![gpu]);
                    }
                }
                if asks {
                    let now = Timestamp::from_second(step as i64).unwrap();
                    let replica = Replica { leads: step % 3 == 0, ..Replica::default() };
                    report.refresh(&view, replica, now);
                    let state = report.since(version.as_deref(), now);
                    client.merge(&state);
                    version = Some(state.version);
                    let mut fresh = Client::default();
                    fresh.merge(&report.since(None, now));
                    prop_assert_eq!(&client, &fresh);
                }
            }
        }
    }

    #[test]
    fn a_node_of_a_pool_names_it_and_each_pool_has_its_limits() {
        let policy = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  \
                      metrics: [{name: cpu_usage_avg_5m, period: 1m, limit: 0.65}]\n  \
                      nodePools:\n  - name: batch\n    selector: pool=batch\n    \
                      metrics: [{name: cpu_usage_avg_5m, limit: 0.95}]\n";
        let (view, report) = (fixtures::view(), StateReport::default());
        view.change(|index| index.set_policy(LoadPolicy::from_yaml(policy).unwrap()));
        fixtures::join(&view, "plain", Vec::new());
        let labels = [("pool".to_owned(), "batch".to_owned())].into();
        let pooled = NodeFacts { labels, ..fixtures::node("pooled", Vec::new()) };
        view.apply_nodes(Event::Applied(pooled), Timestamp::UNIX_EPOCH);
        report.refresh(&view, Replica::default(), Timestamp::UNIX_EPOCH);
        let state = report.since(None, Timestamp::UNIX_EPOCH);
        assert_eq!(state.metrics[0].max, Some(0.65));
        assert_eq!(state.pools, [Pool { name: "batch".to_owned(), max: vec![Some(0.95)] }]);
        assert_eq!(
            (state.nodes.name, state.nodes.pool),
            (vec!["plain".to_owned(), "pooled".to_owned()], vec![None, Some(0)])
        );
    }

    #[test]
    fn what_is_remembered_of_nodes_that_are_gone_is_bounded() {
        let (view, report) = (fixtures::view(), StateReport::default());
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = report.refresh(&view, Replica::default(), at(0));
        for step in 1..1_000 {
            fixtures::join(&view, &format!("n{step}"), Vec::new());
            report.refresh(&view, Replica::default(), at(2 * step));
            fixtures::leave(&view, &format!("n{step}"));
            report.refresh(&view, Replica::default(), at(2 * step + 1));
            assert!(report.lock().gone.len() <= GONE);
        }
        // A client that has missed too much is told everything.
        assert_eq!(report.since(Some(&first), at(9_000)).since, None);
    }
}
