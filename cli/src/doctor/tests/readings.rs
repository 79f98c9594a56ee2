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
fn silent_exporters_and_nodes_without_readings_are_found_in_the_programs_words() {
    let mut facts = healthy();
    let silent = ("readings", ConditionState::Warning, "1 of 2 exporters do not answer");
    say(&mut facts.annotators, "annotator-a", silent);
    assert_only(&facts, Level::Warn, "readings", "annotator-a: readings: 1 of 2 exporters");
    let mut facts = healthy();
    let ahead = ("readings", ConditionState::Failed, "3 readings were of the future");
    say(&mut facts.extenders, "extender-a", ahead);
    assert_only(&facts, Level::Fail, "readings", "of the future");
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
