//! The annotations of a bound pod.

use cluster::claim_annotations;
use jiff::Timestamp;
use placement::gpu::{Choice, Claim, ContainerAsk, ContainerKind, GpuRequest, Reservation};
use placement::names::Names;
use placement::units::{CardId, Units};

fn ask(name: &str, kind: ContainerKind, position: usize, units: u32) -> ContainerAsk {
    ContainerAsk { name: name.to_owned(), kind, position, units: Units(units) }
}

#[test]
fn bind_writes_our_annotation_and_aliyuns() {
    let request = GpuRequest::new([
        ask("load", ContainerKind::Init, 0, 4),
        ask("serve", ContainerKind::App, 0, 2),
        ask("log", ContainerKind::App, 2, 1),
    ])
    .unwrap();
    let uuid = CardId::from("GPU-00000003-0000-0000-0000-000000000000");
    let claim = Claim::on_card(&request, &uuid);
    let choice = Choice { uuid, index: 3, units: Units(16), left: Units(12) };
    let reservation = Reservation { claim, choice };
    let at: Timestamp = "2026-11-20T09:00:00.000000001Z".parse().unwrap();
    let written = claim_annotations(&Names::default(), &request, &reservation, at);
    let golden = include_str!("../golden/bind-annotations.json");
    assert_eq!(format!("{}\n", serde_json::to_string_pretty(&written).unwrap()), golden);
}
