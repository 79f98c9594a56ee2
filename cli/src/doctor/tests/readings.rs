//! What the checks of clocks, readings and their writers find.

use super::*;

#[test]
fn a_clock_that_is_off_is_found_by_what_a_kubelet_wrote_and_when() {
    let mut facts = healthy();
    facts.node_leases = Ok(vec![lease("gpu-1", "2026-11-26T13:58:00Z", "2026-11-26T13:59:55Z")]);
    assert_only(&facts, Level::Fail, "clocks", "gpu-1: its clock is -115 s off");
    facts.node_leases = Ok(vec![lease("gpu-1", "2026-11-26T14:00:05Z", "2026-11-26T13:59:55Z")]);
    assert_only(&facts, Level::Warn, "clocks", "gpu-1: its clock is +10 s off");
    // A node that is down has an old Lease, and no clock to compare.
    let well = lease("cp-1", "2026-11-26T13:59:55Z", "2026-11-26T13:59:55Z");
    let down = lease("gpu-1", "2026-11-26T12:00:00Z", "2026-11-26T12:59:55Z");
    facts.node_leases = Ok(vec![well, down.clone()]);
    assert_eq!(wrong(&facts), []);
    facts.node_leases = Ok(vec![down]);
    assert_only(&facts, Level::Unknown, "clocks", "no kubelet has renewed its Lease");
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[0]
        .metadata
        .annotations
        .insert(METRIC.to_owned(), "0.5,2026-11-26T22:00:00Z".to_owned());
    assert_only(
        &facts,
        Level::Fail,
        "clocks",
        "readings are of the future, so that they do not count: cp-1",
    );
}

#[test]
fn this_machines_clock_is_off_by_what_the_time_of_the_call_does_not_explain() {
    let mut facts = healthy();
    let after = |seconds: i64| now() + SignedDuration::from_secs(seconds);
    facts.own_time = [after(-1), after(9)];
    assert_eq!(wrong(&facts), []);
    facts.own_time = [after(7), after(9)];
    assert_only(&facts, Level::Warn, "clocks", "this machine's clock is +7 s off");
    facts.own_time = [after(-20), after(-8)];
    assert_only(&facts, Level::Warn, "clocks", "this machine's clock is -8 s off");
}

#[test]
fn readings_that_were_of_the_future_are_no_fault_of_today() {
    let mut facts = healthy();
    let page = "plimsoll_extender_requests_total{verb=\"load-aware/filter\"} 1\n\
                plimsoll_extender_refused_readings_total{cause=\"ahead\"} 3\n";
    all_extenders(&mut facts, page);
    assert_only(&facts, Level::Warn, "clocks", "those on the nodes now are not");
    // In another time zone the times on nodes are its local times.
    let mut facts = healthy();
    let annotations = &mut facts.nodes.as_mut().unwrap()[0].metadata.annotations;
    annotations.insert(METRIC.to_owned(), "0.5,2026-11-26T22:00:00Z".to_owned());
    let args = &mut workload_of(&mut facts, "annotator").spec.template.spec.containers[1].args;
    args.push("--time-zone=Asia/Shanghai".to_owned());
    assert_eq!(wrong(&facts), []);
}

#[test]
fn silent_exporters_are_found() {
    let mut facts = healthy();
    facts.annotators = one_annotator(annotator_page(1));
    facts.state.as_mut().unwrap().nodes.missing = vec![1, 0];
    assert_only(
        &facts,
        Level::Warn,
        "readings",
        "1 of 2 exporters do not answer the annotator; without a fresh reading: cp-1",
    );
    facts.annotators = one_annotator(annotator_page(2));
    assert_only(&facts, Level::Fail, "readings", "2 of 2 exporters");
}

#[test]
fn two_writers_of_readings_are_found() {
    let mut facts = healthy();
    let other = of(written("crane-annotator", METRIC));
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields = vec![other];
    assert_only(&facts, Level::Fail, "writers", "crane-annotator (1 node), unknown (1 node)");
    // It has stopped.
    let before = of(written_at("crane-annotator", METRIC, "2026-01-01T00:00:00Z"));
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields = vec![before];
    assert_eq!(wrong(&facts), []);
    // Other annotations are others' business.
    facts.nodes.as_mut().unwrap()[1].metadata.managed_fields =
        vec![of(written("kubelet", "volumes"))];
    assert_eq!(wrong(&facts), []);
}

#[test]
fn that_nothing_writes_readings_is_not_one_writer() {
    let mut facts = healthy();
    for node in facts.nodes.as_mut().unwrap() {
        node.metadata.managed_fields.clear();
    }
    assert_only(&facts, Level::Unknown, "writers", "no node has a reading");
}

#[test]
fn an_extender_that_does_not_know_the_cluster_makes_nothing_well() {
    let mut facts = healthy();
    facts.state.as_mut().unwrap().replica.complete = false;
    let found = wrong(&facts);
    let checks: Vec<_> = found.iter().map(|it| (it.0, it.1)).collect();
    assert_eq!(checks, [(Level::Unknown, "readings"), (Level::Unknown, "cards")], "{found:#?}");
    let mut facts = healthy();
    facts.state.as_mut().unwrap().nodes.name.clear();
    let found = wrong(&facts);
    assert!(
        found.iter().all(|it| it.0 == Level::Unknown && it.2.contains("knows no node")),
        "{found:#?}"
    );
    assert_eq!(found.len(), 2, "{found:#?}");
}
