//! `plimsoll scheduler`, run on the manifest that kubeadm writes.

mod certificates;
mod kubeadm;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::command::Run;
use crate::world::World;

/// What `kubeadm init phase control-plane scheduler` v1.36.2 wrote.
const KUBEADM: &str = include_str!("../../fixtures/kubeadm-v1.36.yaml");
/// The same after `plimsoll-scheduler enable`, the script of former releases, with [`CONFIG`].
const ENABLED: &str = include_str!("../../fixtures/kubeadm-v1.36-enabled.yaml");
/// A configuration as short as can be, so that the shipped one can change without new fixtures.
const CONFIG: &str = "clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler.conf\nextenders:\n\
                      - urlPrefix: http://scheduler-extender.plimsoll.svc:19100/load-aware\n";

/// The part of a control-plane node's file system that is read and written.
struct Node(TempDir);

impl Node {
    fn new(manifest: &str) -> Self {
        let node = Self(TempDir::new().unwrap());
        fs::create_dir_all(node.path("etc/kubernetes/manifests")).unwrap();
        fs::write(node.manifest(), manifest).unwrap();
        fs::set_permissions(node.manifest(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(node.path("config.yaml"), CONFIG).unwrap();
        node
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    fn manifest(&self) -> PathBuf {
        self.path("etc/kubernetes/manifests/kube-scheduler.yaml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.manifest()).unwrap()
    }

    /// The files below /etc/kubernetes.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in ["manifests", "plimsoll", "."] {
            let Ok(entries) = fs::read_dir(self.path("etc/kubernetes").join(folder)) else {
                continue;
            };
            let files = entries.map(Result::unwrap).filter(|entry| entry.path().is_file());
            let names = files.map(|entry| entry.file_name().into_string().unwrap());
            found.extend(names.map(|name| format!("{folder}/{name}")));
        }
        found.sort();
        found
    }

    /// Runs a command in a cluster.
    fn run(&self, world: &World, command: &str, flags: &[&str]) -> Run {
        let root = self.0.path().to_str().unwrap();
        let config = self.path("config.yaml");
        let mut words = vec!["scheduler", command, "--root", root];
        if command == "enable" {
            words.extend(["--config", config.to_str().unwrap()]);
        }
        world.run(&[&words[..], flags].concat())
    }

    /// Runs a command without a cluster.
    fn alone(&self, command: &str, flags: &[&str]) -> Run {
        self.run(&World::new(), command, &[&["--no-kubeadm-config"], flags].concat())
    }

    fn enable(&self, host: &str) -> Run {
        self.alone("enable", &["--plain-http", "--extender-host", host])
    }

    fn installed(&self, file: &str) -> String {
        let path = self.path("etc/kubernetes/plimsoll").join(file);
        fs::read_to_string(path).unwrap_or_default()
    }

    fn installed_config(&self) -> String {
        let files = self.files();
        let mut files = files.iter().filter_map(|file| file.strip_prefix("plimsoll/"));
        let config = files.find(|file| file.starts_with("kube-scheduler-config-")).unwrap();
        self.installed(config)
    }
}

#[test]
fn enabling_names_the_configuration_in_kubeadms_manifest_and_mounts_it() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    assert_eq!(node.text(), ENABLED);
    assert_eq!(
        node.installed_config(),
        CONFIG.replace("scheduler-extender.plimsoll.svc", "10.96.3.4")
    );
    let mode = fs::metadata(node.manifest()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the manifest keeps its mode");
}

#[test]
fn without_a_file_the_configuration_is_the_one_that_is_shipped() {
    let node = Node::new(KUBEADM);
    let root = node.0.path().to_str().unwrap();
    let words = ["scheduler", "enable", "--root", root, "--no-kubeadm-config", "--plain-http"];
    World::new().run(&[&words[..], &["--extender-host", "10.96.3.4"]].concat()).success();
    let shipped = include_str!("../../../../deploy/chart/kube-scheduler/shipped.yaml");
    let at = shipped.replace("//scheduler-extender.plimsoll.svc:", "//10.96.3.4:");
    assert_eq!(node.installed_config(), at);
}

#[test]
fn what_the_script_of_former_releases_installed_is_kept_and_taken_out() {
    let node = Node::new(ENABLED);
    let folder = node.path("etc/kubernetes/plimsoll");
    fs::create_dir(&folder).unwrap();
    let config = CONFIG.replace("scheduler-extender.plimsoll.svc", "10.96.3.4");
    for (name, text) in [
        ("kube-scheduler-config-1054132344.yaml", config.as_str()),
        ("kube-scheduler.yaml.before", KUBEADM),
        // Where it was interrupted.
        ("manifest.new", KUBEADM),
        ("tls.key.new", "key"),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let link = folder.join("kube-scheduler-config.yaml");
    symlink("kube-scheduler-config-1054132344.yaml", &link).unwrap();
    assert!(node.enable("10.96.3.4").success().contains("Already enabled"));
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        fs::write(folder.join(name), "x").unwrap();
    }
    assert!(node.alone("disable", &[]).success().contains("as it was before"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
    assert!(!folder.exists());
}

#[test]
fn the_kubelets_folder_never_holds_a_second_file() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    let in_manifests: Vec<_> =
        node.files().into_iter().filter(|file| file.starts_with("manifests/")).collect();
    assert_eq!(in_manifests, ["manifests/kube-scheduler.yaml"]);
}

#[test]
fn the_enabled_manifest_differs_by_a_flag_a_mount_and_a_volume() {
    let pod: Value = serde_saphyr::from_str(ENABLED).unwrap();
    let container = &pod["spec"]["containers"][0];
    let volumes = &pod["spec"]["volumes"];
    let path = container["command"][1].as_str().unwrap().strip_prefix("--config=").unwrap();
    let mount = &container["volumeMounts"][0];
    let folder = path.rsplit_once('/').unwrap().0;
    assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&folder.into(), &true.into()));
    assert_eq!(volumes[0]["name"], mount["name"]);
    assert_eq!(volumes[0]["hostPath"]["path"], folder);
    let counts = [&container["command"], volumes].map(|list| list.as_array().unwrap().len());
    assert_eq!(counts, [7, 2], "and nothing is lost");
}

#[test]
fn enabling_twice_is_the_same_as_once() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    let files = node.files();
    assert!(node.enable("10.96.3.4").success().contains("Already enabled"));
    assert_eq!((node.text().as_str(), node.files()), (ENABLED, files));
}

#[test]
fn a_new_address_changes_the_manifest_so_that_the_kubelet_restarts_the_scheduler() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    node.enable("fd00::7").success();
    assert_ne!(node.text(), ENABLED);
    assert!(node.installed_config().contains("http://[fd00::7]:19100/"));
    assert_eq!(node.files().len(), 4, "the former configuration is gone: {:?}", node.files());
}

#[test]
fn an_extender_host_must_be_a_host_without_port_brackets_or_scheme() {
    let node = Node::new(KUBEADM);
    for host in [
        "10.96.3.4:19100",
        "[fd00::7]",
        "[fd00::7]:19100",
        "http://extender",
        "http://10.0.0.1",
        "10.0.0.1/x",
        "a b",
        "x&y",
        "",
    ] {
        let refused = node.enable(host);
        let said = refused.stderr.contains("expected a host name or an IP address");
        assert!(refused.code == Some(2) && said, "{host}: {}", refused.stderr);
    }
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
}

#[test]
fn disabling_restores_every_byte_and_leaves_nothing_behind() {
    let node = Node::new(KUBEADM);
    let before = node.files();
    node.enable("10.96.3.4").success();
    node.alone("disable", &[]).success();
    assert_eq!((node.text().as_str(), node.files()), (KUBEADM, before));
    assert!(node.alone("disable", &[]).success().contains("nothing to restore"));
}

#[test]
fn what_others_changed_since_survives_disabling() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    fs::write(node.manifest(), louder(ENABLED)).unwrap();
    node.alone("disable", &[]).success();
    assert_eq!(node.text(), louder(KUBEADM));
    let before = node.path("etc/kubernetes/kube-scheduler.yaml.before-plimsoll");
    assert_eq!(fs::read_to_string(before).unwrap(), KUBEADM);
}

fn louder(text: &str) -> String {
    text.replace("    - --leader-elect=true\n", "    - --leader-elect=true\n    - --v=4\n")
}

#[test]
fn a_manifest_that_an_upgrade_wrote_anew_is_enabled_again() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    let upgraded = KUBEADM.replace("v1.36.2", "v1.36.3");
    fs::write(node.manifest(), &upgraded).unwrap();
    assert_eq!(node.alone("status", &[]).code, Some(1));
    node.enable("10.96.3.4").success();
    assert_eq!(node.text(), ENABLED.replace("v1.36.2", "v1.36.3"));
    node.alone("disable", &[]).success();
    assert_eq!(node.text(), upgraded);
}

#[test]
fn a_dry_run_shows_the_change_and_makes_none() {
    let node = Node::new(KUBEADM);
    let flags = ["--dry-run", "--plain-http", "--extender-host", "10.96.3.4"];
    let shown = node.alone("enable", &flags).success();
    assert!(shown.starts_with("+    - --config=/etc/kubernetes/plimsoll/"), "{shown}");
    assert!(shown.contains("\n+- urlPrefix: http://10.96.3.4:"), "{shown}");
    assert!(shown.lines().all(|line| line.starts_with('+')), "{shown}");
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
    node.enable("10.96.3.4").success();
    let files = node.files();
    let shown = node.alone("disable", &["--dry-run"]).success();
    assert_eq!(shown.matches("\n-").count(), 7, "{shown}");
    assert_eq!((node.text().as_str(), node.files()), (ENABLED, files));
}

#[test]
fn status_exits_1_where_it_is_not_enabled_and_2_where_that_cannot_be_told() {
    let node = Node::new(KUBEADM);
    assert_eq!(node.alone("status", &[]).code, Some(1));
    node.enable("10.96.3.4").success();
    let said = node.alone("status", &[]).success();
    assert!(said.contains("Enabled: /etc/kubernetes/plimsoll/"), "{said}");
    fs::remove_file(node.manifest()).unwrap();
    assert_eq!(node.alone("status", &[]).code, Some(2));
}

/// Runs `enable` on a manifest that it must not touch, and returns its stderr.
fn refused(manifest: &str) -> String {
    let node = Node::new(manifest);
    let stderr = node.enable("10.96.3.4").failure();
    assert_eq!((node.text().as_str(), node.files().len()), (manifest, 1));
    stderr
}

#[test]
fn a_scheduler_with_a_configuration_is_refused_with_instructions_to_merge() {
    for line in
        ["    - --config=/etc/kubernetes/mine.yaml\n", "    - --config\n    - /etc/mine.yaml\n"]
    {
        let stderr = refused(&KUBEADM.replace("    - --leader-elect=true\n", line));
        assert!(
            stderr.contains("already has a configuration") && stderr.contains("merge"),
            "{stderr}"
        );
    }
}

#[test]
fn a_manifest_of_another_shape_is_refused_with_the_line_that_is_missing() {
    let cases = [
        ("    - kube-scheduler\n", "    - /usr/bin/kube-scheduler\n", "- kube-scheduler"),
        ("    volumeMounts:\n", "    volumeMount:\n", "volumeMounts:"),
        ("  volumes:\n", "  volumes: # all\n", "volumes:"),
        ("kind: Pod\n", "kind: Deployment\n", "kind: Pod"),
    ];
    for (usual, other, named) in cases {
        let stderr = refused(&KUBEADM.replace(usual, other));
        assert!(
            stderr.contains(named) && stderr.contains("not once") && stderr.contains("by hand"),
            "{stderr}"
        );
    }
}

#[test]
fn a_scheduler_with_another_kubeconfig_is_refused() {
    let other = KUBEADM
        .replace("--kubeconfig=/etc/kubernetes/scheduler.conf", "--kubeconfig=/srv/other.conf");
    assert!(refused(&other).contains("--kubeconfig=/srv/other.conf"));
}

#[test]
fn lines_whose_marks_were_lost_are_neither_doubled_nor_forgotten() {
    let unmarked = ENABLED.replace(" # plimsoll", "");
    assert!(refused(&unmarked).contains("no longer end in"));
    let node = Node::new(&unmarked);
    assert!(node.alone("disable", &[]).failure().contains("by hand"));
    assert_eq!(node.text(), unmarked);
}

#[test]
fn a_missing_manifest_is_an_error_that_names_kubeadm() {
    let node = Node::new(KUBEADM);
    fs::remove_file(node.manifest()).unwrap();
    assert!(node.enable("10.0.0.1").failure().contains("kubeadm control-plane node"));
}

#[test]
fn a_proxy_in_the_manifest_is_pointed_out() {
    let proxy = "    env:\n    - name: HTTP_PROXY\n      value: http://10.9.9.9:3128\n    image:";
    let node = Node::new(&KUBEADM.replace("    image:", proxy));
    assert!(node.enable("10.96.3.4").success().contains("no_proxy must cover 10.96.3.4"));
}

#[test]
fn a_configuration_without_an_entry_of_ours_is_refused() {
    let node = Node::new(KUBEADM);
    fs::write(node.path("config.yaml"), certificates::WITH_OTHERS).unwrap();
    assert!(node.enable("10.96.3.4").failure().contains("no urlPrefix names"));
    assert_eq!(node.text(), KUBEADM);
}

#[test]
fn a_manifest_whose_flag_someone_took_out_is_cleaned_before_the_folder_goes() {
    let node = Node::new(KUBEADM);
    node.enable("10.96.3.4").success();
    let without_flag: Vec<&str> =
        ENABLED.split_inclusive('\n').filter(|line| !line.contains("--config=")).collect();
    fs::write(node.manifest(), without_flag.concat()).unwrap();
    // After `enable` the saved copy has none of our lines.
    node.enable("10.96.3.4").success();
    assert_eq!(node.installed("kube-scheduler.yaml.before"), KUBEADM);
    fs::write(node.manifest(), without_flag.concat()).unwrap();
    assert!(node.alone("disable", &[]).success().contains("as it was before"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
}

#[test]
fn flags_that_a_configuration_switches_off_are_carried_over_or_refused() {
    let node = node_with_flag("--profiling=false");
    node.enable("10.96.3.4").success();
    assert!(node.installed_config().ends_with("\nenableProfiling: false\n"));
    let said = CONFIG.to_owned() + "enableProfiling: true\n";
    fs::write(node.path("config.yaml"), &said).unwrap();
    node.enable("10.96.3.4").success();
    assert_eq!(node.installed_config().matches("enableProfiling").count(), 1);
    let node = node_with_flag("'--contention-profiling=false'");
    // The file's last line has no line break.
    fs::write(node.path("config.yaml"), CONFIG.trim_end()).unwrap();
    node.enable("10.96.3.4").success();
    assert!(node.installed_config().ends_with("/load-aware\nenableContentionProfiling: false\n"));
    for flag in ["--profiling=False", "--profiling", "\"--contention-profiling=0\""] {
        let stderr = node_with_flag(flag).enable("10.96.3.4").failure();
        assert!(stderr.contains("is neither"), "{flag}: {stderr}");
    }
    for flag in ["'--kube-api-qps=5'", "--kube-api-qps", "--kube-api-qps=100"] {
        let stderr = node_with_flag(flag).enable("10.96.3.4").failure();
        assert!(stderr.contains("set clientConnection.qps"), "{flag}: {stderr}");
    }
    let node = node_with_flag("--kube-api-qps=100");
    let said = CONFIG.replace("clientConnection:\n", "clientConnection:\n  qps: 100\n");
    fs::write(node.path("config.yaml"), said).unwrap();
    node.enable("10.96.3.4").success();
}

fn node_with_flag(flag: &str) -> Node {
    let line = format!("    - kube-scheduler\n    - {flag}\n");
    Node::new(&KUBEADM.replace("    - kube-scheduler\n", &line))
}

#[cfg(target_os = "linux")]
#[test]
fn a_manifest_on_a_file_system_of_its_own_is_replaced_there_in_one_step() {
    let node = Node::new(KUBEADM);
    let elsewhere = TempDir::new_in("/dev/shm").unwrap();
    fs::copy(node.manifest(), elsewhere.path().join("kube-scheduler.yaml")).unwrap();
    fs::remove_dir_all(node.path("etc/kubernetes/manifests")).unwrap();
    symlink(elsewhere.path(), node.path("etc/kubernetes/manifests")).unwrap();
    node.enable("10.96.3.4").success();
    assert_ne!(node.text(), KUBEADM);
    node.alone("disable", &[]).success();
    assert_eq!(node.text(), KUBEADM);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}
