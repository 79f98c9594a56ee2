//! The annotations of a bound pod.

use cluster::claim_annotations;
use jiff::Timestamp;
use placement::gpu::{
    CardUse, Choice, ChosenCard, Claim, ContainerKind, ContainerRequest, GpuRequest, Reservation,
};
use placement::names::Names;
use placement::units::{CardId, Units};

fn ask(name: &str, kind: ContainerKind, position: usize, units: u32) -> ContainerRequest {
    let card_use = CardUse::default();
    ContainerRequest { name: name.to_owned(), kind, position, units: Units(units), card_use }
}

#[test]
fn bind_writes_our_annotation_and_aliyuns() {
    let request = GpuRequest::new([
        ask("load", ContainerKind::Init, 0, 4),
        ask("serve", ContainerKind::App, 0, 2),
        ask("log", ContainerKind::App, 2, 1),
    ])
    .unwrap()
    .unwrap();
    let uuid = CardId::from("GPU-00000003-0000-0000-0000-000000000000");
    let claim = Claim::on_card(&request, &uuid);
    let card = ChosenCard { uuid, index: 3, units: Units(16), left: Units(12) };
    let choice = Choice { cards: vec![card], cost: None };
    let reservation = Reservation { claim, choice };
    let at: Timestamp = "2026-11-20T09:00:00.000000001Z".parse().unwrap();
    let written = claim_annotations(&Names::default(), &request, &reservation, at);
    let golden = include_str!("../golden/bind-annotations.json");
    assert_eq!(format!("{}\n", serde_json::to_string_pretty(&written).unwrap()), golden);
}

fn chosen(index: u32) -> ChosenCard {
    let uuid = CardId::from(format!("GPU-{index}"));
    ChosenCard { uuid, index, units: Units(16), left: Units(0) }
}

#[test]
fn bind_writes_several_cards_where_the_pod_has_them() {
    let limit = Some(Units(6));
    let card_use = CardUse { cards: 2, exclusive: true, limit, ..CardUse::default() };
    let asks = [ContainerRequest { card_use, ..ask("train", ContainerKind::App, 0, 4) }];
    let request = GpuRequest::new(asks).unwrap().unwrap();
    let cards = vec![chosen(5), chosen(2)];
    let uuids: Vec<CardId> = cards.iter().map(|card| card.uuid.clone()).collect();
    let reservation = Reservation {
        claim: Claim::on_cards(&request, &uuids),
        choice: Choice { cards, cost: None },
    };
    let at: Timestamp = "2026-11-20T09:00:00Z".parse().unwrap();
    let written = claim_annotations(&Names::default(), &request, &reservation, at);
    let of = |key: &str| written[key].as_str();
    assert_eq!(
        of("plimsoll.dev/gpu-claim"),
        r#"{"train":{"GPU-2":{"units":2,"exclusive":true,"limit":6},"GPU-5":{"units":2,"exclusive":true,"limit":6}}}"#
    );
    assert_eq!(of("scheduler.framework.gpushare.allocation"), r#"{"0":{"2":16,"5":16}}"#);
    assert_eq!((of("ALIYUN_COM_GPU_MEM_IDX"), of("ALIYUN_COM_GPU_MEM_POD")), ("2", "4"));
}
