//! What the checks of GPUs and their nodes find.

use super::*;

#[test]
fn what_is_well_tells_that_some_pods_alone_were_asked() {
    let mut facts = healthy();
    facts.plugins.as_mut().unwrap().not_asked = 190;
    assert_eq!(wrong(&facts), []);
    assert_eq!(ok_text(&facts, "unit"), "1024 MiB; 1 of 191 pods of gpushare-device-plugin asked");
}

#[test]
fn a_runtime_that_honours_the_variable_is_found() {
    let setting = RUNTIME_SETTING;
    let mut facts = healthy();
    facts.toolkits = Ok(vec![toolkit(&json!([]))]);
    assert_only(&facts, Level::Fail, "runtime", "is not set in gpu-operator/toolkit");
    facts.toolkits = Ok(vec![toolkit(&json!([{"name": setting, "value": "true"}]))]);
    assert_only(&facts, Level::Fail, "runtime", "is true in gpu-operator/toolkit");
    facts.toolkits = Ok(vec![toolkit(&json!([{"name": setting, "value": "false"}]))]);
    assert_eq!(wrong(&facts), []);
    facts.events = Ok(vec![event("Pod", "thief", "GPUProcessElsewhere", "")]);
    assert_only(&facts, Level::Fail, "runtime", "shop/thief (GPUProcessElsewhere)");
}

#[test]
fn a_runtime_at_which_nothing_looks_is_not_known() {
    let mut facts = healthy();
    facts.toolkits = Ok(Vec::new());
    assert_only(
        &facts,
        Level::Unknown,
        "runtime",
        "without the value devicePlugin.processes nothing looks",
    );
    workload_of(&mut facts, "gpushare-device-plugin").spec.template.spec.host_pid = true;
    assert!(ok_text(&facts, "runtime").starts_with("no container was seen"));
    facts.events = Err(Failure::Other("no".to_owned()));
    let found = of_check(&facts, "runtime");
    assert_eq!(found.iter().map(|it| it.level).collect::<Vec<_>>(), [Level::Unknown], "{found:#?}");
}

#[test]
fn what_the_device_plugin_says_is_found_by_the_check_of_its_subject() {
    for (id, check) in [
        ("cdi", "cdi"),
        ("unit", "unit"),
        ("other-plugins", "other-plugins"),
        ("cards", "cards"),
        ("cards-found", "cards"),
        ("registered", "gpu-nodes"),
        ("isolation", "gpu-nodes"),
    ] {
        let mut facts = healthy();
        say(&mut facts.plugins, "plugin-a", (id, ConditionState::Failed, "is broken"));
        assert_only(&facts, Level::Fail, check, &format!("plugin-a: {id}: is broken"));
    }
}

#[test]
fn a_runtime_without_cdi_is_found() {
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[1].status.node_info.container_runtime_version =
        "containerd://1.7.27".to_owned();
    assert_only(&facts, Level::Warn, "cdi", "gpu-1 (containerd://1.7.27)");
}

#[test]
fn another_device_plugin_on_the_gpus_is_found() {
    let mut facts = healthy();
    let allocatable = &mut facts.nodes.as_mut().unwrap()[1].status.allocatable;
    allocatable.insert("nvidia.com/gpu".to_owned(), json!("4"));
    assert_only(&facts, Level::Fail, "other-plugins", "gpu-1 (nvidia.com/gpu: 4)");
    let mut facts = healthy();
    facts.events = Ok(vec![event("Node", "gpu-1", "GPUCardOfferedTwice", "")]);
    assert_only(&facts, Level::Fail, "other-plugins", "gpu-1 (GPUCardOfferedTwice)");
    // It was so long ago that the audit would have told again.
    facts.events.as_mut().unwrap()[0].last_timestamp = Some(now() - SignedDuration::from_mins(57));
    assert_eq!(wrong(&facts), []);
    // A part of a GPU is one, too; of other names that is not known.
    let mut facts = healthy();
    let allocatable = &mut facts.nodes.as_mut().unwrap()[1].status.allocatable;
    allocatable.insert("nvidia.com/mig-1g.10gb".to_owned(), json!("7"));
    allocatable.insert("aliyun.com/gpu-mem".to_owned(), json!("24"));
    assert_only(&facts, Level::Fail, "other-plugins", "gpu-1 (nvidia.com/mig-1g.10gb: 7)");
    let mut facts = healthy();
    let allocatable = &mut facts.nodes.as_mut().unwrap()[1].status.allocatable;
    allocatable.insert("nvidia.com/hostdev".to_owned(), json!("2"));
    assert_only(
        &facts,
        Level::Warn,
        "other-plugins",
        "may offer the same GPUs: gpu-1 (nvidia.com/hostdev: 2)",
    );
    // Where Plimsoll has no GPU, others may.
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[0]
        .status
        .allocatable
        .insert("nvidia.com/gpu".to_owned(), json!("4"));
    assert_eq!(wrong(&facts), []);
}

#[test]
fn gpu_nodes_without_the_device_plugin_are_found() {
    let mut facts = healthy();
    facts.nodes.as_mut().unwrap()[0]
        .metadata
        .labels
        .insert("nvidia.com/gpu.present".to_owned(), "true".to_owned());
    assert_only(
        &facts,
        Level::Warn,
        "gpu-nodes",
        "1 node with a GPU by its labels, and without Plimsoll's device plugin: cp-1",
    );
    facts.nodes.as_mut().unwrap()[0]
        .metadata
        .labels
        .insert("gpushare".to_owned(), "false".to_owned());
    assert_eq!(wrong(&facts), []);
    facts.pods.as_mut().unwrap().pop();
    assert_only(
        &facts,
        Level::Fail,
        "gpu-nodes",
        "1 GPU node without a device plugin's pod: gpu-1",
    );
    let node = facts.nodes.as_mut().unwrap().iter_mut().find(|it| it.metadata.name == "gpu-1");
    let labels = &mut node.unwrap().metadata.labels;
    let key = "nvidia.com/gpu-driver-upgrade-state".to_owned();
    labels.insert(key, "pod-restart-required".to_owned());
    assert_only(
        &facts,
        Level::Warn,
        "gpu-nodes",
        "1 GPU node whose NVIDIA driver is being replaced: gpu-1",
    );
}
