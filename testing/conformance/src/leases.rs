//! Leases, by which one of several replicas is chosen to write.

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig, same, text};

const MODIFIED: &str = "the object has been modified; \
                        please apply your changes to the latest version and try again";

/// A Lease that `holder` holds for a second.
fn held_by(name: &str, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 1, "leaseTransitions": 0,
            "acquireTime": "2026-11-20T09:00:00.000000Z", "renewTime": "2026-11-20T09:00:00.000000Z",
        },
    })
}

/// Creates a Lease in place of an earlier one.
async fn created(rig: &Rig<'_>, name: &str) -> Result<Value, Refuted> {
    rig.lease("DELETE", name, None).await?;
    rig.lease("POST", "", Some(&held_by(name, "first"))).await?.is(201)
}

pub(crate) async fn of_two_that_take_a_free_lease_one_gets_it(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    created(rig, "free").await?;
    let second = rig.lease("POST", "", Some(&held_by("free", "second"))).await?;
    second.is_refused(409, "leases.coordination.k8s.io \"free\" already exists")?;
    let found = rig.lease("GET", "free", None).await?.is(200)?;
    same("the holder", text(&found["spec"]["holderIdentity"]), "first")?;
    rig.lease("DELETE", "free", None).await.map(drop)
}

/// The API server keeps no time: whether a lease is over is the candidates' own matter.
pub(crate) async fn a_lease_that_was_renewed_meanwhile_is_not_taken(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let seen = created(rig, "renewed").await?;
    let renewed = with_field(&seen, "renewTime", "2026-11-20T09:00:01.000000Z");
    rig.lease("PUT", "renewed", Some(&renewed)).await?.is(200)?;
    let taken = with_field(&seen, "holderIdentity", "second");
    let resource = "leases.coordination.k8s.io \"renewed\"";
    let message = format!("Operation cannot be fulfilled on {resource}: {MODIFIED}");
    rig.lease("PUT", "renewed", Some(&taken)).await?.is_refused(409, &message)?;
    rig.lease("DELETE", "renewed", None).await.map(drop)
}

fn with_field(lease: &Value, field: &str, value: &str) -> Value {
    let mut lease = lease.clone();
    lease["spec"][field] = value.into();
    lease
}
