//! Many bindings through two replicas, while replies and requests are lost, come late or find a conflict, and the
//! replica that leads ends again and again.
//!
//! `PLIMSOLL_CHAOS_BINDS=100000 PLIMSOLL_CHAOS_SEED=7 cargo test -p scheduler-extender --test it chaos -- --nocapture`
//! runs more of them, from another seed, about a hundred a second. A seed gives the same pods, faults and ends again;
//! what is under way at once is for the machine to decide.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};
use sim::{Failure, Fault, NODES, PODS, Sim};

use crate::replicas::{is_leader, leads, replica};
use crate::rig::{Rig, gpu_node, gpu_pod};

const NODE_COUNT: usize = 4;
const GPUS: u32 = 4;
const UNITS: u64 = 16;
/// Bindings at once.
const WAVE: usize = 24;
/// Between two ends of a leader, in waves.
const TERM: usize = 12;
/// Between two lines about how far it is, in waves.
const PROGRESS: usize = 400;
/// The Lease is released at each end, so this is not waited for.
const LEASE: &str = "15s";

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }
}

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn name(node: usize) -> String {
    format!("n{}", node % NODE_COUNT)
}

fn fault(random: &mut Random) -> Option<Fault> {
    match random.below(20) {
        0 | 1 => Some(Fault::DropReply),
        2 | 3 => Some(Fault::DropRequest),
        4 | 5 => Some(Fault::Delay(Duration::from_millis(random.below(20) as u64))),
        6 => Some(Fault::Answer(Failure::conflict(
            "pods/binding",
            "p",
            "the object has been modified",
        ))),
        7 => Some(Fault::Answer(Failure::internal("etcdserver: leader changed"))),
        _ => None,
    }
}

/// Units on each GPU by the claims of bound pods, with the pods on it.
fn claimed(sim: &Sim) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut gpus = BTreeMap::<String, BTreeMap<String, u64>>::new();
    for pod in sim.list(PODS).iter().filter(|pod| pod["spec"]["nodeName"].is_string()) {
        let claim = pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"].as_str();
        let claim: Value = serde_json::from_str(claim.unwrap()).unwrap();
        let shares = claim["main"].as_object().unwrap();
        let asked = &pod["spec"]["containers"][0]["resources"]["limits"][crate::rig::GPU];
        let asked: u64 = asked.as_str().unwrap().parse().unwrap();
        assert_eq!(shares.values().map(|units| units.as_u64().unwrap()).sum::<u64>(), asked);
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        for (gpu, units) in shares {
            let node = pod["spec"]["nodeName"].as_str().unwrap();
            assert!(gpu.starts_with(&format!("GPU-{node}-")), "{gpu} is not on {node}");
            gpus.entry(gpu.clone()).or_default().insert(uid.to_owned(), units.as_u64().unwrap());
        }
    }
    for (gpu, pods) in &gpus {
        assert!(pods.values().sum::<u64>() <= UNITS, "{gpu} is given out twice: {pods:?}");
    }
    gpus
}

/// The kubelets' records reach the nodes' reports.
fn report(sim: &Sim) {
    let claimed = claimed(sim);
    for node in 0..NODE_COUNT {
        sim.change(NODES, "", &name(node), |node| {
            let report = &mut node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"];
            let mut gpus: Value = serde_json::from_str(report.as_str().unwrap()).unwrap();
            for gpu in gpus.as_array_mut().unwrap() {
                let pods = claimed.get(gpu["uuid"].as_str().unwrap());
                gpu["pods"] = json!(pods.cloned().unwrap_or_default());
            }
            *report = gpus.to_string().into();
        });
    }
}

async fn agrees(rig: &Rig, sim: &Sim) {
    let wanted: u64 = claimed(sim).values().flat_map(BTreeMap::values).sum();
    rig.until("a ledger as the API server has it", async || rig.used().await == wanted).await;
}

#[tokio::test]
async fn no_unit_is_given_out_twice_and_every_pod_is_bound_through_lost_replies_and_takeovers() {
    let wanted = number("PLIMSOLL_CHAOS_BINDS", 600);
    let seed = number("PLIMSOLL_CHAOS_SEED", 1) as u64;
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let sim = Sim::start().await.unwrap();
    for node in 0..NODE_COUNT {
        sim.put(gpu_node(&name(node), GPUS));
    }
    let mut replicas = [replica(&sim, LEASE).await, replica(&sim, LEASE).await];
    let (mut bound, mut faults, mut takeovers, mut wave) = (0, 0, 0, 0);
    let began = Instant::now();
    while bound < wanted {
        wave += 1;
        if wave % PROGRESS == 0 {
            eprintln!("{bound} of {wanted} bindings after {} s", began.elapsed().as_secs());
        }
        let pods: Vec<Value> = (0..WAVE)
            .map(|pod| gpu_pod(&sim, &format!("p{wave}-{pod}"), 1 + random.below(10) as u32))
            .collect();
        let planned: Vec<Fault> = (0..WAVE).filter_map(|_| fault(&mut random)).collect();
        faults += planned.len();
        planned.into_iter().for_each(|fault| sim.faults().next_bindings(1, fault));
        let ways: Vec<(usize, usize)> =
            (0..WAVE).map(|_| (random.below(2), random.below(NODE_COUNT))).collect();
        let binds = pods.iter().zip(&ways).map(|(pod, (replica, node))| {
            let replica = &replicas[*replica];
            async move { replica.bind(pod, &name(*node)).await }
        });
        let ends = wave % TERM == 0;
        let leader = usize::from(is_leader(&replicas[1]));
        let end = async {
            if ends {
                replicas[leader].context.shutdown().cancel();
            }
        };
        let (answers, ()) = tokio::join!(join_all(binds), end);
        claimed(&sim);
        sim.faults().release();
        if ends {
            takeovers += 1;
            replicas[leader] = replica(&sim, LEASE).await;
            leads(&replicas[1 - leader]).await;
        }
        // What was answered with an error is tried again, as kube-scheduler does: where it was tried, or where there is
        // room.
        for ((pod, (replica, node)), answer) in pods.iter().zip(&ways).zip(&answers) {
            let mut answer = answer.clone();
            let mut tries = 0;
            while !answer.is_empty() && tries < 2 * NODE_COUNT {
                answer = replicas[*replica].bind(pod, &name(node + tries)).await;
                tries += 1;
            }
            let uid = &pod["metadata"]["uid"];
            let stored = sim.pod("default", pod["metadata"]["name"].as_str().unwrap()).unwrap();
            assert_eq!(
                answer.is_empty(),
                stored["spec"]["nodeName"].is_string(),
                "{uid}: {answer}"
            );
            bound += usize::from(answer.is_empty());
        }
        report(&sim);
        // Every replica has listed by then: what a list does not show any more counts for some seconds.
        for replica in &replicas {
            agrees(replica, &sim).await;
        }
        // Some end, those that found no room among them.
        for pod in sim.list(PODS) {
            if pod["spec"]["nodeName"].is_null() || random.below(5) < 3 {
                let pod = pod["metadata"]["name"].as_str().unwrap();
                sim.change(PODS, "default", pod, |pod| pod["status"]["phase"] = "Succeeded".into());
                sim.delete(PODS, "default", pod);
            }
        }
        report(&sim);
        for replica in &replicas {
            agrees(replica, &sim).await;
        }
        sim.log().clear();
    }
    let seconds = began.elapsed().as_secs();
    eprintln!(
        "{bound} bindings, {faults} faults, {takeovers} takeovers in {wave} waves, {seconds} s"
    );
    assert!(takeovers > 0);
}
