//! What is beyond a limit is refused; what is at it is not.

use std::collections::BTreeMap;

use api::JsonError;
use api::cards::{Card, Cards, CardsError, MAX_CARDS, MAX_NAME, MAX_PODS, MAX_TEXT};
use api::claim::Claim;
use api::expected_use::{self, ExpectedUse};
use api::share::{self, NodeShare};
use placement::names::limits;
use placement::units::{CardId, PodUid, Units};

use crate::values::{card, uuid};

fn refused(cards: Vec<Card>) -> CardsError {
    Cards::from_json(&Cards(cards).to_json()).unwrap_err()
}

fn uid(pod: usize) -> PodUid {
    PodUid::from(format!("00000000-0000-4000-8000-{pod:012x}"))
}

#[test]
fn a_text_that_is_too_long_is_not_parsed() {
    let text = " ".repeat(MAX_TEXT + 1);
    let too_long = JsonError::TooLong { length: MAX_TEXT + 1, limit: MAX_TEXT };
    assert_eq!(Cards::from_json(&text), Err(CardsError::Json(too_long)));
    let text = " ".repeat(share::MAX_TEXT + 1);
    assert!(matches!(NodeShare::from_json(&text), Err(JsonError::TooLong { .. })));
}

#[test]
fn an_expected_use_that_is_too_long_or_names_another_resource_is_refused() {
    let long = " ".repeat(expected_use::MAX_TEXT + 1);
    assert!(matches!(ExpectedUse::from_json(&long), Err(JsonError::TooLong { .. })));
    for wrong in [r#"{"mem":"1Gi"}"#, r#"{"cpu":1}"#, r#"{"cpu":"1","cpu":"2"}"#, "1"] {
        assert!(matches!(ExpectedUse::from_json(wrong), Err(JsonError::Malformed(_))), "{wrong}");
    }
}

#[test]
fn as_many_cards_and_pods_as_a_machine_may_have_are_read() {
    let pods = |card: usize| (0..16).map(move |pod| (uid(card * 16 + pod), Units(1))).collect();
    let full = |index: usize| Card {
        model: "N".repeat(MAX_NAME),
        pods: pods(index),
        ..card(u32::try_from(index).unwrap())
    };
    let cards = Cards((0..MAX_CARDS).map(full).collect());
    assert_eq!(Cards::from_json(&cards.to_json()), Ok(cards));
    let crowded = Card { pods: (0..MAX_PODS).map(|pod| (uid(pod), Units(1))).collect(), ..card(0) };
    assert_eq!(Cards::from_json(&Cards(vec![crowded.clone()]).to_json()), Ok(Cards(vec![crowded])));
}

#[test]
fn more_cards_or_pods_than_a_machine_has_are_refused() {
    let many = (0..65).map(card).collect();
    assert_eq!(refused(many), CardsError::TooMany(65));
    let crowded =
        Card { pods: (0..=MAX_PODS).map(|pod| (uid(pod), Units(1))).collect(), ..card(7) };
    assert_eq!(refused(vec![crowded]), CardsError::TooManyPods { index: 7, pods: MAX_PODS + 1 });
}

#[test]
fn names_that_no_card_or_pod_has_are_refused() {
    let long = |length: usize| "N".repeat(length);
    let error = |field, limit| CardsError::LongName { index: 0, field, length: limit + 1, limit };
    let model = Card { model: long(MAX_NAME + 1), ..card(0) };
    assert_eq!(refused(vec![model]), error("model", MAX_NAME));
    let name = Card { uuid: long(MAX_NAME + 1).into(), ..card(0) };
    assert_eq!(refused(vec![name]), error("uuid", MAX_NAME));
    let pods: BTreeMap<PodUid, Units> = [(long(limits::UID + 1).into(), Units(1))].into();
    assert_eq!(refused(vec![Card { pods, ..card(0) }]), error("pod UID", limits::UID));
}

#[test]
fn a_card_listed_twice_is_refused() {
    let again = Card { uuid: uuid(0), ..card(1) };
    assert_eq!(refused(vec![card(0), again]), CardsError::Twice(uuid(0)));
}

#[test]
fn a_claim_may_be_as_long_as_its_containers_make_it_and_no_longer() {
    let name = |number: usize| format!("{number:0>63}");
    let on = || [(CardId::from("G".repeat(MAX_NAME)), Units(u32::MAX))].into();
    let claim = Claim { containers: (0..1000).map(|number| (name(number), on())).collect() };
    let text = claim.to_json();
    assert_eq!(Claim::from_json(&text, 1000), Ok(claim));
    let refused = Claim::from_json(&text, 999);
    assert!(matches!(refused, Err(JsonError::TooLong { .. })), "{refused:?}");
}

#[test]
fn a_claim_that_names_a_container_or_a_card_twice_is_refused() {
    for twice in [r#"{"a":{"GPU-1":1},"a":{"GPU-1":1}}"#, r#"{"a":{"GPU-1":1,"GPU-1":2}}"#] {
        let refused = Claim::from_json(twice, 2).unwrap_err();
        assert!(refused.to_string().starts_with("a key stands in an object twice"), "{refused}");
    }
}

#[test]
fn an_error_repeats_little_of_the_text() {
    let text = format!(r#"{{"{}":[]}}"#, "c".repeat(5000));
    assert!(Claim::from_json(&text, 100).unwrap_err().to_string().len() <= 200);
    let text = format!(r#"[{{"uuid":0,"model":"{}"}}]"#, "c".repeat(5000));
    assert!(Cards::from_json(&text).unwrap_err().to_string().len() <= 230);
}
