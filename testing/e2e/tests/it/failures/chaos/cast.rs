//! Owns the pods of a run: what is created of a plan, and what is known of those that exist.

use e2e::Cluster;
use e2e::chaos::{Forgery, Plan, Priority};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::env::parse;
use crate::support::gpu_audit::CLAIM;
use crate::support::pods::{gpu_container, idle_container, pod, stubborn_container};
use crate::support::priorities::{HIGH, MIDDLE, of_class};
use crate::support::resource_claims::Share;

/// The annotation by which a pod asks for several GPUs, or for whole ones.
const GPU_COUNT: &str = "plimsoll.dev/gpu-card-count";

/// The seconds for which a pod that ignores SIGTERM runs after its deletion.
const STUBBORN_GRACE: u64 = 8;

/// A pod of the run that should exist.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) plan: Plan,
    /// How many pods of this plan there were before.
    generation: usize,
    /// Whether its claim is not the extender's alone.
    pub(super) forged: bool,
    /// Whether an earlier pod of this plan was forged.
    pub(super) was_forged: bool,
    /// What it asks for by a ResourceClaim, in place of its units.
    pub(super) share: Option<Share>,
}

impl Member {
    /// The first pod of a plan. Where there are ResourceClaims, two of three have one that have one share of a GPU: of
    /// all pods every third.
    pub(super) fn new(plan: Plan, claims: bool) -> Self {
        let forged = plan.forgery.is_some();
        let share = match plan.containers[..] {
            [units] if claims && units > 0 && !(plan.number / 4).is_multiple_of(3) => {
                Some(Share::of(units * 1024))
            }
            _ => None,
        };
        let share = share.filter(|_| plan.gpus == 1 && !plan.exclusive && !forged);
        Self { plan, generation: 0, forged, was_forged: forged, share }
    }

    /// The pod's name.
    pub(super) fn name(&self) -> String {
        format!("chaos-{}-{}", self.plan.number, self.generation)
    }

    /// The pod that takes its place, without a forged claim.
    pub(super) fn replacement(&self) -> Self {
        let plan = Plan { forgery: None, ..self.plan.clone() };
        let generation = self.generation + 1;
        Self { plan, generation, forged: false, ..self.clone() }
    }

    /// The object to create.
    pub(super) fn object(&self, cluster: &Cluster) -> anyhow::Result<Pod> {
        let plan = &self.plan;
        let containers: Vec<Value> = named(plan)
            .map(|(name, units)| match units {
                0 => idle_container(&name),
                units if plan.stubborn => stubborn_container(&name, units),
                units => gpu_container(&name, units),
            })
            .collect();
        let mut object = pod(&self.name(), &containers);
        object["metadata"]["annotations"] = json!({});
        if plan.stubborn {
            object["spec"]["terminationGracePeriodSeconds"] = json!(STUBBORN_GRACE);
        }
        let count = match (plan.gpus, plan.exclusive) {
            (1, false) => None,
            (1, true) => Some("exclusive".to_owned()),
            (gpus, false) => Some(gpus.to_string()),
            (gpus, true) => Some(format!("{gpus} exclusive")),
        };
        if let Some(count) = count {
            object["metadata"]["annotations"][GPU_COUNT] = json!(count);
        }
        match plan.forgery {
            Some(Forgery::Claim(gpu)) => annotate(&mut object, &claim_on(cluster, plan, gpu)),
            Some(Forgery::Placed(gpu)) => {
                annotate(&mut object, &claim_on(cluster, plan, gpu));
                object["spec"]["nodeName"] = json!(place(cluster, gpu).0);
            }
            Some(Forgery::Unclaimed(gpu)) => {
                object["spec"]["nodeName"] = json!(place(cluster, gpu).0);
            }
            Some(Forgery::Nonsense) => annotate(&mut object, "nonsense"),
            None => {}
        }
        if let Some(share) = &self.share {
            object = share.given_to(object);
        }
        parse(match plan.priority {
            Priority::Default => object,
            Priority::Middle => of_class(object, MIDDLE),
            Priority::High => of_class(object, HIGH),
        })
    }
}

/// A claim for the plan's containers on one GPU of all.
pub(super) fn claim_on(cluster: &Cluster, plan: &Plan, gpu: usize) -> String {
    let (_, uuid) = place(cluster, gpu);
    let asking = named(plan).filter(|(_, units)| *units > 0);
    let claim: serde_json::Map<String, Value> =
        asking.map(|(name, units)| (name, json!({&uuid: units}))).collect();
    Value::Object(claim).to_string()
}

fn annotate(object: &mut Value, claim: &str) {
    object["metadata"]["annotations"][CLAIM] = json!(claim);
}

/// The plan's containers with their units.
fn named(plan: &Plan) -> impl Iterator<Item = (String, u64)> {
    plan.containers.iter().enumerate().map(|(place, units)| (format!("c{place}"), *units))
}

/// The node and the UUID of a GPU among all nodes' GPUs.
fn place(cluster: &Cluster, gpu: usize) -> (&'static str, String) {
    let gpus = cluster
        .nodes()
        .iter()
        .flat_map(|node| node.gpus().into_iter().map(move |gpu| (node.name(), gpu.uuid)));
    gpus.cycle().nth(gpu).unwrap_or_default()
}
