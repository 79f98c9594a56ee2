//! What is written is the golden file to the byte, and what is read from it is the same value.

use api::allocation::Allocation;
use api::capacity::Capacity;
use api::claim::Claim;
use api::decisions::Decisions;
use api::expected_use::ExpectedUse;
use api::explain::Explanation;
use api::gpus::Gpus;
use api::health::Health;
use api::inspect::Inspected;
use api::moves::Moves;
use api::node::{AllGpus, NodeDetail};
use api::pods::NodePods;
use api::policy_check::PolicyCheck;
use api::readings::PolledReadings;
use api::shadow::Shadow;
use api::share::NodeShare;
use api::share_config::ShareConfig;
use api::simulate::Simulation;
use api::state::State;
use api::workloads::Workloads;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::values;

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("../golden/", $name, ".json")).trim_end()
    };
}

#[test]
fn gpus() {
    assert_eq!(values::gpus().to_json(), golden!("gpu-cards"));
    assert_eq!(Gpus::from_json(golden!("gpu-cards")), Ok(values::gpus()));
}

#[test]
fn share() {
    assert_eq!(values::share().to_json(), golden!("gpu-share"));
    assert_eq!(NodeShare::from_json(golden!("gpu-share")), Ok(values::share()));
}

#[test]
fn share_config() {
    let text = serde_json::to_string_pretty(&values::share_config()).unwrap();
    assert_eq!(text, golden!("share-config"));
    let read = ShareConfig::from_value(&serde_json::from_str(golden!("share-config")).unwrap());
    assert_eq!(read, Ok(values::share_config()));
}

#[test]
fn claim() {
    assert_eq!(values::claim().to_json(), golden!("gpu-claim"));
    assert_eq!(Claim::from_json(golden!("gpu-claim"), 4), Ok(values::claim()));
}

#[test]
fn allocation() {
    assert_eq!(values::allocation().to_json(), golden!("gpu-allocation"));
    assert_eq!(Allocation::from_json(golden!("gpu-allocation")), Ok(values::allocation()));
}

#[test]
fn expected_use() {
    assert_eq!(values::expected_use().to_json(), golden!("expected-use"));
    assert_eq!(ExpectedUse::from_json(golden!("expected-use")), Ok(values::expected_use()));
}

#[test]
fn inspect() {
    assert_eq!(serde_json::to_string(&values::inspected()).unwrap(), golden!("inspect"));
    let read: Inspected = serde_json::from_str(golden!("inspect")).unwrap();
    assert_eq!(read, values::inspected());
}

#[test]
fn explain() {
    let text = serde_json::to_string_pretty(&values::explanation()).unwrap();
    assert_eq!(text, golden!("explain"));
    let read: Explanation = serde_json::from_str(golden!("explain")).unwrap();
    assert_eq!(read, values::explanation());
}

#[test]
fn health() {
    assert_eq!(serde_json::to_string_pretty(&values::health()).unwrap(), golden!("health"));
    assert_eq!(serde_json::from_str::<Health>(golden!("health")).unwrap(), values::health());
}

#[test]
fn shadow() {
    assert_eq!(serde_json::to_string_pretty(&values::shadow()).unwrap(), golden!("shadow"));
    let read: Shadow = serde_json::from_str(golden!("shadow")).unwrap();
    assert_eq!(read, values::shadow());
}

#[test]
fn policy_check() {
    assert_eq!(serde_json::to_string(&values::policy_check()).unwrap(), golden!("policy-check"));
    let read: PolicyCheck = serde_json::from_str(golden!("policy-check")).unwrap();
    assert_eq!(read, values::policy_check());
}

#[test]
fn pods() {
    assert_eq!(values::pods().to_json(), golden!("pods"));
    assert_eq!(NodePods::from_json(golden!("pods")), Ok(values::pods()));
}

#[test]
fn readings() {
    assert_eq!(values::readings().to_json(), golden!("readings"));
    assert_eq!(PolledReadings::from_json(golden!("readings")), Ok(values::readings()));
}

#[test]
fn workloads() {
    assert_eq!(values::workloads().to_json(), golden!("workloads"));
    assert_eq!(Workloads::from_json(golden!("workloads")), Ok(values::workloads()));
}

/// Every field of the golden file is read, and written as it stands there.
fn is_read_and_written<T: Serialize + DeserializeOwned>(golden: &str) {
    let read: T = serde_json::from_str(golden).unwrap();
    assert_eq!(serde_json::to_string_pretty(&read).unwrap(), golden);
}

#[test]
fn state() {
    is_read_and_written::<State>(golden!("state"));
    is_read_and_written::<State>(golden!("state-update"));
}

#[test]
fn node() {
    is_read_and_written::<NodeDetail>(golden!("node"));
    is_read_and_written::<AllGpus>(golden!("all-cards"));
    is_read_and_written::<Vec<Capacity>>(golden!("capacity"));
    is_read_and_written::<Moves>(golden!("moves"));
    is_read_and_written::<Simulation>(golden!("simulate"));
}

#[test]
fn decisions() {
    is_read_and_written::<Decisions>(golden!("decisions"));
}
