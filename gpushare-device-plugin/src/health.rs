//! What the plugin says of its health: why it offers no GPUs, and why GPUs take no pods.
//!
//! Pure: from what other modules know to a [`Status`] with what to do.

use std::sync::Arc;

use daemon::{Condition, Health, Status};
use placement::gpu::Closed;
use tokio::sync::watch::Receiver;

use crate::container::Mode;
use crate::gpus::Gpus;
use crate::gpus::closed::ClosedGpus;
use crate::gpus::sizing::TooManyUnits;
use crate::isolation::{IsolationError, NodeIsolation};

const GENERATE: &str = "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/var/run/cdi/nvidia.yaml on the \
                        node; its events say what is wrong (docs/troubleshoot.md#a-gpu-node)";

/// What is to be done where the API server, the GPUs or the kubelet are not there, by the gate's id.
const REMEDIES: [(&str, &str); 3] = [
    (
        "cards-found",
        "does nvidia-smi work on the node, and does NVIDIA's runtime give its library to the plugin \
         (docs/troubleshoot.md#a-gpu-node)?",
    ),
    ("api-server-reached", "does the API server answer from this node?"),
    (
        "registered",
        "does the kubelet run, and is its folder device-plugins mounted (docs/troubleshoot.md#a-gpu-node)?",
    ),
];

/// Sets a gate to an outcome.
pub(crate) fn set(gate: &Condition, outcome: Result<(), String>) {
    let Err(why) = outcome else { return gate.set_ready() };
    match REMEDIES.iter().find(|(id, _)| *id == gate.id()) {
        Some((_, remedy)) => gate.set(Status::failed(why, *remedy)),
        None => gate.set_not_ready(why),
    }
}

/// A unit with which the node would have more than it may.
pub(crate) fn unit_too_small(error: &TooManyUnits) -> Status {
    let remedy = format!(
        "set --unit-mib to {} or more, on all nodes alike (docs/operations.md#change-the-unit)",
        error.enough
    );
    Status::failed(format!("the unit is too small, so no GPU is offered: {error}"), remedy)
}

/// A unit other than the one of ids that containers hold.
pub(crate) fn unit_changed(why: String) -> Status {
    Status::failed(
        why,
        "drain the GPU nodes before the unit changes (docs/operations.md#change-the-unit)",
    )
}

/// Publishes what is known of the GPUs.
pub(crate) fn publish(
    health: &Health,
    mode: Mode,
    gpus: &Receiver<Arc<Gpus>>,
    closed: &Receiver<Arc<ClosedGpus>>,
    isolation: &NodeIsolation,
) {
    let of = |judge: fn(&Counts) -> Status| {
        let (gpus, closed) = (gpus.clone(), closed.clone());
        move || judge(&Counts::of(&gpus.borrow(), &closed.borrow()))
    };
    health.look("cards", of(gpus_status));
    health.look("other-plugins", of(dra_status));
    match mode {
        Mode::Cdi => health.look("cdi", of(cdi_status)),
        Mode::Mounts => health.look("cdi", || {
            Status::warning(
                "not used: the plugin runs with --response=mounts, which protects less",
                "docs/security.md#which-gpu-a-container-sees",
            )
        }),
    }
    let isolation = isolation.clone();
    health.look("isolation", move || isolation_status(&isolation));
}

/// How many GPUs there are, and take no pods by each reason.
struct Counts {
    all: usize,
    unhealthy: Vec<String>,
    closed: Vec<Closed>,
}

impl Counts {
    fn of(gpus: &Gpus, closed: &ClosedGpus) -> Self {
        let mut counts =
            Self { all: gpus.iter().count(), unhealthy: Vec::new(), closed: Vec::new() };
        for gpu in gpus.iter() {
            if let Some(why) = gpu.unhealthy {
                counts.unhealthy.push(format!("{} ({why})", gpu.uuid));
            }
            counts.closed.extend(closed.of(&gpu.uuid));
        }
        counts
    }

    fn closed_by(&self, why: Closed) -> usize {
        self.closed.iter().filter(|closed| **closed == why).count()
    }
}

fn gpus_status(counts: &Counts) -> Status {
    let all = counts.all;
    if !counts.unhealthy.is_empty() {
        return Status::warning(
            format!("of {all} GPUs these are unhealthy: {}", counts.unhealthy.join(", ")),
            "docs/troubleshoot.md#a-gpu-node",
        );
    }
    let unusable = counts.closed_by(Closed::ComputeMode) + counts.closed_by(Closed::Context);
    if unusable > 0 {
        return Status::warning(
            format!(
                "of {all} GPUs {unusable} take no new pods, since programs cannot use CUDA on them"
            ),
            "kubectl plimsoll gpus shows which; the node's events say more (docs/troubleshoot.md#a-gpu-node)",
        );
    }
    Status::ok(format!("{all} healthy"))
}

fn cdi_status(counts: &Counts) -> Status {
    let all = counts.all;
    if counts.closed_by(Closed::CdiFolder) > 0 {
        return Status::failed(
            "the folder of CDI specifications cannot be written",
            "is /var/run/cdi writable for the device plugin, and not full?",
        );
    }
    match counts.closed_by(Closed::Cdi) {
        0 => Status::ok("the specifications have every GPU"),
        number => Status::failed(
            format!(
                "NVIDIA's CDI specification is missing or stale, so that {number} of {all} GPUs take no pods"
            ),
            GENERATE,
        ),
    }
}

fn dra_status(counts: &Counts) -> Status {
    match counts.closed_by(Closed::Dra) {
        0 => Status::ok("no DRA driver offers these GPUs"),
        number => Status::failed(
            format!("a DRA driver offers {number} of the same GPUs, which take no new pods"),
            "disable the driver's GPUs there (NVIDIA's: resources.gpus.enabled=false), or label the node \
             gpushare=false (docs/gpu.md#beside-a-dra-driver)",
        ),
    }
}

fn isolation_status(isolation: &NodeIsolation) -> Status {
    match isolation.decide(None) {
        Ok(decided) => match &decided.instead_of {
            None => Status::ok(decided.isolation.name()),
            Some((wanted, missing)) => Status::warning(
                format!("{} in place of {}", decided.isolation.name(), wanted.name()),
                missing.to_string(),
            ),
        },
        Err(IsolationError::NotKnown) => Status::ok("not known before there are GPUs"),
        Err(error) => Status::failed(
            format!("GPUs take no pods: {error}"),
            "docs/security.md#limit-gpu-memory-and-compute, or --isolation-unavailable=downgrade",
        ),
    }
}

#[cfg(test)]
mod tests {
    use api::health::ConditionState;
    use placement::units::{MiB, Units};

    use super::*;
    use crate::fixtures::{A, B, gpus};
    use crate::gpus::sizing::Sizing;
    use crate::gpus::{Gpu, Unhealthy};

    fn counts(closed: &ClosedGpus) -> Counts {
        Counts::of(&gpus(&[(A, 40), (B, 40)]), closed)
    }

    fn closed(why: Closed) -> ClosedGpus {
        ClosedGpus { gpus: [(A.into(), why)].into(), ..ClosedGpus::default() }
    }

    #[test]
    fn a_unit_that_is_too_small_is_told_with_one_that_is_enough() {
        let gpus = gpus(&[(A, 40), (B, 40)]);
        let many = gpus.iter().map(|gpu| Gpu { units: Units(40 << 10), ..gpu.clone() });
        let refused = Sizing::of_unit(MiB(1)).check(&Gpus::new(many.collect())).unwrap_err();
        let status = unit_too_small(&refused);
        assert!(status.text.contains("81920 units of 1 MiB"), "{status:?}");
        assert!(status.remedy.unwrap().starts_with("set --unit-mib to 3 or more"));
    }

    #[test]
    fn each_reason_is_in_the_condition_of_its_subject() {
        let states = |counts: &Counts| {
            [gpus_status(counts), cdi_status(counts), dra_status(counts)].map(|it| it.state)
        };
        use ConditionState::{Failed, Ok, Warning};
        assert_eq!(states(&counts(&ClosedGpus::default())), [Ok, Ok, Ok]);
        assert_eq!(states(&counts(&closed(Closed::Cdi))), [Ok, Failed, Ok]);
        let folder = ClosedGpus { all: Some(Closed::CdiFolder), ..ClosedGpus::default() };
        assert_eq!(states(&counts(&folder)), [Ok, Failed, Ok]);
        assert_eq!(states(&counts(&closed(Closed::Dra))), [Ok, Ok, Failed]);
        assert_eq!(states(&counts(&closed(Closed::Context))), [Warning, Ok, Ok]);
    }

    #[test]
    fn an_unhealthy_gpu_is_named_with_its_fault() {
        let gpus = gpus(&[(A, 40)]);
        let lost = gpus.iter().map(|gpu| Gpu { unhealthy: Some(Unhealthy::Lost), ..gpu.clone() });
        let counts = Counts::of(&Gpus::new(lost.collect()), &ClosedGpus::default());
        let text = gpus_status(&counts).text;
        assert!(text.contains(A) && text.contains("it does not answer"), "{text}");
    }
}
