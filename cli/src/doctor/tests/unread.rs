//! What may not be read is never taken for well.

use super::*;

#[test]
fn what_may_not_be_read_is_not_known_and_names_the_right() {
    let refused = r#"Error from server (Forbidden): leases is forbidden: User "jane" cannot list resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease""#;
    let mut facts = healthy();
    facts.node_leases = Err(Failure::of_message(refused));
    assert_only(
        &facts,
        Level::Unknown,
        "clocks",
        "not checked: the Leases of kube-node-lease: Error from server",
    );
    let todo = findings(&facts).into_iter().find_map(|finding| finding.todo).unwrap();
    assert!(
        todo.contains("--verb=list --resource=leases.coordination.k8s.io && kubectl"),
        "{todo}"
    );
    let mut table = Vec::new();
    write_table(&findings(&facts), &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert!(table.contains("\nunknown  clocks"), "{table}");
    assert!(table.ends_with("\n0 FAIL, 0 warn, 1 unknown\n"), "{table}");
}

#[test]
fn the_exit_status_tells_a_fault_from_what_is_not_known() {
    let mut facts = healthy();
    let code = |facts: &Facts| format!("{:?}", exit_code(&findings(facts)));
    let of = |code: u8| format!("{:?}", std::process::ExitCode::from(code));
    assert_eq!(code(&facts), of(0));
    facts.nodes.as_mut().unwrap()[1].status.node_info.container_runtime_version =
        "containerd://1.7.27".to_owned();
    assert_eq!(code(&facts), of(0));
    facts.policies = Err(Failure::Other("no".to_owned()));
    assert_eq!(code(&facts), of(3));
    facts.policy = Ok(None);
    assert_eq!(code(&facts), of(1));
}

/// A fact, and a function that makes it unreadable.
type Taken = (&'static str, fn(&mut Facts));

/// Every fact.
fn unreadable() -> Vec<Taken> {
    fn no<T>() -> Read<T> {
        Err(Failure::Other("no".to_owned()))
    }
    fn silent() -> Read<Healths> {
        Ok(Healths { pods: BTreeMap::from([("x".to_owned(), no())]), not_asked: 0 })
    }
    vec![
        ("now", |facts| facts.now = no()),
        ("server_version", |facts| facts.server_version = no()),
        ("workloads", |facts| {
            // What is found by them is not known either.
            facts.workloads = no();
            facts.policy = no();
            facts.rights = no();
        }),
        ("pods", |facts| {
            facts.pods = no();
            facts.extenders = no();
            facts.annotators = no();
            facts.plugins = no();
            facts.rights = no();
        }),
        ("nodes", |facts| facts.nodes = no()),
        ("schedulers", |facts| facts.schedulers = no()),
        ("kubeadm_config", |facts| facts.kubeadm_config = no()),
        ("autoscaler_status", |facts| facts.autoscaler_status = no()),
        ("policy", |facts| facts.policy = no()),
        ("extenders", |facts| facts.extenders = silent()),
        ("annotators", |facts| facts.annotators = silent()),
        ("plugins", |facts| facts.plugins = silent()),
        ("certificates", |facts| {
            facts.certificates.as_mut().unwrap()[0].end = no();
        }),
        ("bindings", |facts| facts.bindings = no()),
        ("policies", |facts| facts.policies = no()),
        ("rights", |facts| facts.rights = no()),
        ("events", |facts| facts.events = no()),
        ("node_leases", |facts| facts.node_leases = no()),
        ("toolkits", |facts| facts.toolkits = no()),
    ]
}

#[test]
fn without_a_fact_no_check_that_looks_at_it_is_ok_and_none_fails() {
    let mut facts_of_all = healthy();
    for (name, take) in unreadable() {
        take(&mut facts_of_all);
        let mut facts = healthy();
        take(&mut facts);
        let found = wrong(&facts);
        assert!(!found.is_empty(), "{name} is read by no check");
        assert!(
            found
                .iter()
                .all(|(level, _, what)| *level == Level::Unknown && what.contains("not checked")),
            "{name}: {found:#?}"
        );
        for check in CHECKS {
            assert!(!of_check(&facts, check.name).is_empty(), "{name}: {} is silent", check.name);
        }
    }
    let found = wrong(&facts_of_all);
    assert!(found.iter().all(|finding| finding.0 == Level::Unknown), "{found:#?}");
    for check in CHECKS {
        let of_check = of_check(&facts_of_all, check.name);
        assert!(of_check.iter().all(|finding| finding.level == Level::Unknown), "{of_check:#?}");
    }
}

#[test]
fn checks_whose_facts_are_unread_are_those_that_would_vanish() {
    let unknown = |name: &str| {
        let mut facts = healthy();
        let take = unreadable().into_iter().find(|it| it.0 == name).unwrap().1;
        take(&mut facts);
        let mut checks: Vec<&str> = wrong(&facts).into_iter().map(|finding| finding.1).collect();
        checks.dedup();
        checks
    };
    let checks = |names: &'static str| names.split(' ').collect::<Vec<_>>();
    let by_workloads = "extender annotator kube-scheduler requests autoscalers certificate readings writers policy \
                        rights admission gpu-nodes cards unit cdi runtime other-plugins";
    assert_eq!(unknown("workloads"), checks(by_workloads));
    let by_pods = "extender annotator requests certificate readings policy rights gpu-nodes cards unit cdi \
                   other-plugins versions";
    assert_eq!(unknown("pods"), checks(by_pods));
    let by_nodes =
        "kube-scheduler autoscalers writers gpu-nodes cdi runtime other-plugins versions";
    assert_eq!(unknown("nodes"), checks(by_nodes));
    let by_extenders =
        "extender requests certificate readings policy cards cdi other-plugins versions";
    assert_eq!(unknown("extenders"), checks(by_extenders));
    assert_eq!(unknown("plugins"), checks("gpu-nodes cards unit cdi other-plugins"));
}

/// Of a healthy cluster, no check lacks a fact that it did not name.
#[test]
fn each_check_names_the_facts_that_it_looks_at() {
    for check in CHECKS {
        let facts = only(&needed(&[&check]));
        for finding in report(&facts, &[&check]).findings {
            assert_eq!(finding.level, Level::Ok, "{finding:#?}");
        }
    }
}

/// The healthy cluster, of which these facts alone were asked for.
fn only(needed: &BTreeSet<Fact>) -> Facts {
    fn keep<T>(needed: &BTreeSet<Fact>, fact: Fact, value: &mut Read<T>) {
        if !needed.contains(&fact) {
            *value = Err(Failure::Other(format!("{fact:?} is not asked for")));
        }
    }
    let mut facts = healthy();
    keep(needed, Fact::Time, &mut facts.now);
    keep(needed, Fact::ServerVersion, &mut facts.server_version);
    keep(needed, Fact::Nodes, &mut facts.nodes);
    keep(needed, Fact::Schedulers, &mut facts.schedulers);
    keep(needed, Fact::KubeadmConfig, &mut facts.kubeadm_config);
    keep(needed, Fact::SecondConfig, &mut facts.second_config);
    keep(needed, Fact::AutoscalerStatus, &mut facts.autoscaler_status);
    keep(needed, Fact::Policy, &mut facts.policy);
    keep(needed, Fact::ExtenderHealth, &mut facts.extenders);
    keep(needed, Fact::AnnotatorHealth, &mut facts.annotators);
    keep(needed, Fact::PluginHealth, &mut facts.plugins);
    keep(needed, Fact::Admission, &mut facts.policies);
    keep(needed, Fact::Admission, &mut facts.bindings);
    keep(needed, Fact::Rights, &mut facts.rights);
    keep(needed, Fact::Events, &mut facts.events);
    keep(needed, Fact::NodeLeases, &mut facts.node_leases);
    keep(needed, Fact::Toolkits, &mut facts.toolkits);
    if !needed.contains(&Fact::Certificates) {
        facts.certificates = None;
    }
    facts
}
