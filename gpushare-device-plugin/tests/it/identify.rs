//! Which pod is being admitted, where the API server does not answer for every pod, or answers late.

use sim::pod;

use crate::rig::admission::AdmissionRig;
use crate::rig::{A, B, RESOURCE};

const OF_A: [&str; 2] = ["aaaaaaaa-0", "aaaaaaaa-1"];
const OF_B: [&str; 2] = ["bbbbbbbb-0", "bbbbbbbb-1"];

#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_that_cannot_be_read_does_not_matter_once_the_pod_is_known() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let bystander = rig.let_in(pod("bystander").uid("b").container("main", RESOURCE, 0), A);
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    rig.show(&admitted);
    rig.break_reads(&bystander);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_that_cannot_be_read_does_not_matter_where_the_watch_shows_neither_pod() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let bystander = rig.let_in(pod("bystander").uid("b").container("main", RESOURCE, 0), A);
    rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    rig.break_reads(&bystander);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_facts_are_all_unreadable_is_not_guessed() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    rig.break_reads(&admitted);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, [""; 0]);
    let random = OF_A.map(str::to_owned);
    let refusal = rig.admission.allocate(&random).unwrap_err();
    assert!(refusal.to_string().contains("read pod default/admitted: broken"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_made_again_under_its_name_is_not_taken_for_what_a_late_watch_shows() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let before = rig.let_in(pod("set-0").uid("old").asking(RESOURCE, 2), A);
    rig.show(&before);
    rig.kubelet.remove("set-0");
    rig.let_in(pod("set-0").uid("new").asking(RESOURCE, 2), B);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_refused_a_moment_ago_is_told_from_the_next_of_its_size() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let refused = rig.let_in(pod("refused").uid("r").asking(RESOURCE, 2), A);
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    rig.show(&refused);
    rig.show(&admitted);
    rig.fail_after(3, &refused);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pods_that_stay_possible_none_is_chosen() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    rig.let_in(pod("one").uid("1").asking(RESOURCE, 2), A);
    rig.let_in(pod("two").uid("2").asking(RESOURCE, 2), B);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, [""; 0]);
    let refusal = rig.admission.allocate(&OF_A.map(str::to_owned)).unwrap_err();
    assert!(refusal.to_string().contains("may be the pod being admitted"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pods_one_that_the_kubelet_lists_no_more_is_out_of_the_question_and_one_that_is_deleted_is_not()
 {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let refused = rig.let_in(pod("refused").uid("r").asking(RESOURCE, 2), A);
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    let all = [OF_A, OF_B].concat();
    let (preferred, ()) = tokio::join!(rig.prefer(2, &all), async {
        rig.read_twice(&refused).await;
        rig.forget(&admitted);
        rig.read_twice(&refused).await;
        rig.kubelet.remove("refused");
    });
    assert_eq!(preferred, OF_B);
}
