//! Cards, claims and card choice.

use std::collections::BTreeMap;

use jiff::Timestamp;
use placement::gpu::{
    Card, CardShare, Claim, ContainerAsk, ContainerKind, GpuRequest, NodeLedger, NodeShare, Placed,
    Stage, WhyNot, cards_from_json, cards_to_json,
};
use placement::names::Names;
use placement::units::{CardId, MiB, PodUid, Units};
use proptest::prelude::*;

fn card(index: u32, units: u32) -> Card {
    Card {
        uuid: CardId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000")),
        index,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(u64::from(units) * 1024),
        units: Units(units),
        numa_node: None,
        healthy: true,
        pods: BTreeMap::new(),
    }
}

fn ledger(cards: impl IntoIterator<Item = Card>) -> NodeLedger {
    let mut ledger = NodeLedger::default();
    ledger.set_cards(cards.into_iter().collect());
    ledger
}

fn ask(units: u32) -> GpuRequest {
    GpuRequest::single("app", Units(units)).unwrap()
}

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

fn ask_of(name: &str, kind: ContainerKind, position: usize, units: u32) -> ContainerAsk {
    ContainerAsk { name: name.to_owned(), kind, position, units: Units(units) }
}

#[test]
fn the_card_that_is_filled_best_is_chosen_and_ties_go_to_the_lowest_index() {
    let mut ledger = ledger([card(0, 16), card(1, 16), card(2, 8)]);
    assert_eq!(ledger.reserve(&uid("a"), &ask(5)).unwrap().1.index, 2);
    assert_eq!(ledger.reserve(&uid("b"), &ask(5)).unwrap().1.index, 0);
    assert_eq!(ledger.reserve(&uid("c"), &ask(11)).unwrap().1.index, 0);
    assert_eq!(ledger.reserve(&uid("d"), &ask(3)).unwrap().1.index, 2);
}

#[test]
fn a_refusal_names_every_card() {
    let mut ledger = ledger([card(0, 16), Card { healthy: false, ..card(1, 16) }]);
    ledger.reserve(&uid("a"), &ask(10)).unwrap();
    let refusal = ledger.fit(&ask(7)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "Insufficient GPU Memory in one device: asked 7 units, card 0 has 6 free, card 1 unhealthy"
    );
    assert!(refusal.could_ever_fit);
    assert!(!ledger.fit(&ask(17)).unwrap_err().could_ever_fit);
    assert!(NodeLedger::default().fit(&ask(1)).unwrap_err().to_string().contains("no GPU cards"));
}

#[test]
fn reserving_twice_gives_the_same_card_once() {
    let mut ledger = ledger([card(0, 16), card(1, 16)]);
    let first = ledger.reserve(&uid("a"), &ask(9)).unwrap();
    assert_eq!(ledger.reserve(&uid("a"), &ask(9)).unwrap(), first);
    assert_eq!(ledger.accounts()[0].used, Units(9));
}

#[test]
fn a_bound_pod_cannot_be_cancelled() {
    let mut ledger = ledger([card(0, 16)]);
    let (claim, _) = ledger.reserve(&uid("a"), &ask(9)).unwrap();
    ledger.observe(&uid("a"), &ask(9), Placed::Cards(claim.charge(&ask(9)).unwrap()), Stage::Bound);
    ledger.cancel(&uid("a"));
    assert_eq!(ledger.accounts()[0].used, Units(9));
    ledger.release(&uid("a"));
    assert_eq!(ledger.accounts()[0].used, Units(0));
}

#[test]
fn a_pod_without_a_claim_counts_on_every_card_until_the_kubelet_tells() {
    let mut ledger = ledger([card(0, 16), card(1, 16)]);
    ledger.observe(&uid("a"), &ask(9), Placed::Unknown, Stage::Bound);
    assert!(ledger.fit(&ask(8)).is_err());
    let recorded = Card { pods: [(uid("a"), Units(9))].into(), ..card(1, 16) };
    ledger.set_cards(vec![card(0, 16), recorded]);
    assert_eq!(ledger.fit(&ask(8)).unwrap().index, 0);
}

#[test]
fn the_kubelets_records_count_even_where_the_claim_says_otherwise() {
    let recorded = Card { pods: [(uid("a"), Units(9))].into(), ..card(1, 16) };
    let mut ledger = ledger([card(0, 16), recorded]);
    let forged = Placed::Cards([(card(0, 16).uuid, Units(9))].into());
    ledger.observe(&uid("a"), &ask(9), forged, Stage::Bound);
    let used: Vec<_> = ledger.accounts().iter().map(|a| a.used).collect();
    assert_eq!(used, [Units(9), Units(9)]);
}

#[test]
fn a_pod_that_only_the_kubelet_knows_still_holds_its_units() {
    let recorded = Card { pods: [(uid("gone"), Units(9))].into(), ..card(0, 16) };
    assert!(ledger([recorded]).fit(&ask(8)).is_err());
}

#[test]
fn more_use_than_a_card_has_leaves_nothing_rather_than_wrapping() {
    let recorded = Card { pods: [(uid("a"), Units(40))].into(), ..card(0, 16) };
    let refusal = ledger([recorded]).fit(&ask(1)).unwrap_err();
    assert_eq!(refusal.cards, [(0, WhyNot::Free(Units(0)))]);
}

#[test]
fn a_forged_claim_never_lightens_a_pod() {
    let names = Names::default();
    let read = |claim: &str| {
        let key = names.claim();
        Placed::read(&names, &ask(9), |k| (k == key).then_some(claim))
    };
    let uuid = card(0, 16).uuid;
    assert_eq!(
        read(&format!(r#"{{"app":{{"{uuid}":9}}}}"#)),
        Placed::Cards([(uuid.clone(), Units(9))].into())
    );
    for forged in [
        format!(r#"{{"app":{{"{uuid}":1}}}}"#),
        format!(r#"{{"other":{{"{uuid}":9}}}}"#),
        format!(r#"{{"app":{{"{uuid}":9}},"other":{{"{uuid}":1}}}}"#),
        "{}".to_owned(),
        "[]".to_owned(),
        String::new(),
    ] {
        assert_eq!(read(&forged), Placed::Unknown, "{forged}");
    }
}

#[test]
fn a_pod_placed_by_aliyuns_extender_is_counted_on_its_card() {
    let placed = Placed::read(&Names::default(), &ask(9), |key| {
        (key == "ALIYUN_COM_GPU_MEM_IDX").then_some("1")
    });
    let mut ledger = ledger([card(0, 16), card(1, 16)]);
    ledger.observe(&uid("a"), &ask(9), placed, Stage::Allocated);
    let used: Vec<_> = ledger.accounts().iter().map(|a| a.used).collect();
    assert_eq!(used, [Units(0), Units(9)]);
}

#[test]
fn an_app_that_takes_over_its_init_containers_units_is_charged_once() {
    let request = GpuRequest::new([
        ask_of("load", ContainerKind::Init, 0, 4),
        ask_of("serve", ContainerKind::App, 0, 2),
        ask_of("log", ContainerKind::App, 1, 1),
    ])
    .unwrap();
    let claim = Claim::on_card(&request, &card(0, 16).uuid);
    assert_eq!(claim.charge(&request).unwrap(), [(card(0, 16).uuid, Units(4))].into());
    assert_eq!(claim.sole_card(), Some(&card(0, 16).uuid));
}

#[test]
fn bind_writes_our_annotation_and_aliyuns() {
    let request = GpuRequest::new([
        ask_of("load", ContainerKind::Init, 0, 4),
        ask_of("serve", ContainerKind::App, 0, 2),
        ask_of("log", ContainerKind::App, 2, 1),
    ])
    .unwrap();
    let (claim, choice) = ledger([card(3, 16)]).reserve(&uid("a"), &request).unwrap();
    let at: Timestamp = "2026-11-20T09:00:00.000000001Z".parse().unwrap();
    let written = claim.annotations(&Names::default(), &request, &choice, at);
    let golden = include_str!("../golden/bind-annotations.json");
    assert_eq!(format!("{}\n", serde_json::to_string_pretty(&written).unwrap()), golden);
}

#[test]
fn the_cards_annotation_is_as_documented() {
    let cards = vec![
        Card { numa_node: Some(0), pods: [(uid("2f6c"), Units(4))].into(), ..card(0, 16) },
        Card { healthy: false, ..card(1, 16) },
    ];
    let golden = include_str!("../golden/gpu-cards.json").trim_end();
    assert_eq!(cards_to_json(&cards), golden);
    assert_eq!(cards_from_json(golden), Ok(cards));
}

#[test]
fn a_card_listed_twice_is_refused() {
    let twice = cards_to_json(&[card(0, 16), Card { index: 1, ..card(0, 16) }]);
    assert!(cards_from_json(&twice).unwrap_err().to_string().ends_with("is listed twice"));
}

#[test]
fn the_share_annotation_is_as_documented() {
    let share = NodeShare {
        time: "2026-11-20T09:00:00Z".parse().unwrap(),
        cards: vec![
            CardShare {
                uuid: card(0, 16).uuid,
                units: Units(16),
                allocated: Units(7),
                used: Some(MiB(5120)),
                utilisation: Some(0.4),
            },
            CardShare {
                uuid: card(1, 16).uuid,
                units: Units(16),
                allocated: Units(0),
                used: None,
                utilisation: None,
            },
        ],
    };
    let golden = include_str!("../golden/gpu-share.json").trim_end();
    assert_eq!(share.to_json(), golden);
    assert_eq!(NodeShare::from_json(golden).unwrap(), share);
}

proptest! {
    #[test]
    fn claims_survive_the_round_trip(
        units in proptest::collection::vec((1_u32..99, 0_u8..3), 1..6),
        index in 0_u32..8,
    ) {
        let kinds = [ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::App];
        let asks = units.iter().enumerate().map(|(i, (units, kind))| {
            ask_of(&format!("c{i}"), kinds[usize::from(*kind)], i, *units)
        });
        let request = GpuRequest::new(asks).unwrap();
        let claim = Claim::on_card(&request, &card(index, 16).uuid);
        let back = Claim::from_json(&claim.to_json()).unwrap();
        prop_assert_eq!(&back, &claim);
        prop_assert_eq!(back.charge(&request).unwrap(), [(card(index, 16).uuid, request.peak())].into());
    }

    #[test]
    fn no_text_makes_a_gpu_codec_panic(text in "\\PC{0,120}") {
        let _ = cards_from_json(&text);
        let _ = Claim::from_json(&text);
        let _ = NodeShare::from_json(&text);
    }
}
