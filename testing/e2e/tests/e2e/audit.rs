//! Owns the comparison that everything is about: the card that a pod claims, the card that its processes see, and the
//! card whose devices the kubelet holds for it; and what each card carries in the end.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::processes::{self, Pid};
use e2e::{Cluster, Node};
use k8s_openapi::api::core::v1::Pod;

use crate::pods::{annotation, gpu_containers, list, name, node, phase, processes_of, uid, units};
use crate::records::{self, Held};
use crate::world::World;

const CLAIM: &str = "plimsoll.dev/gpu-claim";
/// Units of each card, at one GiB a unit.
const CARD_UNITS: u64 = e2e::cards::CARD_MIB / 1024;

/// What was found wrong.
#[derive(Debug, Default)]
struct Findings {
    mismatches: Vec<String>,
    /// Units of live pods by the card that their processes see.
    carried: BTreeMap<String, u64>,
}

/// Compares every running GPU pod, counts it, and fails on any difference; returns how many were compared.
pub(crate) fn audit(world: &World) -> Result<usize> {
    let pods: Vec<Pod> = list(world)?
        .into_iter()
        .filter(|pod| phase(pod) == "Running" && !gpu_containers(pod).is_empty())
        .collect();
    let findings = compare(world.cluster()?, &pods)?;
    let over: BTreeMap<&String, u64> = findings
        .carried
        .iter()
        .map(|(card, units)| (card, units.saturating_sub(CARD_UNITS)))
        .collect();
    world.count(|tally| {
        tally.gpu_pods.extend(pods.iter().map(|pod| uid(pod).to_owned()));
        tally.mismatches += findings.mismatches.len();
        tally.overbooked_units += over.values().sum::<u64>();
    });
    ensure!(findings.mismatches.is_empty(), "{}", findings.mismatches.join("\n"));
    ensure!(over.values().all(|units| *units == 0), "overbooked: {:?}", findings.carried);
    Ok(pods.len())
}

/// As [`audit`], and fails unless exactly this many were compared.
pub(crate) fn audit_exactly(world: &World, expected: usize) -> Result<()> {
    let compared = audit(world)?;
    ensure!(compared == expected, "{compared} GPU pods were compared, not {expected}");
    Ok(())
}

fn compare(cluster: &Cluster, pods: &[Pod]) -> Result<Findings> {
    let mut findings = Findings::default();
    for machine in cluster.nodes() {
        let held = records::of(machine)?;
        let here = pods.iter().filter(|pod| node(pod) == Some(machine.name()));
        for pod in here {
            let card = compare_pod(machine, &held, pod, &mut findings.mismatches)
                .with_context(|| format!("pod {}", name(pod)))?;
            *findings.carried.entry(card).or_default() += demand(pod);
        }
    }
    Ok(findings)
}

/// Returns the card that the pod's processes really use.
fn compare_pod(
    machine: &Node,
    held: &[Held],
    pod: &Pod,
    mismatches: &mut Vec<String>,
) -> Result<String> {
    let claim = claim(pod)?;
    let mut card = String::new();
    for (container, units) in gpu_containers(pod) {
        let claimed = claim.get(container).with_context(|| format!("{container} has no claim"))?;
        let (uuid, claimed_units) = claimed.iter().next().context("an empty claim")?;
        let (_, processes) = (claimed_units, processes_of(pod, container)?);
        ensure!(!processes.is_empty(), "{container} has no process");
        for process in processes {
            card = seen(process)?;
            let mut wrong = |what: String| {
                mismatches.push(format!("{}/{container} claims {uuid}: {what}", name(pod)));
            };
            what_differs(machine, process, uuid)?.into_iter().for_each(&mut wrong);
            if claimed.len() != 1 || *claimed_units != units {
                wrong(format!("claim {claimed:?}, asked {units}"));
            }
            if !recorded(held, pod, container, uuid, units) {
                wrong("the kubelet holds other devices for it".to_owned());
            }
        }
    }
    Ok(card)
}

/// What the process sees that it should not, in words.
fn what_differs(machine: &Node, process: Pid, uuid: &str) -> Result<Vec<String>> {
    let environment = processes::environ(process)?;
    let minor = machine.cards().iter().find(|card| card.uuid == uuid).map(|card| card.minor);
    let minor = minor.with_context(|| format!("{} has no card {uuid}", machine.name()))?;
    let mut wrong = Vec::new();
    for (variable, wanted) in [("PLIMSOLL_GPU_UUID", uuid), ("NVIDIA_VISIBLE_DEVICES", "void")] {
        let found = environment.get(variable).map(String::as_str);
        if found != Some(wanted) {
            wrong.push(format!("its process has {variable}={found:?}"));
        }
    }
    let nodes = processes::numbered_devices(process, "nvidia")?;
    if nodes != [(minor, (e2e::cards::MAJOR, u32::from(minor)))] {
        wrong.push(format!("its process has the device nodes {nodes:?}, not {minor}"));
    }
    let allowed = allowed_cards(process)?;
    if allowed.as_ref().is_some_and(|allowed| *allowed != [u32::from(minor)]) {
        wrong.push(format!("its device cgroup allows {allowed:?}, not {minor}"));
    }
    Ok(wrong)
}

/// The minors of the cards that the device cgroup allows; every container has the control node beside.
fn allowed_cards(process: Pid) -> Result<Option<Vec<u32>>> {
    let prefix = format!("c {}:", e2e::cards::MAJOR);
    let minor = |line: &String| line.strip_prefix(&prefix)?.split(' ').next()?.parse().ok();
    let minors = |lines: Vec<String>| -> Vec<u32> {
        lines.iter().filter_map(minor).filter(|minor| *minor != e2e::cards::CONTROL_MINOR).collect()
    };
    Ok(processes::device_cgroup(process)?.map(minors))
}

fn recorded(held: &[Held], pod: &Pod, container: &str, uuid: &str, units: u64) -> bool {
    let mine = held.iter().find(|held| held.pod_uid == uid(pod) && held.container == container);
    mine.is_some_and(|mine| mine.all_on(uuid) && mine.ids.len() as u64 == units)
}

/// The card that a process was given.
pub(crate) fn seen(process: Pid) -> Result<String> {
    let mut environment = processes::environ(process)?;
    environment.remove("PLIMSOLL_GPU_UUID").context("the process was given no card")
}

/// What the pod claims: units by container and card.
pub(crate) fn claim(pod: &Pod) -> Result<BTreeMap<String, BTreeMap<String, u64>>> {
    let text = annotation(pod, CLAIM).with_context(|| format!("{} has no claim", name(pod)))?;
    serde_json::from_str(text).with_context(|| format!("a claim that cannot be read: {text}"))
}

/// What the kubelet sets aside for the pod: all its app containers, or a larger init container.
fn demand(pod: &Pod) -> u64 {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let largest = init.map(units).max().unwrap_or(0);
    gpu_containers(pod).values().sum::<u64>().max(largest)
}
