//! `plimsoll scheduler` and kubeadm's ConfigMap kube-system/kubeadm-config, out of which `kubeadm upgrade` writes
//! kube-scheduler's manifest.

use std::cell::RefCell;
use std::fs;

use serde_json::{Value, json};

use super::{KUBEADM, Node};
use crate::command::{Run, json};
use crate::world::World;

/// What kubeadm v1.36.3 stores in the ConfigMap.
const CLUSTER_CONFIGURATION: &str = include_str!("../../fixtures/kubeadm-config-v1.36.yaml");
/// The manifest that the same kubeadm writes once the ConfigMap has our settings.
const UPGRADED: &str = include_str!("../../fixtures/kubeadm-v1.36-upgraded.yaml");
/// Our settings as kubeadm writes them, in place of `scheduler: {}`.
const SETTINGS: &str = "scheduler:
  extraArgs:
  - name: config
    value: /etc/kubernetes/plimsoll/kube-scheduler-config.yaml
  extraVolumes:
  - hostPath: /etc/kubernetes/plimsoll
    mountPath: /etc/kubernetes/plimsoll
    name: plimsoll
    pathType: Directory
    readOnly: true
";
const CURRENT: &str = "etc/kubernetes/plimsoll/kube-scheduler-config.yaml";
const FOLDER: &str = "/etc/kubernetes/plimsoll";
const ENABLED_NODES: &str = "plimsoll.dev/kube-scheduler-nodes";
const PLAIN: [&str; 3] = ["--plain-http", "--extender-host", "10.96.3.4"];

/// The API server, as far as it is asked: a ConfigMap, and the nodes of the control plane.
struct Cluster {
    world: World,
    /// The last patch.
    patch: RefCell<Value>,
}

impl Cluster {
    /// A cluster with these control-plane nodes and this ClusterConfiguration.
    fn new(control_plane: &[&str], text: &str) -> Self {
        // A file `meanwhile` is what someone else makes of the ConfigMap just before it is patched.
        let patched = "if [ -f meanwhile ]; then mv meanwhile configmap; echo '(Conflict)' >&2; exit 1; fi; cat >patch";
        let world = World::new()
            .acts("auth whoami", "cat user")
            .acts("get nodes", "cat nodes")
            .acts("get configmap kubeadm-config", "cat configmap")
            .acts("patch configmap kubeadm-config", patched);
        let cluster = Self { world, patch: RefCell::default() };
        cluster.has_control_plane(control_plane);
        cluster.keeps("7", &[], text);
        cluster
    }

    fn has_control_plane(&self, names: &[&str]) {
        let nodes: Vec<Value> =
            names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
        self.write("nodes", &json!({ "items": nodes }).to_string());
    }

    /// Keeps this ConfigMap.
    fn keeps(&self, version: &str, enabled: &[&str], text: &str) {
        self.write("configmap", &config_map(version, &enabled.join(","), text));
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.world.path().join(file), text).unwrap();
    }

    fn read(&self) -> Value {
        json(&fs::read_to_string(self.world.path().join("configmap")).unwrap())
    }

    /// The ClusterConfiguration.
    fn text(&self) -> String {
        self.read()["data"]["ClusterConfiguration"].as_str().unwrap().to_owned()
    }

    fn version(&self) -> String {
        self.read()["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    /// The nodes on which `enable` has run.
    fn enabled(&self) -> String {
        self.read()["metadata"]["annotations"][ENABLED_NODES].as_str().unwrap().to_owned()
    }

    fn enable(&self, node: &Node, name: &str) -> Run {
        self.run(node, name, "enable", &PLAIN)
    }

    fn disable(&self, node: &Node, name: &str) -> Run {
        self.run(node, name, "disable", &[])
    }

    fn status(&self, node: &Node, name: &str) -> Run {
        self.run(node, name, "status", &[])
    }

    /// Runs a command on the node of this name, and makes of the ConfigMap what it is patched to.
    fn run(&self, node: &Node, name: &str, command: &str, flags: &[&str]) -> Run {
        self.write("user", &format!("system:node:{name}"));
        let run = node.run(&self.world, command, flags);
        let file = self.world.path().join("patch");
        if let Ok(patch) = fs::read_to_string(&file) {
            let patch = json(&patch);
            let enabled = &patch["metadata"]["annotations"][ENABLED_NODES];
            let next = self.version().parse::<u32>().unwrap() + 1;
            let text = patch["data"]["ClusterConfiguration"].as_str().unwrap();
            let enabled = enabled.as_str().unwrap_or_default();
            self.write("configmap", &config_map(&next.to_string(), enabled, text));
            fs::remove_file(file).unwrap();
            self.patch.replace(patch);
        }
        run
    }
}

fn config_map(version: &str, enabled: &str, text: &str) -> String {
    let annotations = json!({ ENABLED_NODES: enabled });
    let metadata = json!({"resourceVersion": version, "annotations": annotations});
    json!({"metadata": metadata, "data": {"ClusterConfiguration": text}}).to_string()
}

/// A ClusterConfiguration with this in place of `scheduler: {}`.
fn configured(scheduler: &str) -> String {
    CLUSTER_CONFIGURATION.replace("scheduler: {}\n", scheduler)
}

#[test]
fn enabling_the_only_control_plane_node_adds_the_settings_that_kubeadm_writes_back() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    assert!(cluster.enable(&node, "node-a").success().contains("kubeadm upgrade keeps it"));
    assert_eq!(cluster.text(), configured(SETTINGS));
    assert_eq!(cluster.enabled(), "node-a");
    let version = cluster.version();
    assert!(cluster.enable(&node, "node-a").success().contains("Already enabled"));
    assert_eq!(cluster.version(), version, "nothing is written a second time");
    assert!(cluster.status(&node, "node-a").success().contains("kubeadm upgrade keeps it"));
}

#[test]
fn disabling_restores_every_byte_of_the_cluster_configuration() {
    let others = "scheduler:\n  extraArgs:\n  - name: v\n    value: \"4\"\n  extraEnvs:\n  - name: A\n    value: x\n  \
                  extraVolumes:\n  - hostPath: /x\n    mountPath: /x\n    name: x\n";
    let arguments = "scheduler:\n  extraArgs:\n  - name: v\n    value: \"4\"\nzeta: {}\n";
    let volumes = "scheduler:\n  extraVolumes:\n  - hostPath: /x\n    mountPath: /x\n    name: x\n";
    let elsewhere = "scheduler: {}\nzeta:\n  extraArgs:\n  - name: config\n    value: /x\n";
    let flow = "scheduler:\n  extraArgs:\n  - {name: v, value: \"4\"}\n";
    for scheduler in ["scheduler: {}\n", "", others, arguments, volumes, elsewhere, flow] {
        let before = configured(scheduler);
        let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], &before));
        cluster.enable(&node, "node-a").success();
        assert_eq!(ours(&cluster.text()), (1, 1), "{}", cluster.text());
        let said = cluster.disable(&node, "node-a").success();
        assert!(said.contains("Took the configuration out of the ConfigMap"), "{said}");
        assert_eq!(cluster.text(), before);
        assert_eq!((cluster.enabled().as_str(), node.files().len()), ("", 1));
    }
}

/// How many arguments and volumes of a ClusterConfiguration are ours.
fn ours(text: &str) -> (usize, usize) {
    let configuration: Value = serde_saphyr::from_str(text).unwrap();
    let settings: Value = serde_saphyr::from_str(SETTINGS).unwrap();
    let count = |section: &str| {
        let items = configuration["scheduler"][section].as_array().unwrap().iter();
        items.filter(|item| **item == settings["scheduler"][section][0]).count()
    };
    (count("extraArgs"), count("extraVolumes"))
}

#[test]
fn the_patch_holds_the_version_that_was_read_the_nodes_and_the_text() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.enable(&node, "node-a").success();
    let patch = cluster.patch.take();
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["metadata"]["annotations"], json!({ENABLED_NODES: "node-a"}));
    assert_eq!(patch["data"], json!({"ClusterConfiguration": configured(SETTINGS)}));
    cluster.disable(&node, "node-a").success();
    let patch = cluster.patch.take();
    assert_eq!(patch["metadata"]["annotations"], json!({ENABLED_NODES: null}));
}

#[test]
fn what_someone_else_changes_meanwhile_is_kept() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    let meanwhile = CLUSTER_CONFIGURATION.replace("v1.36.3", "v1.36.4");
    cluster.write("meanwhile", &config_map("8", "", &meanwhile));
    cluster.enable(&node, "node-a").success();
    assert_eq!(cluster.text(), configured(SETTINGS).replace("v1.36.3", "v1.36.4"));
}

#[test]
fn settings_that_cannot_be_merged_are_left_and_what_to_add_is_printed() {
    for (scheduler, why) in [
        (
            "scheduler:\n  extraArgs:\n  - name: config\n    value: /mine\n",
            "has a configuration already",
        ),
        (
            "scheduler:\n  extraArgs:\n  - value: /mine\n    name: \"config\"\n",
            "has a configuration",
        ),
        (
            "scheduler:\n  extraVolumes:\n  - hostPath: /x\n    mountPath: /x\n    name: plimsoll\n",
            "the volume plimsoll already",
        ),
        (
            "scheduler:\n  extraArgs:\n    - name: v\n      value: \"4\"\n",
            "not written as kubeadm writes it",
        ),
        ("scheduler: {extraEnvs: [{name: A}]}\n", "not written as kubeadm writes it"),
        ("scheduler: 7\n", "not written as kubeadm writes it"),
    ] {
        let before = configured(scheduler);
        let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], &before));
        let said = cluster.enable(&node, "node-a").success();
        assert!(said.contains("Enabled, with the extender"), "{scheduler}: {said}");
        assert!(said.contains(why) && said.ends_with(SETTINGS), "{scheduler}: {said}");
        assert_eq!((cluster.text(), cluster.version().as_str()), (before, "7"));
        cluster.disable(&node, "node-a").success();
        assert_eq!(node.text(), KUBEADM);
    }
}

#[test]
fn an_older_version_of_the_cluster_configuration_is_left_as_it_is() {
    let older = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nscheduler:\n  extraArgs:\n    v: \"4\"\n";
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], older));
    let said = cluster.enable(&node, "node-a").success();
    assert!(said.contains("v1beta3") && said.contains("run enable again"), "{said}");
    assert!(!said.contains("extraVolumes"), "a form that this version does not have: {said}");
    assert_eq!(cluster.text(), older);
}

#[test]
fn the_last_control_plane_node_adds_the_settings_and_each_node_says_which_are_left() {
    let names = ["node-a", "node-b", "node-c"];
    let nodes = names.map(|_| Node::new(KUBEADM));
    let cluster = Cluster::new(&names, CLUSTER_CONFIGURATION);
    let first = cluster.enable(&nodes[0], names[0]).success();
    assert!(first.contains("until enable has run on these control-plane nodes too: node-b node-c"));
    cluster.enable(&nodes[1], names[1]).success();
    assert_eq!(cluster.text(), CLUSTER_CONFIGURATION);
    let status = cluster.status(&nodes[0], names[0]).success();
    assert!(status.contains("control-plane nodes too: node-c."), "{status}");
    cluster.enable(&nodes[2], names[2]).success();
    assert_eq!(cluster.text(), configured(SETTINGS));
    assert_eq!(cluster.enabled(), "node-a,node-b,node-c");
}

#[test]
fn disabling_one_of_several_nodes_takes_the_settings_out_and_names_the_others() {
    let names = ["node-a", "node-b"];
    let nodes = names.map(|_| Node::new(KUBEADM));
    let cluster = Cluster::new(&names, CLUSTER_CONFIGURATION);
    for (node, name) in nodes.iter().zip(names) {
        cluster.enable(node, name).success();
    }
    let said = cluster.disable(&nodes[1], names[1]).success();
    assert!(said.contains("are still enabled") && said.contains(": node-a. Run disable"), "{said}");
    assert_eq!(cluster.text(), CLUSTER_CONFIGURATION);
    let status = cluster.status(&nodes[0], names[0]).success();
    assert!(status.contains("takes Plimsoll out") && status.contains("too: node-b."), "{status}");
    cluster.enable(&nodes[1], names[1]).success();
    assert_eq!(cluster.text(), configured(SETTINGS));
}

#[test]
fn a_node_that_has_left_the_cluster_is_not_waited_for() {
    let node = Node::new(KUBEADM);
    let cluster = Cluster::new(&["node-a"], CLUSTER_CONFIGURATION);
    cluster.keeps("7", &["gone", "node-b"], CLUSTER_CONFIGURATION);
    cluster.enable(&node, "node-a").success();
    assert_eq!(cluster.enabled(), "node-a");
    assert_eq!(cluster.text(), configured(SETTINGS));
}

#[test]
fn a_new_control_plane_node_that_lacks_the_folder_is_named() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.enable(&node, "node-a").success();
    cluster.has_control_plane(&["node-a", "node-b"]);
    let status = cluster.status(&node, "node-a").success();
    assert!(status.contains("has not run on these control-plane nodes: node-b."), "{status}");
    // kubeadm join writes the same manifest as an upgrade.
    let joined = Node::new(UPGRADED);
    let status = cluster.status(&joined, "node-b");
    assert_eq!(status.code, Some(1));
    assert!(status.stdout.contains("kube-scheduler does not start"), "{}", status.stdout);
    cluster.enable(&joined, "node-b").success();
    cluster.status(&joined, "node-b").success();
    let plain = Node::new(KUBEADM);
    let status = cluster.status(&plain, "node-c");
    assert_eq!(status.code, Some(1));
    assert!(status.stdout.contains("does not start on this node"), "{}", status.stdout);
}

#[test]
fn the_manifest_of_an_upgrade_is_in_force_and_is_left_as_it_is() {
    let (node, cluster) = upgraded();
    let status = cluster.status(&node, "node-a").success();
    assert!(status.contains(&format!("Enabled: /{CURRENT}, in a manifest that kubeadm wrote")));
    assert!(cluster.enable(&node, "node-a").success().contains("Already enabled"));
    assert_eq!(node.text(), UPGRADED, "kube-scheduler is not restarted for nothing");
}

/// An enabled node after an upgrade, and its cluster.
fn upgraded() -> (Node, Cluster) {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.enable(&node, "node-a").success();
    fs::write(node.manifest(), UPGRADED).unwrap();
    (node, cluster)
}

#[test]
fn a_new_configuration_changes_the_manifest_that_an_upgrade_wrote() {
    let (node, cluster) = upgraded();
    let flags = ["--plain-http", "--extender-host", "10.96.3.5"];
    cluster.run(&node, "node-a", "enable", &flags).success();
    let text = node.text();
    assert!(!text.contains(CURRENT), "{text}");
    assert_eq!(text.matches(" # plimsoll\n").count(), 8, "{text}");
    assert_eq!(text.matches(FOLDER).count(), 3, "{text}");
    cluster.disable(&node, "node-a").success();
    assert_eq!(node.text(), KUBEADM.replace("v1.36.2", "v1.36.3"));
}

#[test]
fn disabling_after_an_upgrade_leaves_what_kubeadm_writes_without_the_settings() {
    let (node, cluster) = upgraded();
    let said = cluster.disable(&node, "node-a").success();
    assert!(said.contains("the manifest is as it was before"), "{said}");
    assert_eq!(node.text(), KUBEADM.replace("v1.36.2", "v1.36.3"));
    assert_eq!(node.files().len(), 1, "{:?}", node.files());
    assert!(!node.path("etc/kubernetes/plimsoll").exists());
}

#[test]
fn a_part_of_what_an_upgrade_writes_is_neither_doubled_nor_forgotten() {
    let part =
        UPGRADED.replace("    - mountPath: /etc/kubernetes/plimsoll\n", "    - mountPath: /x\n");
    let (node, cluster) = (Node::new(&part), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    for output in [cluster.enable(&node, "node-a"), cluster.disable(&node, "node-a")] {
        assert!(output.failure().contains("no longer end in"));
        assert_eq!((node.text(), cluster.text().as_str()), (part.clone(), CLUSTER_CONFIGURATION));
    }
}

#[test]
fn the_link_leads_to_the_configuration_in_force_on_the_node_and_in_the_container() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    for host in ["10.96.3.4", "10.96.3.5"] {
        let flags = ["--plain-http", "--extender-host", host];
        cluster.run(&node, "node-a", "enable", &flags).success();
        let target = fs::read_link(node.path(CURRENT)).unwrap();
        assert_eq!(target.components().count(), 1, "a mounted folder has another root");
        assert!(
            node.text().contains(&format!("--config={FOLDER}/{} # plimsoll", target.display()))
        );
        assert!(fs::read_to_string(node.path(CURRENT)).unwrap().contains(host));
    }
}

#[test]
fn a_run_that_was_interrupted_before_the_link_is_finished_by_the_next() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.enable(&node, "node-a").success();
    fs::remove_file(node.path(CURRENT)).unwrap();
    assert!(!cluster.enable(&node, "node-a").success().contains("Already enabled"));
    assert!(node.path(CURRENT).exists());
}

#[test]
fn a_dry_run_shows_the_change_of_the_config_map_and_makes_none() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    let flags = [&PLAIN[..], &["--dry-run"]].concat();
    let shown = cluster.run(&node, "node-a", "enable", &flags).success();
    for line in [
        "\n-scheduler: {}\n",
        "\n+  - name: config\n",
        "\n+plimsoll.dev/kube-scheduler-nodes: node-a\n",
    ] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    assert_eq!((cluster.text().as_str(), node.text().as_str()), (CLUSTER_CONFIGURATION, KUBEADM));
    cluster.enable(&node, "node-a").success();
    let shown = cluster.run(&node, "node-a", "disable", &["--dry-run"]).success();
    assert!(shown.contains("\n+scheduler: {}\n"), "{shown}");
    assert_eq!(cluster.text(), configured(SETTINGS));
}

#[test]
fn with_the_flag_that_leaves_it_alone_the_config_map_is_not_even_read() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    let map = cluster.world.path().join("configmap");
    let hidden = cluster.world.path().join("hidden");
    fs::rename(&map, &hidden).unwrap();
    assert!(cluster.enable(&node, "node-a").failure().contains("or give --no-kubeadm-config"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
    let flags = [&PLAIN[..], &["--no-kubeadm-config"]].concat();
    cluster.run(&node, "node-a", "enable", &flags).success();
    let status = cluster.status(&node, "node-a").success();
    assert!(status.contains("What kubeadm upgrade does cannot be told"), "{status}");
    assert!(cluster.disable(&node, "node-a").failure().contains("Nothing was changed"));
    cluster.run(&node, "node-a", "disable", &["--no-kubeadm-config"]).success();
    fs::rename(&hidden, &map).unwrap();
    assert_eq!((cluster.text().as_str(), node.text().as_str()), (CLUSTER_CONFIGURATION, KUBEADM));
}

#[test]
fn without_the_config_map_enable_says_to_run_it_after_each_upgrade() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], ""));
    cluster.write("configmap", "");
    assert!(cluster.enable(&node, "node-a").success().contains("Without the ConfigMap"));
    cluster.status(&node, "node-a").success();
    cluster.disable(&node, "node-a").success();
    assert_eq!(node.text(), KUBEADM);
}

#[test]
fn the_folder_stays_while_the_config_map_names_it_in_a_form_of_others() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.enable(&node, "node-a").success();
    let (manifest, files) = (node.text(), node.files());
    let other = configured(SETTINGS).replace("pathType: Directory\n", "pathType: \"\"\n");
    cluster.keeps("8", &["node-a"], &other);
    assert!(cluster.disable(&node, "node-a").failure().contains("would not start"));
    assert_eq!((node.text(), node.files()), (manifest, files));
}

#[test]
fn a_node_whose_kubelet_cannot_be_asked_needs_its_name() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.write("user", "kubernetes-admin");
    let unnamed = node.run(&cluster.world, "enable", &PLAIN);
    assert!(unnamed.failure().contains("give --node NAME"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
    let flags = [&PLAIN[..], &["--node", "node-a"]].concat();
    cluster.run(&node, "admin", "enable", &flags).success();
    assert_eq!(cluster.enabled(), "node-a");
}
