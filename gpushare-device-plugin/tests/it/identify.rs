//! Which pod is being admitted, where the API server does not answer for every pod, or answers late.

use sim::pod;

use crate::rig::admission::AdmissionRig;
use crate::rig::{A, B, C, RESOURCE};

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
async fn an_unreadable_bystander_that_the_watch_lacks_does_not_matter() {
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
async fn a_pod_that_the_kubelet_lists_no_more_is_not_chosen() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_pod_that_the_watch_has_not_shown_yet_is_possible_too() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let refused = rig.let_in(pod("refused").uid("r").asking(RESOURCE, 2), A);
    rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    rig.show(&refused);
    rig.fail_after(3, &refused);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_pod_that_is_being_deleted_keeps_the_kubelet_waiting_for_none() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let deleted = rig.let_in(pod("deleted").uid("d").asking(RESOURCE, 2), A);
    rig.show(&deleted);
    rig.change(&deleted, |pod| pod.deleting = true);
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
    assert_eq!([rig.reads(&deleted), rig.reads(&admitted)], [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_this_plugin_refused_is_no_candidate_from_then_on() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    // Its claim is on a GPU that the node lacks.
    let refused = rig.let_in(pod("refused").uid("r").asking(RESOURCE, 2), C);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, [""; 0]);
    let refusal = rig.admission.allocate(&OF_A.map(str::to_owned)).unwrap_err();
    assert!(refusal.to_string().contains("which this node does not have"), "{refusal}");
    // The kubelet lists it still, and the API server shows it as it was.
    rig.show(&refused);
    rig.break_reads(&refused);
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
    assert_eq!(rig.reads(&admitted), 1, "at once");
    rig.admission.allocate(&OF_B.map(str::to_owned)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_asks_again_for_a_refused_pod_gets_the_same_refusal() {
    let rig = AdmissionRig::new(&[(A, 2)]);
    rig.let_in(pod("refused").uid("r").asking(RESOURCE, 2), C);
    for _ in 0..2 {
        assert_eq!(rig.prefer(2, &OF_A).await, [""; 0]);
        let refusal = rig.admission.allocate(&OF_A.map(str::to_owned)).unwrap_err();
        assert!(refusal.to_string().contains("which this node does not have"), "{refusal}");
        rig.admission.kubelet_started();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_bystanders_that_the_watch_shows_none_is_read() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    for number in 0..50 {
        let bystander = pod(&format!("bystander-{number}")).uid(&format!("b-{number}"));
        let bystander = rig.let_in(bystander.container("main", RESOURCE, 0), A);
        rig.show(&bystander);
    }
    let admitted = rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
    assert_eq!((rig.reads(&admitted), rig.all_reads()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_read_a_few_at_a_time_and_less_and_less_often_while_reads_fail() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let mut bystanders = Vec::new();
    for number in 0..50 {
        let bystander = pod(&format!("bystander-{number}")).uid(&format!("b-{number}"));
        bystanders.push(rig.let_in(bystander.container("main", RESOURCE, 0), A));
    }
    bystanders.iter().for_each(|bystander| rig.break_reads(bystander));
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, [""; 0]);
    assert!(rig.most_reads_at_once() <= 8, "{}", rig.most_reads_at_once());
    // At 50 ms, as while one of several is expected to leave the list, 60 rounds would fit.
    let rounds = rig.reads(&bystanders[0]);
    assert!((2..=12).contains(&rounds), "{rounds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_pods_that_bypass_the_extender_are_refused_unread() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    let mut bypassing = Vec::new();
    for number in 0..50 {
        let bypass = pod(&format!("bypass-{number}")).uid(&format!("u-{number}"));
        bypassing.push(rig.let_in_unclaimed(bypass.asking(RESOURCE, 2)));
    }
    bypassing.iter().for_each(|pod| rig.show(pod));
    for pod in &bypassing {
        assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, [""; 0]);
        let refusal = rig.admission.allocate(&OF_A.map(str::to_owned)).unwrap_err();
        assert!(refusal.to_string().contains("GPU claim"), "{refusal}");
        rig.kubelet.remove(pod.name.as_str());
    }
    assert_eq!(rig.all_reads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_pod_is_told_from_pods_that_bypassed_the_extender_at_once() {
    let rig = AdmissionRig::new(&[(A, 2), (B, 2)]);
    // They started before the resource was registered, and their status does not say so yet.
    for name in ["early-1", "early-2"] {
        let early = rig.let_in_unclaimed(pod(name).uid(&format!("u-{name}")).asking(RESOURCE, 2));
        rig.show(&early);
    }
    rig.let_in(pod("admitted").uid("p").asking(RESOURCE, 2), B);
    assert_eq!(rig.prefer(2, &[OF_A, OF_B].concat()).await, OF_B);
    assert_eq!(rig.all_reads(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_api_server_does_not_have_is_refused_with_what_it_may_be() {
    let rig = AdmissionRig::new(&[(A, 2)]);
    let gone = rig.let_in(pod("static").uid("s").asking(RESOURCE, 2), A);
    rig.forget(&gone);
    assert_eq!(rig.prefer(2, &OF_A).await, [""; 0]);
    let refusal = rig.admission.allocate(&OF_A.map(str::to_owned)).unwrap_err();
    assert!(refusal.to_string().contains("default/static: a static pod"), "{refusal}");
}
