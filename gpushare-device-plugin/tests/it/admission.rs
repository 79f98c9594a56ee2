//! Pods get the GPU of their claim, or are refused with a reason.

use sim::{Failure, Fault, PODS, Verb, pod};

use crate::rig::admission::AdmissionRig;
use crate::rig::{self, A, B, C, RESOURCE, Rig, claims, gpu, shuffled};

#[tokio::test(flavor = "multi_thread")]
async fn forty_equal_pods_bound_in_another_order_than_admitted_all_get_their_claimed_gpu() {
    let rig = Rig::new(&[(A, 48), (B, 48), (C, 48)]).await;
    let pods = claims(40);
    for (name, claimed) in shuffled(pods.clone(), 1) {
        rig.bind(pod(&name).asking(RESOURCE, 3), claimed);
    }
    for (name, claimed) in shuffled(pods, 2) {
        let answers = rig.admit(&name).await.unwrap();
        assert_eq!(gpu(&answers["main"]), claimed, "{name}");
        rig.kubelet.start_container(&name, "main").await.unwrap();
    }
    assert_eq!(rig.metric("plimsoll_gpu_starts_total{result=\"verified\"}"), 40.0);
    assert_eq!(rig.metric("plimsoll_gpu_starts_total{result=\"mismatch\"}"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_ids_of_no_gpu_is_counted_as_refused_and_as_no_mismatch() {
    let rig = AdmissionRig::new(&[(A, 2)]);
    let refused = rig.admission.prestart(&["bbbbbbbb-0".to_owned()]).await.unwrap_err();
    let reason = refused.label().unwrap();
    assert_eq!(rig.metrics.refusals.with([reason]).get(), 1, "{refused}");
    assert_eq!(rig.metrics.starts.with(["mismatch"]).get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_filled_emptied_and_refilled_to_the_last_unit() {
    let rig = Rig::new(&[(A, 6), (B, 6)]).await;
    for round in 0..3 {
        for (at, claimed) in [(0, A), (1, B), (2, A), (3, B)] {
            let name = format!("r{round}p{at}");
            let answers = rig.run(pod(&name).asking(RESOURCE, 3), claimed).await.unwrap();
            assert_eq!(gpu(&answers["main"]), claimed, "{name}");
        }
        (0..4).for_each(|at| rig.end(&format!("r{round}p{at}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_the_kubelet_forgot_in_flight_is_not_given_away_again() {
    let rig = Rig::new(&[(A, 4)]).await;
    rig.run(pod("held").asking(RESOURCE, 1), A).await.unwrap();
    // What a List during the Allocate of `held` leaves behind: its id counts as free.
    rig.kubelet.forget_in_flight("held");
    rig.run(pod("next").asking(RESOURCE, 2), A).await.unwrap();
    assert!(rig.kubelet.shared_ids().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_rate_limit_delays_an_admission_and_does_not_fail_it() {
    let rig = Rig::new(&[(A, 40), (B, 40)]).await;
    for (at, claimed) in [A, B].into_iter().cycle().take(30).enumerate() {
        rig.kubelet.exhaust_rate_limit();
        let answers = rig.run(pod(&format!("p{at}")).asking(RESOURCE, 1), claimed).await.unwrap();
        assert_eq!(gpu(&answers["main"]), claimed);
    }
    assert!(rig.kubelet.calls_turned_away() >= 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_containers_of_one_size_each_get_ids_on_the_claimed_gpu() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let two = pod("two").container("left", RESOURCE, 2).container("right", RESOURCE, 2);
    let answers = rig.run(two, B).await.unwrap();
    assert_eq!((gpu(&answers["left"]), gpu(&answers["right"])), (B.to_owned(), B.to_owned()));
    assert_eq!(answers["left"].envs["ALIYUN_COM_GPU_MEM_CONTAINER"], "2");
    assert_eq!(answers["left"].envs["ALIYUN_COM_GPU_MEM_POD"], "4");
    for container in ["left", "right"] {
        rig.kubelet.start_container("two", container).await.unwrap();
    }
    assert_eq!(rig.metric("plimsoll_gpu_starts_total{result=\"verified\"}"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_container_takes_over_ids_of_its_init_container() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let smaller = pod("smaller").init_container("init", RESOURCE, 4).container("main", RESOURCE, 2);
    let answers = rig.run(smaller, B).await.unwrap();
    assert_eq!((gpu(&answers["init"]), gpu(&answers["main"])), (B.to_owned(), B.to_owned()));
    let larger = pod("larger").init_container("init", RESOURCE, 1).container("main", RESOURCE, 2);
    let answers = rig.run(larger, A).await.unwrap();
    assert_eq!((gpu(&answers["init"]), gpu(&answers["main"])), (A.to_owned(), A.to_owned()));
    for (name, container) in
        [("smaller", "init"), ("smaller", "main"), ("larger", "init"), ("larger", "main")]
    {
        rig.kubelet.start_container(name, container).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_keeps_ids_of_its_own() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let mixed = pod("mixed")
        .sidecar("side", RESOURCE, 2)
        .init_container("init", RESOURCE, 2)
        .asking(RESOURCE, 2);
    let answers = rig.run(mixed, B).await.unwrap();
    assert!(["side", "init", "main"].iter().all(|name| gpu(&answers[*name]) == B));
    assert!(rig.kubelet.ids("mixed", "side").is_disjoint(&rig.kubelet.ids("mixed", "main")));
    assert_eq!(rig.kubelet.ids("mixed", "init"), rig.kubelet.ids("mixed", "main"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_init_container_alone_asks_is_not_taken_for_the_next_pod() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    let init_only =
        pod("init-only").init_container("init", RESOURCE, 2).container("main", RESOURCE, 0);
    rig.bind(init_only, A);
    let spec = rig::spec(&rig.sim.pod("default", "init-only").unwrap());
    // Let in, but not reported as started: in the kubelet's list it looks as if it still waited.
    rig.kubelet.admit(spec).await.unwrap();
    let answers = rig.run(pod("next").asking(RESOURCE, 2), B).await.unwrap();
    assert_eq!(gpu(&answers["main"]), B);
    rig.kubelet.start_container("init-only", "init").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_a_claim_is_refused_with_the_reason() {
    let rig = Rig::new(&[(A, 8)]).await;
    rig.sim.put(pod("stray").asking(RESOURCE, 2).on(rig::NODE));
    let refused = rig.admit("stray").await.unwrap_err();
    assert!(
        refused
            .0
            .contains("desc = pod default/stray has no GPU claim: it was not bound by Plimsoll"),
        "{}",
        refused.0
    );
    assert_eq!(rig.metric("plimsoll_gpu_refusals_total{reason=\"unclaimed\"}"), 1.0);
    rig.run(pod("good").asking(RESOURCE, 2), A).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_claim_on_an_absent_gpu_or_of_another_size_is_refused() {
    let rig = Rig::new(&[(A, 8)]).await;
    let refused = rig.run(pod("elsewhere").asking(RESOURCE, 2), B).await.unwrap_err();
    assert!(refused.0.contains("which this node does not have"), "{}", refused.0);
    let claim = format!(r#"{{"main":{{"{A}":1}}}}"#);
    rig.sim.put(pod("small").asking(RESOURCE, 2).on(rig::NODE).annotation(rig::CLAIM, claim));
    let refused = rig.admit("small").await.unwrap_err();
    assert!(
        refused.0.contains("the claim gives container `main` 1 units, its spec asks for 2"),
        "{}",
        refused.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_a_full_gpu_is_refused_and_gets_no_other_gpu() {
    let rig = Rig::new(&[(A, 3), (B, 8)]).await;
    rig.run(pod("first").asking(RESOURCE, 2), A).await.unwrap();
    let refused = rig.run(pod("second").asking(RESOURCE, 2), A).await.unwrap_err();
    assert!(
        refused.0.contains(&format!("claims 2 units of GPU {A}, where 1 are free")),
        "{}",
        refused.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_admitted_before_the_resource_was_registered_are_not_taken_for_the_next_pod() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.bind(pod("early").asking(RESOURCE, 2), A);
    rig.kubelet.let_in(rig::spec(&rig.sim.pod("default", "early").unwrap()));
    rig.report_started("early");
    let answers = rig.run(pod("late").asking(RESOURCE, 2), B).await.unwrap();
    assert_eq!(gpu(&answers["main"]), B);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_name_that_was_used_before_gets_its_own_claim() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    for (round, claimed) in [A, B, A, B].into_iter().enumerate() {
        let again = pod("set-0").uid(&format!("uid-{round}")).asking(RESOURCE, 2);
        let answers = rig.run(again, claimed).await.unwrap();
        assert_eq!(gpu(&answers["main"]), claimed, "round {round}");
        rig.kubelet.start_container("set-0", "main").await.unwrap();
        rig.end("set-0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_late_watch_does_not_show_is_read_from_the_api_server() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.run(pod("set-0").uid("old").asking(RESOURCE, 2), A).await.unwrap();
    rig.marked("set-0").await;
    rig.hang_watches().await;
    rig.end("set-0");
    for (name, claimed) in [("set-0", B), ("new", A)] {
        let answers = rig.run(pod(name).asking(RESOURCE, 2), claimed).await.unwrap();
        assert_eq!(gpu(&answers["main"]), claimed, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_read_of_the_pod_being_admitted_is_repeated() {
    let rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.hang_watches().await;
    for fault in [Fault::DropRequest, Fault::Answer(Failure::new(500, "InternalError", "broken"))] {
        rig.sim.faults().next(1, Verb::Get, PODS, fault.clone());
        let name = format!("p-{}", rig.kubelet.lists());
        let answers = rig.run(pod(&name).asking(RESOURCE, 2), B).await;
        assert_eq!(answers.map(|answers| gpu(&answers["main"])), Ok(B.to_owned()), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_made_again_under_its_name_gets_the_ids_of_its_predecessors_init_container() {
    let rig = Rig::new(&[(A, 8), (B, 4)]).await;
    let set_0 = pod("set-0").init_container("init", RESOURCE, 4).container("main", RESOURCE, 2);
    rig.run(set_0.clone().uid("old"), B).await.unwrap();
    rig.marked("set-0").await;
    // As when the pod is made again before the watch shows that.
    rig.hang_watches().await;
    rig.end("set-0");
    let answers = rig.run(set_0.uid("new"), B).await.unwrap();
    assert_eq!(gpu(&answers["init"]), B);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_init_container_that_the_kubelet_forgot_gets_its_own_ids_again() {
    let mut rig = Rig::new(&[(A, 8), (B, 4)]).await;
    let pod = pod("p").init_container("init", RESOURCE, 4).container("main", RESOURCE, 2);
    rig.bind(pod, B);
    rig.kubelet.forget_next_allocation();
    rig.admit("p").await.unwrap_err();
    rig.kubelet.kill().await;
    rig.kubelet.begin();
    rig.kubelet.registered(2).await;
    rig.kubelet.devices("devices again", |devices| devices.len() == 12).await;
    let answers = rig.admit("p").await.unwrap();
    assert_eq!(gpu(&answers["init"]), B);
}
