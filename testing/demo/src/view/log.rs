//! The run as plain lines, one an event.

use std::collections::BTreeSet;
use std::io::{self, Write, stdout};

use super::snapshot::{NodeRow, Place, PodRow, Snapshot};
use crate::checker::Counts;
use crate::model::policy::Limits;

/// The log, with what it has written already.
#[derive(Debug, Default)]
pub(crate) struct Log {
    caption: String,
    /// Node name or pod UID, and the state that was written of it.
    written: BTreeSet<(String, String)>,
    counts: Counts,
}

impl Log {
    /// Writes what is new in a snapshot to stdout.
    ///
    /// # Errors
    /// When stdout is closed.
    pub(crate) fn write(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let mut out = stdout().lock();
        self.new_lines(snapshot).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    fn new_lines(&mut self, snapshot: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        let at = format!("{:>3} s", snapshot.seconds);
        if self.caption.is_empty() && !snapshot.page.is_empty() {
            lines.push(format!("{at}  the page: {}", snapshot.page));
        }
        if self.caption != snapshot.caption {
            self.caption.clone_from(&snapshot.caption);
            lines.push(format!("{at}  == {}", snapshot.caption));
        }
        let nodes = snapshot.nodes.iter().flat_map(|node| {
            let states = node_states(node, snapshot.policy.limits());
            states.into_iter().map(|(state, text)| (&node.name, &node.name, state, text))
        });
        let pods = snapshot.pods.iter().filter_map(|pod| {
            pod_state(pod).map(|(state, text)| (&pod.uid, &pod.name, state.to_owned(), text))
        });
        for (id, name, state, text) in nodes.chain(pods) {
            if self.written.insert((id.clone(), state)) {
                lines.push(format!("{at}  {name:<9} {text}"));
            }
        }
        if !snapshot.counts.is_clean() && violations(&self.counts) != violations(&snapshot.counts) {
            let (mib, gpus, hot) = violations(&snapshot.counts);
            lines.push(format!(
                "{at}  !! {mib} MiB double-booked, {gpus} wrong GPUs, {hot} pods on overloaded nodes"
            ));
        }
        self.counts = snapshot.counts.clone();
        lines
    }
}

/// The counts of what must never happen.
fn violations(counts: &Counts) -> (u64, usize, usize) {
    (counts.double_booked_mib, counts.gpu_mismatches, counts.hot_node_placements)
}

/// What is remarkable about a node, each with a key. A load that goes over a limit again and again is written once.
fn node_states(node: &NodeRow, limits: Limits) -> Vec<(String, String)> {
    let mut states = Vec::new();
    if node.over.cpu {
        let limit = percent(limits.cpu);
        let text =
            format!("is overloaded: {} of its CPU is used, the limit is {limit}", load(node.cpu));
        states.push((format!("cpu over {limit}"), text));
    }
    if node.over.memory {
        let limit = percent(limits.memory);
        let text = format!(
            "is overloaded: {} of its memory is used, the limit is {limit}",
            load(node.memory)
        );
        states.push((format!("memory over {limit}"), text));
    }
    if node.silent {
        states.push(("silent".to_owned(), "is silent: its last reading is shown".to_owned()));
    }
    if node.plugin_missing && node.cpu.is_some() {
        states.push(("plugin".to_owned(), "has no device plugin".to_owned()));
    }
    states
}

fn load(load: Option<f64>) -> String {
    percent(load.unwrap_or_default())
}

fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// Where a pod is and why, with a key; `None` until that is known.
fn pod_state(pod: &PodRow) -> Option<(&'static str, String)> {
    let amount = if pod.units > 0 { format!(" ({} GiB)", pod.units) } else { String::new() };
    match &pod.place {
        Place::Waiting(reason) if reason.is_empty() => None,
        Place::Waiting(reason) => Some(("waits", format!("waits{amount}: {reason}"))),
        Place::Failed(reason) => Some(("failed", format!("FAILED{amount}: {reason}"))),
        Place::On { node, gpu, .. } => {
            let gpu = gpu.map_or(String::new(), |gpu| format!(" GPU {gpu}"));
            let (reason, baseline) = pod.reason.as_ref()?;
            let why = format!("{}; without Plimsoll {}", reason.text(), baseline.text());
            Some(("on", format!("-> {node}{gpu}{amount}: {why}")))
        }
    }
}
