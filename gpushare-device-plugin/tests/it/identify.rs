//! Which pod is being admitted, where the API server does not answer for every pod.

use sim::pod;

use crate::rig::desk::Desk;
use crate::rig::{A, B, RESOURCE};

const OF_A: [&str; 2] = ["aaaaaaaa-0", "aaaaaaaa-1"];
const OF_B: [&str; 2] = ["bbbbbbbb-0", "bbbbbbbb-1"];

#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_that_cannot_be_read_does_not_matter_once_the_pod_is_known() {
    let desk = Desk::new(&[(A, 2), (B, 2)]);
    let bystander = desk.let_in(pod("bystander").uid("b").container("main", RESOURCE, 0), A);
    let admitted = desk.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    desk.show(&admitted);
    desk.break_reads(&bystander);
    assert_eq!(desk.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_that_cannot_be_read_does_not_matter_where_the_watch_shows_neither_pod() {
    let desk = Desk::new(&[(A, 2), (B, 2)]);
    let bystander = desk.let_in(pod("bystander").uid("b").container("main", RESOURCE, 0), A);
    desk.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    desk.break_reads(&bystander);
    assert_eq!(desk.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_facts_are_all_unreadable_is_not_guessed() {
    let desk = Desk::new(&[(A, 2), (B, 2)]);
    let admitted = desk.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    desk.break_reads(&admitted);
    assert_eq!(desk.prefer(2, &[OF_A, OF_B].concat()).await, [""; 0]);
    let random = OF_A.map(str::to_owned);
    let refusal = desk.admission.allocate(&random).unwrap_err();
    assert!(refusal.to_string().contains("read pod default/admitted: broken"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_made_again_under_its_name_is_not_taken_for_what_a_late_watch_shows() {
    let desk = Desk::new(&[(A, 2), (B, 2)]);
    let before = desk.let_in(pod("set-0").uid("old").asking(RESOURCE, 2), A);
    desk.show(&before);
    desk.kubelet.remove("set-0");
    desk.let_in(pod("set-0").uid("new").asking(RESOURCE, 2), B);
    assert_eq!(desk.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}
