//! `plimsoll-scheduler` and kubeadm's ConfigMap kube-system/kubeadm-config, out of which `kubeadm upgrade` writes
//! kube-scheduler's manifest.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use serde::Deserialize;
use tempfile::TempDir;

use crate::wiring::{KUBEADM, Node, fails, succeeds};

/// What kubeadm v1.36.3 stores in the ConfigMap.
const CLUSTER_CONFIGURATION: &str = include_str!("../fixtures/kubeadm-config-v1.36.yaml");
/// The manifest that the same kubeadm writes once the ConfigMap has our settings.
const UPGRADED: &str = include_str!("../fixtures/kubeadm-v1.36-upgraded.yaml");
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

/// A `kubectl` that keeps the ConfigMap in files of `$CLUSTER`. A file `meanwhile` is what someone else makes of it
/// just before it is patched.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
while [ $# -gt 0 ]; do
    case $1 in
    --kubeconfig | --namespace) shift 2 ;;
    --request-timeout=*) shift ;;
    *) break ;;
    esac
done
case "$1 $2" in
"auth whoami") printf 'system:node:%s' "$NODE" ;;
"get nodes") cat "$CLUSTER/control-plane" ;;
"get configmap")
    [ -f "$CLUSTER/text" ] || exit 0
    cat "$CLUSTER/version" && echo && cat "$CLUSTER/enabled" && echo && cat "$CLUSTER/text" ;;
"patch configmap")
    for patch in "$@"; do :; done
    if [ -f "$CLUSTER/meanwhile" ]; then
        mv "$CLUSTER/meanwhile" "$CLUSTER/text"
        printf 8 >"$CLUSTER/version"
    fi
    grep -qx "  resourceVersion: \"$(cat "$CLUSTER/version")\"" "$patch" || {
        echo 'Error from server (Conflict): the object has been modified' >&2
        exit 1
    }
    cp "$patch" "$CLUSTER/patch"
    sed -n 's,^    plimsoll.dev/kube-scheduler-nodes: "\(.*\)"$,\1,p' "$patch" | tr -d '\n' >"$CLUSTER/enabled"
    sed '1,/^  ClusterConfiguration:/d; s/^    //' "$patch" >"$CLUSTER/text"
    printf %s $(($(cat "$CLUSTER/version") + 1)) >"$CLUSTER/version" ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"#;

/// The API server, as far as the script asks it.
struct Cluster(TempDir);

impl Cluster {
    /// A cluster with these control-plane nodes and this ClusterConfiguration.
    fn new(control_plane: &[&str], text: &str) -> Self {
        let cluster = Self(TempDir::new().unwrap());
        let kubectl = cluster.0.path().join("kubectl");
        fs::write(&kubectl, KUBECTL).unwrap();
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
        let control_plane: String = control_plane.iter().map(|name| format!("{name}\n")).collect();
        cluster.write("control-plane", &control_plane);
        cluster.write("version", "7");
        cluster.write("enabled", "");
        cluster.write("text", text);
        cluster
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).unwrap()
    }

    /// The ClusterConfiguration.
    fn text(&self) -> String {
        self.read("text")
    }

    fn enable(&self, node: &Node, name: &str) -> Output {
        self.run(node, name, "enable", &["--plain-http", "--extender-host", "10.96.3.4"])
    }

    fn disable(&self, node: &Node, name: &str) -> Output {
        self.run(node, name, "disable", &[])
    }

    fn status(&self, node: &Node, name: &str) -> Output {
        self.run(node, name, "status", &[])
    }

    /// Runs the script on the node of this name.
    fn run(&self, node: &Node, name: &str, command: &str, flags: &[&str]) -> Output {
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").unwrap());
        let mut sh = node.command(command);
        sh.args(flags).env("PATH", path).env("CLUSTER", self.0.path()).env("NODE", name);
        sh.output().unwrap()
    }
}

/// A ClusterConfiguration with this in place of `scheduler: {}`.
fn configured(scheduler: &str) -> String {
    CLUSTER_CONFIGURATION.replace("scheduler: {}\n", scheduler)
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn enabling_the_only_control_plane_node_adds_the_settings_that_kubeadm_writes_back() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    assert!(succeeds(&cluster.enable(&node, "node-a")).contains("kubeadm upgrade keeps it"));
    assert_eq!(cluster.text(), configured(SETTINGS));
    assert_eq!(cluster.read("enabled"), "node-a");
    let version = cluster.read("version");
    assert!(succeeds(&cluster.enable(&node, "node-a")).contains("already enabled"));
    assert_eq!(cluster.read("version"), version, "nothing is written a second time");
    assert!(succeeds(&cluster.status(&node, "node-a")).contains("kubeadm upgrade keeps it"));
}

#[test]
fn disabling_restores_every_byte_of_the_cluster_configuration() {
    let others = "scheduler:\n  extraArgs:\n  - name: v\n    value: \"4\"\n  extraEnvs:\n  - name: A\n    value: x\n  \
                  extraVolumes:\n  - hostPath: /x\n    mountPath: /x\n    name: x\n";
    let arguments = "scheduler:\n  extraArgs:\n  - name: v\n    value: \"4\"\nzeta: {}\n";
    let volumes = "scheduler:\n  extraVolumes:\n  - hostPath: /x\n    mountPath: /x\n    name: x\n";
    let elsewhere = "scheduler: {}\nzeta:\n  extraArgs:\n  - name: config\n    value: /x\n";
    for scheduler in ["scheduler: {}\n", "", others, arguments, volumes, elsewhere] {
        let before = configured(scheduler);
        let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], &before));
        succeeds(&cluster.enable(&node, "node-a"));
        let merged: ClusterConfiguration = serde_saphyr::from_str(&cluster.text()).unwrap();
        assert_eq!(merged.scheduler.ours(), (1, 1), "{}", cluster.text());
        let said = succeeds(&cluster.disable(&node, "node-a"));
        assert!(said.contains("took the configuration out of ConfigMap"), "{said}");
        assert_eq!(cluster.text(), before);
        assert_eq!((cluster.read("enabled").as_str(), node.files().len()), ("", 1));
    }
}

/// What kubeadm reads of its ConfigMap.
#[derive(Deserialize)]
struct ClusterConfiguration {
    scheduler: Scheduler,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scheduler {
    extra_args: Vec<Argument>,
    extra_volumes: Vec<Volume>,
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    host_path: String,
    mount_path: String,
    path_type: Option<String>,
    read_only: Option<bool>,
}

impl Scheduler {
    /// How many arguments and volumes are ours.
    fn ours(&self) -> (usize, usize) {
        let current = format!("/{CURRENT}");
        let arguments =
            self.extra_args.iter().filter(|it| it.name == "config" && it.value == current);
        let volumes = self.extra_volumes.iter().filter(|it| {
            it.host_path == FOLDER
                && it.mount_path == FOLDER
                && it.path_type.as_deref() == Some("Directory")
                && it.read_only == Some(true)
        });
        (arguments.count(), volumes.count())
    }
}

/// What the API server makes of the patch.
#[derive(Deserialize)]
struct Patch {
    metadata: Metadata,
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    annotations: BTreeMap<String, Option<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    cluster_configuration: String,
}

#[test]
fn the_patch_holds_the_version_that_was_read_the_nodes_and_the_text() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    succeeds(&cluster.enable(&node, "node-a"));
    let patch: Patch = serde_saphyr::from_str(&cluster.read("patch")).unwrap();
    assert_eq!(patch.metadata.resource_version, "7");
    let nodes = &patch.metadata.annotations["plimsoll.dev/kube-scheduler-nodes"];
    assert_eq!(nodes.as_deref(), Some("node-a"));
    assert_eq!(patch.data.cluster_configuration, configured(SETTINGS));
    succeeds(&cluster.disable(&node, "node-a"));
    let patch: Patch = serde_saphyr::from_str(&cluster.read("patch")).unwrap();
    assert_eq!(patch.metadata.annotations["plimsoll.dev/kube-scheduler-nodes"], None);
}

#[test]
fn what_someone_else_changes_meanwhile_is_kept() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.write("meanwhile", &CLUSTER_CONFIGURATION.replace("v1.36.3", "v1.36.4"));
    succeeds(&cluster.enable(&node, "node-a"));
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
        ("scheduler:\n  extraArgs:\n  - {name: v, value: \"4\"}\n", "not written as kubeadm"),
        ("scheduler: {extraArgs: []}\n", "not written as kubeadm writes it"),
        ("scheduler:\n", "not laid out as kubeadm writes it"),
    ] {
        let before = configured(scheduler);
        let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], &before));
        let output = cluster.enable(&node, "node-a");
        assert!(succeeds(&output).contains("enabled, with the extender"), "{scheduler}");
        let said = stderr(&output);
        assert!(said.contains(why) && said.ends_with(SETTINGS), "{scheduler}: {said}");
        assert_eq!((cluster.text(), cluster.read("version").as_str()), (before, "7"));
        succeeds(&cluster.disable(&node, "node-a"));
        assert_eq!(node.text(), KUBEADM);
    }
}

#[test]
fn an_older_version_of_the_cluster_configuration_is_left_as_it_is() {
    let older = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nscheduler:\n  extraArgs:\n    v: \"4\"\n";
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], older));
    let output = cluster.enable(&node, "node-a");
    succeeds(&output);
    let said = stderr(&output);
    assert!(said.contains("v1beta3") && said.contains("run enable again"), "{said}");
    assert!(!said.contains("extraVolumes"), "a form that this version does not have: {said}");
    assert_eq!(cluster.text(), older);
}

#[test]
fn the_last_control_plane_node_adds_the_settings_and_each_node_says_which_are_left() {
    let names = ["node-a", "node-b", "node-c"];
    let nodes = names.map(|_| Node::new(KUBEADM));
    let cluster = Cluster::new(&names, CLUSTER_CONFIGURATION);
    let first = succeeds(&cluster.enable(&nodes[0], names[0]));
    assert!(first.contains("until enable has run on these control-plane nodes too: node-b node-c"));
    succeeds(&cluster.enable(&nodes[1], names[1]));
    assert_eq!(cluster.text(), CLUSTER_CONFIGURATION);
    let status = succeeds(&cluster.status(&nodes[0], names[0]));
    assert!(status.contains("control-plane nodes too: node-c."), "{status}");
    succeeds(&cluster.enable(&nodes[2], names[2]));
    assert_eq!(cluster.text(), configured(SETTINGS));
    assert_eq!(cluster.read("enabled"), "node-a,node-b,node-c");
}

#[test]
fn disabling_one_of_several_nodes_takes_the_settings_out_and_names_the_others() {
    let names = ["node-a", "node-b"];
    let nodes = names.map(|_| Node::new(KUBEADM));
    let cluster = Cluster::new(&names, CLUSTER_CONFIGURATION);
    for (node, name) in nodes.iter().zip(names) {
        succeeds(&cluster.enable(node, name));
    }
    let said = succeeds(&cluster.disable(&nodes[1], names[1]));
    assert!(said.contains("are still enabled") && said.contains(": node-a. Run disable"), "{said}");
    assert_eq!(cluster.text(), CLUSTER_CONFIGURATION);
    let status = succeeds(&cluster.status(&nodes[0], names[0]));
    assert!(status.contains("takes Plimsoll out") && status.contains("too: node-b."), "{status}");
    succeeds(&cluster.enable(&nodes[1], names[1]));
    assert_eq!(cluster.text(), configured(SETTINGS));
}

#[test]
fn a_node_that_has_left_the_cluster_is_not_waited_for() {
    let node = Node::new(KUBEADM);
    let cluster = Cluster::new(&["node-a"], CLUSTER_CONFIGURATION);
    cluster.write("enabled", "gone,node-b");
    succeeds(&cluster.enable(&node, "node-a"));
    assert_eq!(cluster.read("enabled"), "node-a");
    assert_eq!(cluster.text(), configured(SETTINGS));
}

#[test]
fn a_new_control_plane_node_that_lacks_the_folder_is_named() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    succeeds(&cluster.enable(&node, "node-a"));
    cluster.write("control-plane", "node-a\nnode-b\n");
    let status = succeeds(&cluster.status(&node, "node-a"));
    assert!(status.contains("has not run on these control-plane nodes: node-b."), "{status}");
    // kubeadm join writes the same manifest as an upgrade.
    let joined = Node::new(UPGRADED);
    let output = cluster.status(&joined, "node-b");
    fails(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("kube-scheduler does not start"));
    succeeds(&cluster.enable(&joined, "node-b"));
    succeeds(&cluster.status(&joined, "node-b"));
    let plain = Node::new(KUBEADM);
    let output = cluster.status(&plain, "node-c");
    fails(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("does not start on this node"));
}

#[test]
fn the_manifest_of_an_upgrade_is_in_force_and_is_left_as_it_is() {
    let (node, cluster) = upgraded();
    let status = succeeds(&cluster.status(&node, "node-a"));
    assert!(status.contains(&format!("enabled: /{CURRENT}, in a manifest that kubeadm wrote")));
    assert!(succeeds(&cluster.enable(&node, "node-a")).contains("already enabled"));
    assert_eq!(node.text(), UPGRADED, "kube-scheduler is not restarted for nothing");
}

/// An enabled node after an upgrade, and its cluster.
fn upgraded() -> (Node, Cluster) {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    succeeds(&cluster.enable(&node, "node-a"));
    fs::write(node.manifest(), UPGRADED).unwrap();
    (node, cluster)
}

#[test]
fn a_new_configuration_changes_the_manifest_that_an_upgrade_wrote() {
    let (node, cluster) = upgraded();
    let flags = ["--plain-http", "--extender-host", "10.96.3.5"];
    succeeds(&cluster.run(&node, "node-a", "enable", &flags));
    let text = node.text();
    assert!(!text.contains(CURRENT), "{text}");
    assert_eq!(text.matches(" # plimsoll\n").count(), 8, "{text}");
    assert_eq!(text.matches(FOLDER).count(), 3, "{text}");
    succeeds(&cluster.disable(&node, "node-a"));
    assert_eq!(node.text(), KUBEADM.replace("v1.36.2", "v1.36.3"));
}

#[test]
fn disabling_after_an_upgrade_leaves_what_kubeadm_writes_without_the_settings() {
    let (node, cluster) = upgraded();
    let said = succeeds(&cluster.disable(&node, "node-a"));
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
        assert!(fails(&output).contains("no longer end in"));
        assert_eq!((node.text(), cluster.text().as_str()), (part.clone(), CLUSTER_CONFIGURATION));
    }
}

#[test]
fn the_link_leads_to_the_configuration_in_force_on_the_node_and_in_the_container() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    for host in ["10.96.3.4", "10.96.3.5"] {
        let flags = ["--plain-http", "--extender-host", host];
        succeeds(&cluster.run(&node, "node-a", "enable", &flags));
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
    succeeds(&cluster.enable(&node, "node-a"));
    fs::remove_file(node.path(CURRENT)).unwrap();
    assert!(!succeeds(&cluster.enable(&node, "node-a")).contains("already enabled"));
    assert!(node.path(CURRENT).exists());
}

#[test]
fn a_dry_run_shows_the_change_of_the_config_map_and_makes_none() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    let flags = ["--dry-run", "--plain-http", "--extender-host", "10.96.3.4"];
    let shown = succeeds(&cluster.run(&node, "node-a", "enable", &flags));
    for line in [
        "\n-    scheduler: {}\n",
        "\n+      - name: config\n",
        "\n+    plimsoll.dev/kube-scheduler-nodes: \"node-a\"\n",
    ] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    assert_eq!((cluster.text().as_str(), node.text().as_str()), (CLUSTER_CONFIGURATION, KUBEADM));
    succeeds(&cluster.enable(&node, "node-a"));
    let shown = succeeds(&cluster.run(&node, "node-a", "disable", &["--dry-run"]));
    assert!(shown.contains("\n+    scheduler: {}\n"), "{shown}");
    assert_eq!(cluster.text(), configured(SETTINGS));
}

#[test]
fn with_the_flag_that_leaves_it_alone_the_config_map_is_not_even_read() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    fs::remove_file(cluster.0.path().join("version")).unwrap();
    assert!(fails(&cluster.enable(&node, "node-a")).contains("or give --no-kubeadm-config"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
    let flags = ["--plain-http", "--extender-host", "10.96.3.4", "--no-kubeadm-config"];
    succeeds(&cluster.run(&node, "node-a", "enable", &flags));
    let status = succeeds(&cluster.status(&node, "node-a"));
    assert!(status.contains("cannot tell what kubeadm upgrade does"), "{status}");
    assert!(fails(&cluster.disable(&node, "node-a")).contains("Nothing was changed"));
    succeeds(&cluster.run(&node, "node-a", "disable", &["--no-kubeadm-config"]));
    assert_eq!((cluster.text().as_str(), node.text().as_str()), (CLUSTER_CONFIGURATION, KUBEADM));
}

#[test]
fn without_the_config_map_enable_says_to_run_it_after_each_upgrade() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], ""));
    fs::remove_file(cluster.0.path().join("text")).unwrap();
    assert!(succeeds(&cluster.enable(&node, "node-a")).contains("there is no ConfigMap"));
    succeeds(&cluster.status(&node, "node-a"));
    succeeds(&cluster.disable(&node, "node-a"));
    assert_eq!(node.text(), KUBEADM);
}

#[test]
fn the_folder_stays_while_the_config_map_names_it_in_a_form_of_others() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    succeeds(&cluster.enable(&node, "node-a"));
    let (manifest, files) = (node.text(), node.files());
    cluster
        .write("text", &configured(SETTINGS).replace("pathType: Directory\n", "pathType: \"\"\n"));
    assert!(fails(&cluster.disable(&node, "node-a")).contains("would not start"));
    assert_eq!((node.text(), node.files()), (manifest, files));
}

#[test]
fn a_node_whose_kubelet_cannot_be_asked_needs_its_name() {
    let (node, cluster) = (Node::new(KUBEADM), Cluster::new(&["node-a"], CLUSTER_CONFIGURATION));
    cluster.write("kubectl", &KUBECTL.replace("system:node:%s", "admin"));
    assert!(fails(&cluster.enable(&node, "node-a")).contains("give --node NAME"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
    let flags = ["--plain-http", "--extender-host", "10.96.3.4", "--node", "node-a"];
    succeeds(&cluster.run(&node, "node-a", "enable", &flags));
    assert_eq!(cluster.read("enabled"), "node-a");
}
