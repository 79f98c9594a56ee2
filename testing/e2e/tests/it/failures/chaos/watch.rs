//! Owns what is seen of the nodes during a run without the API: a thread that asks what all processes hold of the cards, those
//! of deleted pods too; and the kubelets' logs, which tell when there was no device plugin.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use e2e::chaos::{Span, Victim, overbooked};
use e2e::kernel::processes::{self, Pid};
use e2e::{Cluster, Node};

/// The pause between two looks at the processes that are known. Two containers that overlap for longer are noticed.
const PAUSE: Duration = Duration::from_millis(50);
/// Of so many looks one is for new containers too.
const FIND: usize = 6;
/// What a kubelet logs when the device plugin registers.
const REGISTERED: [&str; 2] = ["Got registration request", "\"aliyun.com/gpu-mem\""];
/// What it logs of a pod that it refuses, beside the pod's UID.
const REFUSED: &str = "Pod admission denied";
/// A plugin that has registered sends its list of devices within so many seconds.
const LIST: u32 = 2;
/// The variable with the units of a container.
const UNITS: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";

/// A time without device plugin: from a kill to the next registration.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// The place of the node.
    node: usize,
    /// The length of its kubelet's log at the kill.
    offset: u64,
}

/// The thread, and the kubelets' logs.
pub(super) struct Watch {
    held: Arc<Mutex<Held>>,
    ends: Arc<AtomicBool>,
    outages: Mutex<Vec<Outage>>,
    /// By the places of the nodes.
    logs: Vec<PathBuf>,
}

impl Watch {
    /// Starts it.
    pub(super) fn start(cluster: &Cluster) -> Self {
        let held: Arc<Mutex<Held>> = Arc::default();
        let ends: Arc<AtomicBool> = Arc::default();
        let cards: Vec<String> =
            cluster.nodes().iter().flat_map(Node::cards).map(|card| card.uuid).collect();
        let logs = cluster.nodes().iter().map(|node| node.log("kubelet")).collect();
        let (shared, over) = (held.clone(), ends.clone());
        thread::spawn(move || {
            for look in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let mut held = lock(&shared);
                if look % FIND == 0 {
                    // Nothing new where /proc cannot be listed; the next look lists it again.
                    let _ = held.find(&cards);
                }
                held.ask();
                drop(held);
                thread::sleep(PAUSE);
            }
        });
        Self { held, ends, outages: Mutex::default(), logs }
    }

    /// Notes a kill that is about to happen. One of a kubelet or of a device plugin begins an outage.
    pub(super) fn note(&self, victim: Victim) -> Result<()> {
        if let (Victim::Plugin(node) | Victim::Kubelet(node), Some(log)) =
            (victim, victim.node().and_then(|node| self.logs.get(node)))
        {
            let offset = fs::metadata(log)?.len();
            lock(&self.outages).push(Outage { node, offset });
        }
        Ok(())
    }

    /// Whether the kubelet of this node refused the pod in an outage.
    pub(super) fn refused_without_plugin(&self, node: usize, uid: &str) -> bool {
        let Some(log) = self.logs.get(node) else { return false };
        let outages = lock(&self.outages).clone();
        let here = outages.iter().filter(|outage| outage.node == node);
        here.map(|outage| since(log, outage.offset)).any(|text| refused_unregistered(&text, uid))
    }

    /// Ends it. The most that each overbooked card was overbooked by.
    pub(super) fn end(&self) -> BTreeMap<String, u64> {
        self.ends.store(true, Ordering::Relaxed);
        overbooked(&lock(&self.held).spans)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// What containers had, and when.
#[derive(Debug, Default)]
struct Held {
    spans: Vec<Span>,
    /// The containers that are there: the place of their span by control group, and their first process.
    running: BTreeMap<String, (usize, Pid)>,
}

impl Held {
    /// Looks which are still there.
    fn ask(&mut self) {
        // Before the look: they were there at this time.
        let Some(now) = processes::ticks_now() else { return };
        let Self { spans, running } = self;
        running.retain(|_, (place, process)| {
            let runs = processes::runs(*process, spans[*place].started);
            spans[*place].seen = if runs { now } else { spans[*place].seen };
            runs
        });
    }

    /// Looks for new containers, by the environment of their processes.
    fn find(&mut self, cards: &[String]) -> Result<()> {
        for process in processes::all()? {
            let Some(started) = processes::started(process) else { continue };
            let Some(container) = control_group(process) else { continue };
            let known = self.running.get(&container).map(|(place, _)| self.spans[*place].started);
            if known.is_some_and(|first| first <= started) {
                continue;
            }
            let Some((on, units)) = cards_of(process) else { continue };
            if on.iter().all(|card| cards.contains(card)) {
                self.running.insert(container, (self.spans.len(), process));
                self.spans.push(Span { cards: on, units, started, seen: started });
            }
        }
        Ok(())
    }
}

/// The cards of a process, and its container's units of all of them.
fn cards_of(process: Pid) -> Option<(Vec<String>, u64)> {
    let environment = processes::environ(process).ok()?;
    let first = environment.get("PLIMSOLL_GPU_UUID")?;
    let several = environment.get("PLIMSOLL_GPU_UUIDS").unwrap_or(first);
    let on = several.split(',').map(str::to_owned).collect();
    Some((on, environment.get(UNITS)?.parse().ok()?))
}

/// The control group, which is that of a container.
fn control_group(process: Pid) -> Option<String> {
    let of = |controller| processes::cgroup(process, controller).ok().flatten();
    of("devices").or_else(|| of(""))
}

/// The log from there on.
fn since(log: &Path, offset: u64) -> String {
    let text = fs::File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(offset))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map(|_| text)
    });
    String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
}

/// Whether the pod is refused before the first registration, or right after it.
fn refused_unregistered(log: &str, uid: &str) -> bool {
    let mut registered = None;
    for line in log.lines() {
        if REGISTERED.iter().all(|part| line.contains(part)) {
            registered = registered.or(seconds(line));
        } else if line.contains(REFUSED) && line.contains(uid) {
            let late = |registered| seconds(line).is_some_and(|at| at > registered + LIST);
            return !registered.is_some_and(late);
        }
    }
    false
}

/// The time of day of a line such as `I1122 20:53:19.350441 ...`, in seconds.
fn seconds(line: &str) -> Option<u32> {
    let time = line.split_whitespace().nth(1)?.split('.').next()?;
    time.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<u32>().ok()?))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
