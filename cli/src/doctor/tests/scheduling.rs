//! What the checks of kube-scheduler find.

use super::*;

#[test]
fn a_scheduler_of_two_that_does_not_ask_the_extender_is_found() {
    let mut facts = healthy();
    facts.schedulers =
        Ok(vec![scheduler("cp-1", CONFIGURED), scheduler("cp-2", "--leader-elect=true")]);
    assert_only(
        &facts,
        Level::Fail,
        "kube-scheduler",
        "cp-2: no --config, so it does not ask the extender (1 of 2",
    );
}

#[test]
fn a_configuration_that_an_upgrade_has_taken_out_is_found() {
    let mut facts = healthy();
    facts.schedulers =
        Ok(vec![scheduler("cp-1", "--leader-elect=true"), scheduler("cp-2", CONFIGURED)]);
    assert_only(
        &facts,
        Level::Fail,
        "kube-scheduler",
        "cp-1: no --config, though `enable` has run there",
    );
    let mut facts = healthy();
    facts
        .kubeadm_config
        .as_mut()
        .unwrap()
        .as_mut()
        .unwrap()
        .data
        .insert("ClusterConfiguration".to_owned(), "scheduler: {}".to_owned());
    assert_only(&facts, Level::Warn, "kube-scheduler", "the next kubeadm upgrade takes");
    let mut facts = healthy();
    let condition = json!([{"type": "GPUUnitsWithheld", "status": "True"}]);
    facts.nodes.as_mut().unwrap()[1].status.conditions = of(condition);
    assert_only(&facts, Level::Fail, "kube-scheduler", "1 node offer no units: gpu-1");
}

#[test]
fn whole_nodes_in_place_of_names_are_found_as_an_extender_says() {
    let mut facts = healthy();
    let whole = ("requests", ConditionState::Failed, "kube-scheduler sends whole nodes");
    say(&mut facts.extenders, "extender-a", whole);
    say(&mut facts.extenders, "extender-b", whole);
    assert_only(
        &facts,
        Level::Fail,
        "requests",
        "extender-a, extender-b: requests: kube-scheduler",
    );
}

#[test]
fn the_second_schedulers_configuration_is_read() {
    let mut facts = healthy();
    with_second_scheduler(&mut facts);
    let entry = |capable: bool| {
        let text = format!(
            "extenders:\n- {{urlPrefix: 'https://x:19100/load-aware', nodeCacheCapable: {capable}}}\n"
        );
        Ok(Some(of(json!({"data": {"config.yaml": text}}))))
    };
    facts.second_config = entry(true);
    assert_eq!(wrong(&facts), []);
    facts.second_config = entry(false);
    assert_only(&facts, Level::Fail, "kube-scheduler", "nodeCacheCapable false");
    facts.second_config = Ok(Some(of(json!({"data": {"config.yaml": "extenders: []\n"}}))));
    assert_only(&facts, Level::Fail, "kube-scheduler", "names no extender");
    facts.second_config = Ok(None);
    assert_only(&facts, Level::Fail, "kube-scheduler", "there is no configuration in a ConfigMap");
    // It is installed, and has no pod: the static pods are not asked to ask.
    facts.second_config = entry(true);
    facts.schedulers = Ok(vec![scheduler("cp-1", "--leader-elect=true")]);
    facts.pods.as_mut().unwrap().pop();
    workload_of(&mut facts, "kube-scheduler").status.ready_replicas = 0;
    assert_only(&facts, Level::Fail, "kube-scheduler", "0/2 ready");
}

#[test]
fn a_configuration_by_hand_is_not_known_to_ask() {
    let mut facts = healthy();
    facts.schedulers = Ok(vec![
        scheduler("cp-1", CONFIGURED),
        scheduler("cp-2", "--config=/etc/kubernetes/other.yaml"),
    ]);
    assert_only(&facts, Level::Warn, "kube-scheduler", "cp-2: --config=/etc/kubernetes/other.yaml");
}

#[test]
fn a_replica_that_fails_is_found_beside_one_that_is_well() {
    let mut facts = healthy();
    let fails = ("requests", ConditionState::Failed, "all 3 calls of Filter failed");
    say(&mut facts.extenders, "extender-a", fails);
    assert_only(&facts, Level::Fail, "requests", "extender-a: requests: all 3 calls");
}

#[test]
fn an_extender_that_is_not_called_is_found() {
    let mut facts = healthy();
    let not_called = ("requests", ConditionState::Unknown, "no kube-scheduler has called");
    say(&mut facts.extenders, "extender-a", not_called);
    // kube-scheduler asks one of them.
    assert_eq!(wrong(&facts), []);
    say(&mut facts.extenders, "extender-b", not_called);
    // A cluster in which nothing is scheduled is no fault.
    assert_only(&facts, Level::Unknown, "requests", "no kube-scheduler has called");
    let mut scheduled = event("Pod", "web", "Scheduled", "");
    scheduled.last_timestamp = Some(now() - SignedDuration::from_secs(60));
    scheduled.reporting_component = "another-scheduler".to_owned();
    facts.events = Ok(vec![scheduled.clone()]);
    assert_only(&facts, Level::Unknown, "requests", "no kube-scheduler has called");
    scheduled.reporting_component = "default-scheduler".to_owned();
    facts.events = Ok(vec![scheduled]);
    let found = of_check(&facts, "requests");
    assert!(
        found
            .iter()
            .any(|it| it.level == Level::Fail && it.what.starts_with("pods were scheduled"))
    );
}
