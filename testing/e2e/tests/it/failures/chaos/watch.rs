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
use e2e::chaos::{CARD_UNITS, Victim};
use e2e::kernel::processes::{self, Pid};
use e2e::{Cluster, Node};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(400);
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
    /// The most that each card was overbooked by.
    overbooked: Arc<Mutex<BTreeMap<String, u64>>>,
    ends: Arc<AtomicBool>,
    outages: Mutex<Vec<Outage>>,
    /// By the places of the nodes.
    logs: Vec<PathBuf>,
}

impl Watch {
    /// Starts it.
    pub(super) fn start(cluster: &Cluster) -> Self {
        let overbooked: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let ends: Arc<AtomicBool> = Arc::default();
        let cards: Vec<String> =
            cluster.nodes().iter().flat_map(Node::cards).map(|card| card.uuid).collect();
        let logs = cluster.nodes().iter().map(|node| node.log("kubelet")).collect();
        let (shared, over) = (overbooked.clone(), ends.clone());
        thread::spawn(move || {
            let mut before = Containers::new();
            while !over.load(Ordering::Relaxed) {
                let now = containers(&cards).unwrap_or_default();
                count(&before, &now, &shared);
                before = now;
                thread::sleep(PAUSE);
            }
        });
        Self { overbooked, ends, outages: Mutex::default(), logs }
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
        lock(&self.overbooked).clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// The containers with cards, by control group: their cards, and their units of all of them.
type Containers = BTreeMap<String, (Vec<String>, u64)>;

/// Adds up what containers hold that were there in two looks. One look takes some time: a container that ends during it, and the
/// next one on its card, may both be seen.
fn count(before: &Containers, now: &Containers, overbooked: &Mutex<BTreeMap<String, u64>>) {
    let mut held: BTreeMap<&String, u64> = BTreeMap::new();
    for (_, (on, units)) in now.iter().filter(|(container, _)| before.contains_key(*container)) {
        let share = units / on.len() as u64;
        on.iter().for_each(|card| *held.entry(card).or_default() += share);
    }
    let mut overbooked = lock(overbooked);
    for (card, units) in held.into_iter().filter(|(_, units)| *units > CARD_UNITS) {
        let most = overbooked.entry(card.clone()).or_default();
        *most = (units - CARD_UNITS).max(*most);
    }
}

/// The containers that have cards, by the environment of their processes.
fn containers(cards: &[String]) -> Result<Containers> {
    let mut containers = Containers::new();
    for process in processes::all()? {
        let Ok(environment) = processes::environ(process) else { continue };
        let Some(first) = environment.get("PLIMSOLL_GPU_UUID") else { continue };
        let several = environment.get("PLIMSOLL_GPU_UUIDS").unwrap_or(first);
        let on: Vec<String> = several.split(',').map(str::to_owned).collect();
        let units = environment.get(UNITS).and_then(|units| units.parse().ok());
        let Some(container) = control_group(process) else { continue };
        if let (true, Some(units)) = (on.iter().all(|card| cards.contains(card)), units) {
            containers.insert(container, (on, units));
        }
    }
    Ok(containers)
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
