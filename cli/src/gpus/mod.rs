//! Commands about GPUs: who holds them, what fits, which take pods.

pub(crate) mod capacity;
pub(crate) mod cordon;
pub(crate) mod defragment;
pub(crate) mod inspect;
pub(crate) mod top;

use std::io::Write;

use anyhow::Result;
use api::node::{Charge, ChargedGpu};
use api::state::Replica;
use api::{explain::Basis, gpus::Closed};

use crate::cluster_access::Cluster;
use crate::format::printable;

/// Whether a selector chooses a node of this name; without one all are chosen.
fn chosen(selector: Option<&str>, cluster: &Cluster) -> Result<impl Fn(&str) -> bool> {
    let names = selector.map(|selector| cluster.nodes_with(selector)).transpose()?;
    Ok(move |name: &str| names.as_ref().is_none_or(|names| names.contains(name)))
}

/// A model without its maker.
pub(crate) fn short_model(model: &str) -> &str {
    model.strip_prefix("NVIDIA ").unwrap_or(model)
}

/// Why a GPU takes no pods; `None` if it takes some.
fn out_of_use(gpu: &ChargedGpu) -> Option<&'static str> {
    if !gpu.healthy {
        // The node reports no more than that.
        return Some("unhealthy or cordoned");
    }
    gpu.closed.map(closed)
}

/// Why a GPU takes no new pods.
pub(crate) fn closed(why: Closed) -> &'static str {
    match why {
        Closed::Isolation => "closed: isolation",
        Closed::Cdi => "closed: no CDI device",
        Closed::CdiFolder => "closed: CDI folder",
        Closed::ComputeMode => "closed: compute mode",
        Closed::Context => "closed: CUDA fails",
        Closed::Dra => "closed: DRA driver",
        Closed::Claims => "ResourceClaims alone",
        Closed::Plugin => "closed: device plugin restarts",
        Closed::Other => "closed",
    }
}

/// The holder of a charge: `ml/train-1`, or `ml/share (ResourceClaim, 4096 MiB)`.
fn holder(charge: &Charge) -> String {
    let name = match (charge.namespace.as_str(), charge.name.as_str()) {
        ("", "") => "unmanaged".to_owned(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    let name = match charge.memory {
        Some(memory) if charge.resource_claim => format!("{name} (ResourceClaim, {memory} MiB)"),
        None if charge.resource_claim => format!("{name} (ResourceClaim)"),
        _ => name,
    };
    match charge.basis {
        Basis::UnknownPlace | Basis::UnprovenClaim => format!("{name} (GPU unknown)"),
        Basis::Nominated => format!("{name} (kept for it)"),
        Basis::Recorded
        | Basis::Chosen
        | Basis::Claimed
        | Basis::Unmanaged
        | Basis::ResourceClaim => name,
    }
}

/// Says so where the replica that answers does not know everything.
fn write_doubts(replica: &Replica, output: &mut dyn Write) -> Result<()> {
    let name = printable(&replica.name);
    if !replica.leads {
        writeln!(
            output,
            "\nReplica {name} answers, which does not lead: it does not know the GPUs of pods that are being bound."
        )?;
    }
    if !replica.complete {
        writeln!(
            output,
            "\nReplica {name} has not listed all nodes and pods yet: GPUs may look emptier than they are."
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(resource_claim: bool, memory: Option<u64>, basis: Basis) -> String {
        let (namespace, name) = ("ml".to_owned(), "share".to_owned());
        holder(&Charge { namespace, name, resource_claim, units: 6, memory, cores: 30, basis })
    }

    #[test]
    fn a_resource_claim_is_not_taken_for_a_pod() {
        assert_eq!(held(false, None, Basis::Recorded), "ml/share");
        let by_claim = held(true, Some(6000), Basis::ResourceClaim);
        assert_eq!(by_claim, "ml/share (ResourceClaim, 6000 MiB)");
        assert_eq!(held(true, None, Basis::ResourceClaim), "ml/share (ResourceClaim)");
        let of_another_gpu = held(true, None, Basis::UnknownPlace);
        assert_eq!(of_another_gpu, "ml/share (ResourceClaim) (GPU unknown)");
    }
}
