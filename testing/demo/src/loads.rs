//! What every scripted node really carries, and what its `/proc` shows of it.
//!
//! The two are the same unless somebody sabotages the exporters' view; the checker asks here for what
//! is real.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sim::{Load, ProcTree};

use crate::fleet::{FLEET, NodePlan};

/// How often counters advance; the exporters read them once a second.
const STEP: Duration = Duration::from_millis(200);
/// The time that a load takes to swing there and back.
const SWING: Duration = Duration::from_secs(20);
/// What a sabotaged node shows instead of an overload.
const IDLE: Load = Load { cpu: 0.03, memory: 0.10 };
/// Above this, in either, a node is overloaded: the demo policy's limits.
pub(crate) const LIMIT: f64 = 0.65;

/// One node's.
struct Scripted {
    base: Load,
    swing: f64,
    now: Load,
    over_since: Option<Instant>,
    tree: ProcTree,
}

/// All of them; clones share them.
#[derive(Clone)]
pub(crate) struct Loads {
    nodes: Arc<Mutex<BTreeMap<&'static str, Scripted>>>,
    lie: bool,
    start: Instant,
}

impl Loads {
    /// Makes the `/proc` of every scripted node under `root`. With `lie`, overloaded nodes look idle.
    pub(crate) fn new(root: &Path, lie: bool) -> io::Result<Self> {
        let start = Instant::now();
        let mut nodes = BTreeMap::new();
        for plan in &FLEET {
            if let Some(load) = plan.load {
                nodes.insert(plan.name, scripted(plan, load, &root.join(plan.name), start)?);
            }
        }
        Ok(Self { nodes: Arc::new(Mutex::new(nodes)), lie, start })
    }

    /// A node carries something else from now on.
    pub(crate) fn set_cpu(&self, node: &str, cpu: f64) {
        if let Some(node) = self.lock().get_mut(node) {
            node.base.cpu = cpu;
        }
    }

    /// What a node really carries; unknown of the one that is this machine.
    pub(crate) fn now(&self, node: &str) -> Option<Load> {
        Some(self.lock().get(node)?.now)
    }

    /// Since when a node has been overloaded without a break.
    pub(crate) fn over_since(&self, node: &str) -> Option<Instant> {
        self.lock().get(node)?.over_since
    }

    /// Lets time pass, for ever.
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
        let turn = now.duration_since(self.start).as_secs_f64() / SWING.as_secs_f64();
        let lie = self.lie;
        let mut nodes = self.lock();
        nodes.values_mut().enumerate().try_for_each(|(place, node)| {
            let phase = std::f64::consts::TAU * (turn + place as f64 / 7.0);
            let cpu = (node.base.cpu + node.swing * phase.sin()).clamp(0.0, 1.0);
            node.now = Load { cpu, ..node.base };
            node.over_since = is_over(node.now).then(|| node.over_since.unwrap_or(now));
            let shown = if lie && is_over(node.now) { IDLE } else { node.now };
            node.tree.advance(elapsed, shown)
        })
    }

    // Each change is a single assignment.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Scripted>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_over(load: Load) -> bool {
    load.cpu.max(load.memory) > LIMIT
}

fn scripted(plan: &NodePlan, load: Load, root: &Path, now: Instant) -> io::Result<Scripted> {
    let tree = ProcTree::new(&root.join("proc"), load)?;
    // It has been like this for long before anybody looked.
    let long = now.checked_sub(Duration::from_secs(60)).unwrap_or(now);
    let over_since = is_over(load).then_some(long);
    Ok(Scripted { base: load, swing: plan.swing, now: load, over_since, tree })
}
