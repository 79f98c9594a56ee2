//! What the checks of certificates, rights and admission policies find.

use super::*;

#[test]
fn a_certificate_near_its_end_is_found() {
    let mut facts = healthy();
    let soon = now() + SignedDuration::from_hours(24 * 21 + 1);
    facts.certificates.as_mut().unwrap()[1] = secret("kube-scheduler-tls", "", Some(soon));
    assert_only(&facts, Level::Warn, "certificate", "kube-scheduler-tls ends in 21 days");
    facts.certificates.as_mut().unwrap()[1] = secret("kube-scheduler-tls", "", Some(now()));
    assert_only(&facts, Level::Fail, "certificate", "kube-scheduler-tls has ended");
    // The one in use, which the extender itself tells.
    let mut facts = healthy();
    let ended = ("certificate-end", ConditionState::Failed, "the client CA in use has ended");
    say(&mut facts.extenders, "extender-a", ended);
    assert_only(&facts, Level::Fail, "certificate", "extender-a: certificate-end: the client CA");
}

#[test]
fn a_missing_right_is_found() {
    let mut facts = healthy();
    facts.rights.as_mut().unwrap()[1].allowed = false;
    assert_only(&facts, Level::Fail, "rights", "scheduler-extender may not create pods/binding");
    facts.rights = Ok(Vec::new());
    assert_only(&facts, Level::Unknown, "rights", "no program of Plimsoll has a pod");
}

#[test]
fn admission_policies_that_are_not_in_force_are_found() {
    let mut facts = healthy();
    facts.bindings.as_mut().unwrap()[1] = of(binding("plimsoll-claims", "Audit"));
    assert_only(&facts, Level::Fail, "admission", "binding plimsoll-claims is Audit, not Deny");
    let mut facts = healthy();
    facts.bindings.as_mut().unwrap().remove(0);
    assert_only(&facts, Level::Fail, "admission", "binding plimsoll-bindings is missing");
    let mut facts = healthy();
    facts.policies.as_mut().unwrap().remove(3);
    assert_only(&facts, Level::Warn, "admission", "policy plimsoll-node-name is missing");
    // The move from gpushare has it audit.
    let mut facts = healthy();
    facts.bindings.as_mut().unwrap()[3] = of(binding("plimsoll-node-name", "Audit"));
    assert_only(&facts, Level::Warn, "admission", "binding plimsoll-node-name is Audit, not Deny");
}

#[test]
fn a_binding_that_leaves_something_out_is_found() {
    let narrowed = |matched: Value| {
        let mut binding = binding("plimsoll-claims", "Deny");
        binding["spec"]["matchResources"] = matched;
        let mut facts = healthy();
        facts.bindings.as_mut().unwrap()[1] = of(binding);
        facts
    };
    let facts = narrowed(json!({"namespaceSelector": {"matchLabels": {"nobody": "has-this"}}}));
    assert_only(&facts, Level::Warn, "admission", "narrowed by its namespaceSelector");
    let facts =
        narrowed(json!({"resourceRules": [{"resources": ["pods"]}], "matchPolicy": "Exact"}));
    assert_only(&facts, Level::Warn, "admission", "narrowed by its matchPolicy and resourceRules");
    // As the API server fills it in.
    let empty = json!({"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent"});
    let mut facts = narrowed(empty);
    assert_eq!(wrong(&facts), []);
    // One of two that covers everything is enough.
    let mut second = binding("plimsoll-claims", "Deny");
    second["spec"]["matchResources"] = json!({"objectSelector": {"matchLabels": {"a": "b"}}});
    facts.bindings.as_mut().unwrap().push(of(second));
    assert_eq!(wrong(&facts), []);
}

#[test]
fn a_policy_that_looks_at_less_than_the_shipped_one_is_found() {
    let changed = |change: fn(&mut Value)| {
        let mut policy = shipped("plimsoll-claims");
        change(&mut policy["spec"]);
        let mut facts = healthy();
        let policies = facts.policies.as_mut().unwrap();
        policies.retain(|it| it.metadata.name != "plimsoll-claims");
        policies.push(of(policy));
        facts
    };
    let facts = changed(|spec| spec["failurePolicy"] = json!("Ignore"));
    assert_only(&facts, Level::Warn, "admission", "another failurePolicy than Fail");
    let facts = changed(|spec| {
        spec["matchConditions"].as_array_mut().unwrap().push(json!({"name": "not-mine"}));
    });
    assert_only(&facts, Level::Warn, "admission", "less than the shipped one (not-mine)");
    let facts = changed(|spec| {
        let conditions = spec["matchConditions"].as_array_mut().unwrap();
        conditions.push(json!({"name": "by-others-than-gpushare"}));
    });
    assert_only(&facts, Level::Warn, "admission", "lets gpushare's accounts write claims");
    let facts = changed(|spec| {
        spec["matchConstraints"]["resourceRules"][0]["resources"] = json!(["pods"]);
    });
    assert_only(
        &facts,
        Level::Warn,
        "admission",
        "(no pods/status, no pods/ephemeralcontainers, no pods/resize)",
    );
}

#[test]
fn policies_are_asked_for_by_what_is_installed() {
    let mut facts = healthy();
    let args = &mut workload_of(&mut facts, "gpushare-device-plugin").spec.template.spec;
    args.containers[1].args.push("--unhealthy-gpus-namespace=kube-system".to_owned());
    assert_only(&facts, Level::Fail, "admission", "policy plimsoll-unhealthy-gpus is missing");
    let mut facts = healthy();
    with_second_scheduler(&mut facts);
    facts.policies.as_mut().unwrap().pop();
    let found = of_check(&facts, "admission");
    assert!(found[0].what.starts_with("policy plimsoll-scheduler-name is missing"), "{found:#?}");
    // Where that is not known, those that are there are looked at.
    let mut facts = healthy();
    facts.workloads = Err(Failure::Other("no".to_owned()));
    facts.bindings.as_mut().unwrap()[1] = of(binding("plimsoll-claims", "Audit"));
    let levels: Vec<Level> = of_check(&facts, "admission").iter().map(|it| it.level).collect();
    assert_eq!(levels, [Level::Unknown, Level::Fail]);
}

#[test]
fn tls_is_known_by_the_flag_and_not_by_what_can_be_read() {
    // As in a support bundle: no Secret is asked for.
    let mut facts = healthy();
    facts.certificates = None;
    assert_eq!(wrong(&facts), []);
    facts.extenders = healths(&[("extender-a", &EXTENDER_WELL[2..])]);
    assert_only(&facts, Level::Unknown, "certificate", "the extender speaks TLS");
    // The Secret that the Deployment names is not there.
    facts.certificates = Some(vec![secret("mine", "scheduler-extender", None)]);
    let found = of_check(&facts, "certificate");
    assert!(found[0].what.starts_with("there is no certificate of Secret mine"), "{found:#?}");
    assert_eq!(found[0].level, Level::Fail);
    let args =
        &mut workload_of(&mut facts, "scheduler-extender").spec.template.spec.containers[1].args;
    args.truncate(2);
    facts.certificates = None;
    assert!(ok_text(&facts, "certificate").ends_with("without --tls-cert-file, over plain HTTP"));
}

#[test]
fn the_secrets_are_those_that_bring_a_certificate() {
    let mut facts = healthy();
    assert_eq!(workload_of(&mut facts, "annotator").certificates(), []);
    let extender = workload_of(&mut facts, "scheduler-extender");
    assert_eq!(extender.certificates(), [("scheduler-extender-tls", false)]);
    let volume = json!({"name": "x", "secret": {"secretName": "y", "optional": true}});
    extender.spec.template.spec.volumes = vec![of(volume)];
    assert_eq!(extender.certificates(), [("y", true)]);
}

fn has(list: &Value, word: &str) -> bool {
    list.as_array().unwrap().iter().any(|it| it == word)
}

#[test]
fn the_rights_that_are_asked_about_are_those_of_the_manifests() {
    let documents = documents(include_str!("../../../../deploy/manifests/external/plimsoll.yaml"));
    for account in ["scheduler-extender", "annotator", "gpushare-device-plugin"] {
        let of_account = documents
            .iter()
            .filter(|document| document["metadata"]["labels"]["app.kubernetes.io/name"] == account);
        let rules: Vec<&Value> =
            of_account.filter_map(|document| document["rules"].as_array()).flatten().collect();
        assert!(!rules.is_empty(), "{account}");
        for (_, group, resource, _, verbs, _) in
            collect::RIGHTS.iter().filter(|right| right.0 == account)
        {
            let granted = rules.iter().any(|rule| {
                has(&rule["apiGroups"], group)
                    && has(&rule["resources"], resource)
                    && verbs.iter().all(|verb| has(&rule["verbs"], verb))
            });
            assert!(granted, "{account}: {verbs:?} {resource}");
        }
        // And none is left out.
        for rule in rules {
            for resource in rule["resources"].as_array().unwrap() {
                let mut own = collect::RIGHTS.iter().filter(|right| right.0 == account);
                assert!(own.any(|right| resource == right.2), "{account}: {resource}");
            }
        }
    }
}

#[test]
fn the_admission_policies_that_are_looked_for_are_those_of_the_manifests() {
    assert_eq!(MANIFEST_POLICIES.len(), access_checks::guards().len());
    for guard in access_checks::guards() {
        let spec = &shipped(guard.name)["spec"];
        assert_eq!(spec["failurePolicy"], "Fail", "{}", guard.name);
        let conditions = spec["matchConditions"].as_array().unwrap().iter();
        let conditions: Vec<&str> = conditions.map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(conditions, guard.conditions, "{}", guard.name);
        let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap().iter();
        let resources = rules.flat_map(|rule| rule["resources"].as_array().unwrap());
        let resources: Vec<&str> = resources.map(|it| it.as_str().unwrap()).collect();
        assert_eq!(resources, guard.resources, "{}", guard.name);
    }
}
