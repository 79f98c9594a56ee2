//! What the checks of extender, annotator, policy and versions find.

use super::*;

#[test]
fn a_faulty_policy_is_found_with_its_line_though_no_program_tells() {
    let mut facts = healthy();
    let faulty = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec: {wrong: 1}\n";
    facts.policy = Ok(Some(policy(faulty)));
    assert_only(&facts, Level::Fail, "policy", "the policy is refused");
    let text = wrong(&facts).remove(0).2;
    assert!(text.contains("line 3"), "{text}");
}

#[test]
fn a_policy_that_the_programs_refuse_is_found_in_their_words() {
    let mut facts = healthy();
    let refused = ("policy", ConditionState::Failed, "refused, and the one before stays: line 3");
    say(&mut facts.annotators, "annotator-a", refused);
    assert_only(&facts, Level::Fail, "policy", "annotator-a: policy: refused");
    let mut facts = healthy();
    let warned = ("policy-warnings", ConditionState::Warning, "probably not meant");
    say(&mut facts.extenders, "extender-a", warned);
    say(&mut facts.extenders, "extender-b", warned);
    assert_only(&facts, Level::Warn, "policy", "extender-a, extender-b: policy-warnings: probably");
    assert_eq!(findings(&facts).into_iter().find_map(|it| it.todo).as_deref(), Some("do so"));
}

#[test]
fn the_policy_is_looked_for_where_the_extender_says_that_it_is() {
    let mut facts = healthy();
    assert_eq!(ok_text(&facts, "policy"), "read without fault from the ConfigMap plimsoll/policy");
    facts.policy = Ok(None);
    assert_only(&facts, Level::Fail, "policy", "there is no ConfigMap plimsoll/policy");
    facts.policy = Ok(Some(of(json!({"data": {"other.yaml": ""}}))));
    assert_only(&facts, Level::Unknown, "policy", "has no key of the name of --policy-file");
    let args =
        &mut workload_of(&mut facts, "scheduler-extender").spec.template.spec.containers[1].args;
    args[0] = "--policy-config-map=plimsoll/mine".to_owned();
    args.push("--policy-file=/etc/mine/other.yaml".to_owned());
    let text = include_str!("../../../../deploy/chart/policies/shipped.yaml");
    facts.policy = Ok(Some(of(json!({"data": {"other.yaml": text}}))));
    assert_eq!(ok_text(&facts, "policy"), "read without fault from the ConfigMap plimsoll/mine");
}

#[test]
fn versions_that_do_not_fit_are_found() {
    let mut facts = healthy();
    facts.pods.as_mut().unwrap()[2].spec.containers[0].image = "r/annotator:0.0.9".to_owned();
    assert_only(&facts, Level::Warn, "versions", "annotator 0.0.9");
    let mut facts = healthy();
    facts.server_version = Ok("v1.33.2-eks-1".to_owned());
    assert_only(&facts, Level::Fail, "versions", "v1.33.2-eks-1");
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[1].status.node_info.kubelet_version = "v1.33.0".to_owned();
    assert_only(&facts, Level::Fail, "versions", "gpu-1 (v1.33.0)");
    let mut facts = healthy();
    let extenders = facts.extenders.as_mut().unwrap();
    extenders.pods.get_mut("extender-a").unwrap().as_mut().unwrap().version = "9.9.9".to_owned();
    let found = wrong(&facts);
    assert_eq!(
        found.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(),
        [(Level::Warn, "versions"); 2]
    );
    assert!(found[0].2.contains("the extender 9.9.9"), "{found:#?}");
    assert!(found[1].2.contains("the programs are of several versions"), "{found:#?}");
}

#[test]
fn a_program_that_tells_no_health_has_the_version_of_its_image() {
    let mut facts = healthy();
    for pod in ["extender-a", "extender-b"] {
        let none = Err(Failure::NotFound("no /v1/health".to_owned()));
        facts.extenders.as_mut().unwrap().pods.insert(pod.to_owned(), none);
    }
    assert!(ok_text(&facts, "versions").starts_with("command "));
    let mut found = wrong(&facts);
    found.retain(|it| it.2.contains("scheduler-extender is of a build"));
    assert_eq!(found.len(), 1, "{found:#?}");
    let finds = |facts: &Facts, level: Level, text: &str| {
        let found = of_check(facts, "versions");
        assert!(found.iter().any(|it| it.level == level && it.what.contains(text)), "{found:#?}");
    };
    let mut set_image = |image: &str| {
        facts.pods.as_mut().unwrap()[0].spec.containers[0].image = image.to_owned();
        facts.clone()
    };
    finds(&set_image("r/scheduler-extender:v0.0.9"), Level::Warn, "the extender 0.0.9");
    let unknown = "neither health nor image tells the version of extender-a";
    finds(&set_image("r/scheduler-extender@sha256:ab"), Level::Unknown, unknown);
}

#[test]
fn images_by_digest_are_not_of_several_versions() {
    let mut facts = healthy();
    for pod in facts.pods.as_mut().unwrap() {
        let image = &mut pod.spec.containers[0].image;
        *image = image.replace(&format!(":{CLIENT}"), &format!("@sha256:{}", image.len()));
    }
    assert_eq!(wrong(&facts), []);
    let text = ok_text(&facts, "versions");
    assert!(
        text.ends_with("do not tell the version of gpushare-device-plugin, node-exporter-plus"),
        "{text}"
    );
    let mut second = pod("annotator", "annotator-b", "cp-2");
    second.spec.containers[0].image = "r/annotator@sha256:other".to_owned();
    facts.pods.as_mut().unwrap().push(second);
    assert_only(&facts, Level::Warn, "versions", "pods of annotator are of several images");
}

#[test]
fn an_extender_that_is_missing_or_does_not_lead_is_found() {
    let mut facts = healthy();
    let none = ("leader", ConditionState::Failed, "no replica leads, so GPU pods wait");
    say(&mut facts.extenders, "extender-a", none);
    assert_only(&facts, Level::Fail, "extender", "extender-a: leader: no replica leads");
    let mut facts = healthy();
    workload_of(&mut facts, "scheduler-extender").spec.replicas = Some(0);
    assert_only(&facts, Level::Fail, "extender", "scaled to 0 replicas");
    let mut facts = healthy();
    facts.workloads.as_mut().unwrap()[0].status.ready_replicas = 1;
    let broken = &mut facts.pods.as_mut().unwrap()[1];
    broken.status.conditions[0].status = "False".to_owned();
    broken.status.container_statuses =
        of(json!([{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]));
    assert_only(&facts, Level::Warn, "extender", "1/2 ready: extender-b (ImagePullBackOff)");
    let mut facts = healthy();
    facts.workloads = Ok(Vec::new());
    let found = wrong(&facts);
    assert_eq!((found[0].0, found[0].1), (Level::Fail, "extender"), "{found:#?}");
    // The device plugin is there, so that the extender is missing.
    let mut facts = healthy();
    facts.workloads.as_mut().unwrap().remove(0);
    let found = of_check(&facts, "extender");
    assert_eq!(found[0].level, Level::Fail, "{found:#?}");
}
