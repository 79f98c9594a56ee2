//! The true load of every scripted node, and the `/proc` that its exporter reads.
//!
//! `/proc` shows the true load, unless the exporters are sabotaged. The checker reads the true loads here, and which
//! policy's limits they are compared with.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sim::{Load, ProcTree};

use super::nodes::{FLEET, NodePlan};
use super::policy::{Limits, Policy};

/// How often the counters in `/proc` advance. The exporters sample once a second.
const STEP: Duration = Duration::from_millis(200);
/// Period of the load's oscillation.
const PERIOD: Duration = Duration::from_secs(20);
/// What a sabotaged node shows instead of an overload.
const IDLE: Load = Load { cpu: 0.03, memory: 0.10 };

/// A node whose load the demo makes up.
struct ScriptedNode {
    /// The load around which `now` oscillates.
    base: Load,
    swing: f64,
    now: Load,
    overloaded_since: Option<Instant>,
    proc_tree: ProcTree,
}

/// All scripted nodes by name. Clones share one state.
#[derive(Clone)]
pub(crate) struct Loads {
    state: Arc<Mutex<State>>,
    hide_overload: bool,
    start: Instant,
}

struct State {
    nodes: BTreeMap<&'static str, ScriptedNode>,
    policy: Policy,
}

impl Loads {
    /// Makes the `/proc` of every scripted node as `root/NODE/proc`. With `hide_overload`, the `/proc` of an
    /// overloaded node shows an idle one.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn new(root: &Path, hide_overload: bool) -> io::Result<Self> {
        let start = Instant::now();
        let policy = Policy::default();
        let mut nodes = BTreeMap::new();
        for plan in &FLEET {
            if let Some(load) = plan.load {
                let mut node = ScriptedNode::new(plan, load, &root.join(plan.name))?;
                // A node that starts overloaded has been so for a minute.
                node.compare(policy.limits(), minute_before(start));
                nodes.insert(plan.name, node);
            }
        }
        let state = Arc::new(Mutex::new(State { nodes, policy }));
        Ok(Self { state, hide_overload, start })
    }

    /// Sets the CPU load around which a node oscillates, as a fraction.
    pub(crate) fn set_cpu(&self, node: &str, cpu: f64) {
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.base.cpu = cpu;
        }
    }

    /// From now on nodes are overloaded by this policy's limits.
    pub(crate) fn set_policy(&self, policy: Policy) {
        let mut state = self.lock();
        state.policy = policy;
        state.nodes.values_mut().for_each(|node| node.compare(policy.limits(), Instant::now()));
    }

    /// The policy whose limits say which nodes are overloaded.
    pub(crate) fn policy(&self) -> Policy {
        self.lock().policy
    }

    /// A node's true load; `None` for [`THIS_HOST`](super::nodes::THIS_HOST).
    pub(crate) fn now(&self, node: &str) -> Option<Load> {
        Some(self.lock().nodes.get(node)?.now)
    }

    /// Since when a node has been overloaded without a break.
    pub(crate) fn overloaded_since(&self, node: &str) -> Option<Instant> {
        self.lock().nodes.get(node)?.overloaded_since
    }

    /// Advances every node's counters with the time. Ends only with an error.
    pub(crate) async fn advance_forever(self) -> io::Result<()> {
        let mut last = Instant::now();
        loop {
            tokio::time::sleep(STEP).await;
            let now = Instant::now();
            self.advance(now.duration_since(last), now)?;
            last = now;
        }
    }

    fn advance(&self, elapsed: Duration, now: Instant) -> io::Result<()> {
        let turns = now.duration_since(self.start).as_secs_f64() / PERIOD.as_secs_f64();
        let mut state = self.lock();
        let limits = state.policy.limits();
        state.nodes.values_mut().enumerate().try_for_each(|(index, node)| {
            // Each node has a phase of its own.
            let phase = std::f64::consts::TAU * (turns + index as f64 / 7.0);
            let cpu = (node.base.cpu + node.swing * phase.sin()).clamp(0.0, 1.0);
            node.now = Load { cpu, ..node.base };
            node.compare(limits, now);
            let hides = self.hide_overload && node.overloaded_since.is_some();
            node.proc_tree.advance(elapsed, if hides { IDLE } else { node.now })
        })
    }

    // After a panic a node's overload may be that of a moment ago, until the next step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptedNode {
    fn new(plan: &NodePlan, load: Load, root: &Path) -> io::Result<Self> {
        let proc_tree = ProcTree::new(&root.join("proc"), load)?;
        Ok(Self { base: load, swing: plan.swing, now: load, overloaded_since: None, proc_tree })
    }

    /// Compares the load with the limits. A node that is over one keeps the time at which it went over, else gets
    /// `now`.
    fn compare(&mut self, limits: Limits, now: Instant) {
        let Load { cpu, memory } = self.now;
        let is_over = limits.exceeded_by(Some(cpu), Some(memory)).is_any();
        self.overloaded_since = is_over.then(|| self.overloaded_since.unwrap_or(now));
    }
}

fn minute_before(now: Instant) -> Instant {
    now.checked_sub(Duration::from_secs(60)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_between_two_limits_is_overloaded_as_long_as_the_stricter_one_is_in_force() {
        let root = tempfile::tempdir().unwrap();
        let loads = Loads::new(root.path(), false).unwrap();
        loads.set_cpu("cpu-4", 0.72);
        loads.advance(STEP, Instant::now()).unwrap();
        assert_eq!(loads.overloaded_since("cpu-4"), None);
        loads.set_policy(Policy::Crane);
        assert!(loads.overloaded_since("cpu-4").is_some());
        loads.set_policy(Policy::Shipped);
        assert_eq!(loads.overloaded_since("cpu-4"), None);
        assert!(loads.overloaded_since("cpu-2").is_some_and(|since| since < loads.start));
    }
}
