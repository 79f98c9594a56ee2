//! The true load of every scripted node, and the `/proc` that its exporter reads.
//!
//! `/proc` shows the true load, unless the exporters are sabotaged. The checker reads the true loads here.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sim::{Load, ProcTree};

use super::nodes::{FLEET, NodePlan};

/// How often the counters in `/proc` advance. The exporters sample once a second.
const STEP: Duration = Duration::from_millis(200);
/// Period of the load's oscillation.
const PERIOD: Duration = Duration::from_secs(20);
/// What a sabotaged node shows instead of an overload.
const IDLE: Load = Load { cpu: 0.03, memory: 0.10 };
/// The limit of the demo's policy for CPU and for memory. Above it a node is overloaded.
pub(crate) const LIMIT: f64 = 0.65;

/// Whether a load is known and above the limit.
pub(crate) fn is_above_limit(load: Option<f64>) -> bool {
    load.is_some_and(|load| load > LIMIT)
}

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
    nodes: Arc<Mutex<BTreeMap<&'static str, ScriptedNode>>>,
    hide_overload: bool,
    start: Instant,
}

impl Loads {
    /// Makes the `/proc` of every scripted node as `root/NODE/proc`. With `hide_overload`, the `/proc` of an
    /// overloaded node shows an idle one.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn new(root: &Path, hide_overload: bool) -> io::Result<Self> {
        let start = Instant::now();
        let mut nodes = BTreeMap::new();
        for plan in &FLEET {
            if let Some(load) = plan.load {
                let node = ScriptedNode::new(plan, load, &root.join(plan.name), start)?;
                nodes.insert(plan.name, node);
            }
        }
        Ok(Self { nodes: Arc::new(Mutex::new(nodes)), hide_overload, start })
    }

    /// Sets the CPU load around which a node oscillates, as a fraction.
    pub(crate) fn set_cpu(&self, node: &str, cpu: f64) {
        if let Some(node) = self.lock().get_mut(node) {
            node.base.cpu = cpu;
        }
    }

    /// A node's true load; `None` for [`THIS_HOST`](super::nodes::THIS_HOST).
    pub(crate) fn now(&self, node: &str) -> Option<Load> {
        Some(self.lock().get(node)?.now)
    }

    /// Since when a node has been overloaded without a break.
    pub(crate) fn overloaded_since(&self, node: &str) -> Option<Instant> {
        self.lock().get(node)?.overloaded_since
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
        let mut nodes = self.lock();
        nodes.values_mut().enumerate().try_for_each(|(index, node)| {
            // Each node has a phase of its own.
            let phase = std::f64::consts::TAU * (turns + index as f64 / 7.0);
            let cpu = (node.base.cpu + node.swing * phase.sin()).clamp(0.0, 1.0);
            node.now = Load { cpu, ..node.base };
            let over = is_over(node.now);
            node.overloaded_since = over.then(|| node.overloaded_since.unwrap_or(now));
            let shown = if self.hide_overload && over { IDLE } else { node.now };
            node.proc_tree.advance(elapsed, shown)
        })
    }

    // A panic cannot leave a change half done: each is a single assignment.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, ScriptedNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptedNode {
    fn new(plan: &NodePlan, load: Load, root: &Path, now: Instant) -> io::Result<Self> {
        let proc_tree = ProcTree::new(&root.join("proc"), load)?;
        // A node that starts overloaded has been so for a minute.
        let minute_ago = now.checked_sub(Duration::from_secs(60)).unwrap_or(now);
        let overloaded_since = is_over(load).then_some(minute_ago);
        Ok(Self { base: load, swing: plan.swing, now: load, overloaded_since, proc_tree })
    }
}

fn is_over(load: Load) -> bool {
    load.cpu.max(load.memory) > LIMIT
}
