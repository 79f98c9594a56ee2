//! Owns what is seen of the nodes during a run without the API: a thread that asks what all processes hold of the
//! GPUs, those of deleted pods too; and the kubelets' logs, which tell when there was no device plugin.

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

use crate::support::resource_claims::ASKED;

/// The pause between two looks at the processes that are known. Two containers that overlap for longer are noticed.
const PAUSE: Duration = Duration::from_millis(50);
/// Of so many looks one is for new containers too.
const FIND: usize = 6;
/// What a kubelet logs when the device plugin registers.
const REGISTERED: [&str; 2] = ["Got registration request", "\"aliyun.com/gpu-mem\""];
/// What it logs of a pod that it refuses, beside the pod's UID.
const REFUSED: &str = "Pod admission denied";
/// By this a refusal of the device plugin is told from one in the kubelet's own words, for want of devices or of an
/// answer.
const BY_PLUGIN: &str = "code = FailedPrecondition";
/// A refusal for ids that the kubelet has in its record. One that was restarted counts those of pods that are gone
/// until it has admitted all pods that it found.
const RECORDED: &str = "by the kubelet's record";
/// Within so many seconds after a registration the plugin may refuse a pod for any reason, for it was away until then.
const LIST: u32 = 2;
/// Within so many seconds after a registration a restarted kubelet has admitted the pods that it found.
const FOUND: u32 = 10;
/// Within so many seconds after a registration the plugin's list of devices has come to the kubelet, also where
/// processors are busy.
const LISTED: u32 = 30;
/// A device plugin tells within so many seconds after the API server answers again what it could not read.
const READ: u32 = 10;
/// The variable with the units of a container.
const UNITS: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";

/// A time without device plugin: from a kill to the next registration. Places are lengths of the kubelet's log.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// The place of the node.
    node: usize,
    /// Before the kill.
    began: u64,
    /// After it: what has registered before was killed.
    killed: u64,
    /// Whether the kubelet was killed.
    of_kubelet: bool,
}

/// A time without API server, by the lengths of all kubelets' logs.
#[derive(Debug, Clone)]
struct Silence {
    began: Vec<u64>,
    /// `None` until it answers again.
    ended: Option<Vec<u64>>,
}

/// The thread, and the kubelets' logs.
pub(super) struct Watch {
    held: Arc<Mutex<Held>>,
    ends: Arc<AtomicBool>,
    outages: Mutex<Vec<Outage>>,
    silences: Mutex<Vec<Silence>>,
    /// By the places of the nodes.
    logs: Vec<PathBuf>,
}

impl Watch {
    /// Starts it.
    pub(super) fn start(cluster: &Cluster) -> Self {
        let held: Arc<Mutex<Held>> = Arc::default();
        let ends: Arc<AtomicBool> = Arc::default();
        let gpus: Vec<String> =
            cluster.nodes().iter().flat_map(Node::gpus).map(|gpu| gpu.uuid).collect();
        let logs = cluster.nodes().iter().map(|node| node.log("kubelet")).collect();
        let shared = held.clone();
        let over = ends.clone();
        thread::spawn(move || {
            for look in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let mut held = lock(&shared);
                if look % FIND == 0 {
                    // Nothing new where /proc cannot be listed; the next look lists it again.
                    let _ = held.find(&gpus);
                }
                held.ask();
                drop(held);
                thread::sleep(PAUSE);
            }
        });
        Self { held, ends, outages: Mutex::default(), silences: Mutex::default(), logs }
    }

    /// Kills, and notes it. A kill of a kubelet or of a device plugin begins an outage, one of the API server a
    /// silence.
    pub(super) fn kill(&self, victim: Victim, kill: impl FnOnce() -> Result<()>) -> Result<()> {
        let began = self.lengths()?;
        let done = kill();
        let killed = self.lengths()?;
        match victim {
            Victim::Plugin(node) | Victim::Kubelet(node) => {
                let (Some(began), Some(killed)) = (began.get(node), killed.get(node)) else {
                    return done;
                };
                let of_kubelet = matches!(victim, Victim::Kubelet(_));
                let outage = Outage { node, began: *began, killed: *killed, of_kubelet };
                lock(&self.outages).push(outage);
            }
            Victim::ApiServer => lock(&self.silences).push(Silence { began, ended: None }),
            _ => {}
        }
        done
    }

    /// The lengths of the kubelets' logs.
    fn lengths(&self) -> Result<Vec<u64>> {
        self.logs.iter().map(|log| Ok(fs::metadata(log)?.len())).collect()
    }

    /// Whether the API server was killed and not yet seen to answer again.
    pub(super) fn is_api_silent(&self) -> bool {
        lock(&self.silences).iter().any(|silence| silence.ended.is_none())
    }

    /// Notes that the API server answers again.
    pub(super) fn api_answers(&self) -> Result<()> {
        let now = self.lengths()?;
        for silence in lock(&self.silences).iter_mut().filter(|silence| silence.ended.is_none()) {
            silence.ended = Some(now.clone());
        }
        Ok(())
    }

    /// Whether the kubelet of this node refused the pod while the API server was down, or right after it.
    pub(super) fn refused_without_api(&self, node: usize, uid: &str) -> bool {
        let Some(log) = self.logs.get(node) else { return false };
        let silences = lock(&self.silences).clone();
        silences.iter().any(|silence| {
            let Some(began) = silence.began.get(node) else { return false };
            let ended = silence.ended.as_ref().and_then(|ended| ended.get(node));
            let ended = ended.map(|ended| ended.saturating_sub(*began));
            refused_in_silence(&since(log, *began), ended, uid)
        })
    }

    /// Whether the kubelet of this node refused the pod in an outage.
    pub(super) fn refused_without_plugin(&self, node: usize, uid: &str) -> bool {
        let Some(log) = self.logs.get(node) else { return false };
        let outages = lock(&self.outages).clone();
        let here = outages.iter().filter(|outage| outage.node == node);
        let mut here = here.map(|outage| (since(log, outage.began), outage));
        here.any(|(text, outage)| {
            let killed = outage.killed.saturating_sub(outage.began);
            refused_unregistered(&text, killed, outage.of_kubelet, uid)
        })
    }

    /// Ends it. The most that each overbooked GPU was overbooked by.
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
    fn find(&mut self, gpus: &[String]) -> Result<()> {
        for process in processes::all()? {
            let Some(started) = processes::started(process) else { continue };
            let Some(container) = control_group(process) else { continue };
            let known = self.running.get(&container).map(|(place, _)| self.spans[*place].started);
            if known.is_some_and(|first| first <= started) {
                continue;
            }
            let Some((on, units)) = gpus_of(process) else { continue };
            if on.iter().all(|gpu| gpus.contains(gpu)) {
                self.running.insert(container, (self.spans.len(), process));
                self.spans.push(Span { gpus: on, units, started, seen: started });
            }
        }
        Ok(())
    }
}

/// The GPUs of a process, and its container's units of all of them.
fn gpus_of(process: Pid) -> Option<(Vec<String>, u64)> {
    let environment = processes::environ(process).ok()?;
    let first = environment.get("PLIMSOLL_GPU_UUID")?;
    let several = environment.get("PLIMSOLL_GPU_UUIDS").unwrap_or(first);
    let on = several.split(',').map(str::to_owned).collect();
    let units = match environment.get(ASKED) {
        Some(mib) => mib.parse::<u64>().ok()? / 1024,
        None => environment.get(UNITS)?.parse().ok()?,
    };
    Some((on, units))
}

/// The control group, which is that of a container.
fn control_group(process: Pid) -> Option<String> {
    ["devices", ""]
        .into_iter()
        .find_map(|controller| processes::cgroup(process, controller).ok().flatten())
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

/// Whether the pod is refused before the first registration after the place `killed`, or so soon after it that it may
/// be for that outage.
fn refused_unregistered(log: &str, killed: u64, of_kubelet: bool, uid: &str) -> bool {
    let mut registered = None;
    for (place, line) in placed(log) {
        if place >= killed && REGISTERED.iter().all(|part| line.contains(part)) {
            registered = registered.or(seconds(line));
        } else if line.contains(REFUSED) && line.contains(uid) {
            let still = if !line.contains(BY_PLUGIN) {
                LISTED
            } else if of_kubelet && line.contains(RECORDED) {
                FOUND
            } else {
                LIST
            };
            return registered.is_none_or(|at| is_within(line, at, still));
        }
    }
    false
}

/// Whether the pod is refused before the place `ended`, or so soon after it that its device plugin asked the API server
/// before.
fn refused_in_silence(log: &str, ended: Option<u64>, uid: &str) -> bool {
    let mut over = None;
    for (place, line) in placed(log) {
        if ended.is_some_and(|ended| place >= ended) {
            over = over.or(seconds(line));
        }
        if line.contains(REFUSED) && line.contains(uid) {
            return over.is_none_or(|at| is_within(line, at, READ));
        }
    }
    false
}

/// The lines with the places at which they begin.
fn placed(log: &str) -> impl Iterator<Item = (u64, &str)> {
    log.split_inclusive('\n').scan(0, |next, line| {
        let place = *next;
        *next += line.len() as u64;
        Some((place, line))
    })
}

/// Whether the line is of at most so many seconds after this time of day.
fn is_within(line: &str, after: u32, still: u32) -> bool {
    seconds(line).is_none_or(|at| at <= after + still)
}

/// The time of day of a line such as `I1122 20:53:19.350441 ...`, in seconds.
fn seconds(line: &str) -> Option<u32> {
    let time = line.split_whitespace().nth(1)?.split('.').next()?;
    time.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<u32>().ok()?))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
