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

const NO_NAMES: &str =
    "the request has no NodeNames: set `nodeCacheCapable: true` in this extender's entry";

/// An event about a pod, this many seconds ago.
fn no_names_event(ago: i64) -> Event {
    let mut event = event("Pod", "train", "FailedScheduling", NO_NAMES);
    event.last_timestamp = Some(now() - SignedDuration::from_secs(ago));
    event
}

fn log_of_scheduler(text: &str) -> Read<BTreeMap<String, Read<String>>> {
    Ok(BTreeMap::from([("kube-scheduler-cp-1".to_owned(), Ok(text.to_owned()))]))
}

#[test]
fn whole_nodes_in_place_of_names_are_found_in_logs_and_in_events_of_calls_that_failed() {
    let mut facts = healthy();
    facts.scheduler_logs = log_of_scheduler(&format!("Skipping extender err=\"{NO_NAMES}\""));
    assert_only(&facts, Level::Fail, "requests", "(log of kube-scheduler-cp-1)");
    let mut facts = healthy();
    facts.events = Ok(vec![no_names_event(30)]);
    // Anyone writes an event; the extender has refused no call.
    assert_eq!(wrong(&facts), []);
    all_extenders(
        &mut facts,
        "plimsoll_extender_requests_total{verb=\"gpushare-scheduler/filter\",outcome=\"error\"} 1\n\
         plimsoll_extender_requests_total{verb=\"gpushare-scheduler/filter\",outcome=\"ok\"} 1\n",
    );
    let place = "nodeCacheCapable is false (event of pod shop/train)";
    assert_only(&facts, Level::Fail, "requests", place);
    // It is from before the schedulers started, or old.
    let started = json!([{"state": {"running": {"startedAt": "2026-11-26T13:59:45Z"}}}]);
    facts.schedulers.as_mut().unwrap()[0].status.container_statuses = of(started);
    assert_eq!(wrong(&facts), []);
    facts.events = Ok(vec![no_names_event(10)]);
    assert_only(&facts, Level::Fail, "requests", place);
    facts.schedulers.as_mut().unwrap()[0].status.container_statuses.clear();
    facts.events = Ok(vec![no_names_event(57 * 60)]);
    assert_eq!(wrong(&facts), []);
    let mut facts = healthy();
    all_extenders(
        &mut facts,
        "plimsoll_extender_requests_total{verb=\"load-aware/filter\",outcome=\"error\"} 3\n\
         plimsoll_extender_requests_total{verb=\"load-aware/prioritize\",outcome=\"ok\"} 3\n",
    );
    assert_only(&facts, Level::Fail, "requests", "all 6 calls of Filter failed");
}

/// With `--v=2` kube-scheduler logs its whole configuration.
#[test]
fn a_scheduler_that_logs_its_configuration_is_well() {
    let mut facts = healthy();
    facts.scheduler_logs =
        log_of_scheduler("Using component config\n  nodeCacheCapable: true\n  urlPrefix: x\n");
    assert_eq!(wrong(&facts), []);
    assert_eq!(ok_text(&facts, "requests"), "14 calls answered since the start");
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
fn an_extender_that_is_not_called_is_found() {
    let mut facts = healthy();
    // What asks for reports is no scheduler.
    let reports = "plimsoll_extender_requests_total{verb=\"report\",outcome=\"ok\"} 9\n";
    let page = format!("{reports}process_start_time_seconds 1795600000\n");
    all_extenders(&mut facts, &page);
    let what = "no kube-scheduler has called the extender in its";
    // A cluster in which nothing is scheduled is no fault.
    assert_only(&facts, Level::Unknown, "requests", what);
    let mut scheduled = event("Pod", "web", "Scheduled", "");
    scheduled.last_timestamp = Some(now() - SignedDuration::from_secs(60));
    scheduled.reporting_component = "another-scheduler".to_owned();
    facts.events = Ok(vec![scheduled.clone()]);
    assert_only(&facts, Level::Unknown, "requests", what);
    scheduled.reporting_component = "default-scheduler".to_owned();
    facts.events = Ok(vec![scheduled]);
    assert_only(&facts, Level::Fail, "requests", what);
    all_extenders(&mut facts, "plimsoll_tls_handshake_failures_total 4\n");
    assert_only(&facts, Level::Fail, "requests", "8 TLS handshakes failed");
}
