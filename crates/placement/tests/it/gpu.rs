//! Cards, claims and card choice.

use std::collections::BTreeMap;

use placement::gpu::{
    Card, Claim, ClaimError, ContainerAsk, ContainerKind, GpuRequest, NodeLedger, Placed, Stage,
    WhyNot,
};
use placement::units::{CardId, MiB, PodUid, Units};

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
    ledger.observe(&uid("a"), &ask(9), Placed::by(&claim, &ask(9)), Stage::Bound);
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
fn only_what_bind_would_write_is_a_claim() {
    let request = GpuRequest::new([
        ask_of("load", ContainerKind::Init, 0, 4),
        ask_of("serve", ContainerKind::App, 0, 2),
    ])
    .unwrap();
    let read = |claimed: &[(&str, &[(u32, u32)])]| {
        let on = |cards: &[(u32, u32)]| {
            cards.iter().map(|(index, units)| (card(*index, 16).uuid, Units(*units))).collect()
        };
        let claimed = claimed.iter().map(|(name, cards)| ((*name).to_owned(), on(cards)));
        Claim::checked(&request, &claimed.collect())
    };
    let mismatch = |container: &str, claimed, asked| {
        let (claimed, asked) = (Units(claimed), Units(asked));
        Err(ClaimError::Mismatch { container: container.to_owned(), claimed, asked })
    };
    let bound = Claim::on_card(&request, &card(1, 16).uuid);
    assert_eq!(read(&[("load", &[(1, 4)]), ("serve", &[(1, 2)])]), Ok(bound));
    assert_eq!(read(&[]), mismatch("load", 0, 4));
    assert_eq!(read(&[("load", &[(1, 1)]), ("serve", &[(1, 2)])]), mismatch("load", 1, 4));
    assert_eq!(read(&[("load", &[(1, 4)])]), mismatch("serve", 0, 2));
    let another = [("load", &[(1, 4)][..]), ("serve", &[(1, 2)]), ("other", &[(1, 1)])];
    assert_eq!(read(&another), mismatch("other", 1, 0));
    for several in [
        [("load", &[(1, 4)][..]), ("serve", &[(2, 2)])],
        [("load", &[(1, 2), (2, 2)]), ("serve", &[(1, 2)])],
        [("load", &[(1, 4), (2, 0)]), ("serve", &[(1, 2)])],
    ] {
        assert_eq!(read(&several), Err(ClaimError::SeveralCards), "{several:?}");
    }
}

#[test]
fn a_pod_placed_by_aliyuns_extender_is_counted_on_its_card() {
    let mut ledger = ledger([card(0, 16), card(1, 16)]);
    ledger.observe(&uid("a"), &ask(9), Placed::Index(1), Stage::Allocated);
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
    let mut ledger = ledger([card(0, 16)]);
    ledger.reserve(&uid("a"), &request).unwrap();
    assert_eq!(ledger.accounts()[0].used, Units(4));
}
