//! `plimsoll-scheduler`, run on the manifest that kubeadm writes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

/// What `kubeadm init phase control-plane scheduler` v1.36.2 wrote.
pub(crate) const KUBEADM: &str = include_str!("../fixtures/kubeadm-v1.36.yaml");
/// The same after `enable` with [`CONFIG`].
const ENABLED: &str = include_str!("../fixtures/kubeadm-v1.36-enabled.yaml");
/// A configuration as short as can be, so that the shipped one can change without new fixtures.
const CONFIG: &str = "clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler.conf\nextenders:\n\
                      - urlPrefix: http://scheduler-extender.plimsoll.svc:19100/load-aware\n";

/// The part of a control-plane node's file system that the script reads and writes.
pub(crate) struct Node(TempDir);

impl Node {
    pub(crate) fn new(manifest: &str) -> Self {
        let node = Self(TempDir::new().unwrap());
        fs::create_dir_all(node.path("etc/kubernetes/manifests")).unwrap();
        fs::write(node.manifest(), manifest).unwrap();
        fs::set_permissions(node.manifest(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(node.path("config.yaml"), CONFIG).unwrap();
        node
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.path("etc/kubernetes/manifests/kube-scheduler.yaml")
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.manifest()).unwrap()
    }

    /// Every file below /etc/kubernetes, with its size.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in ["manifests", "plimsoll", "."] {
            let Ok(entries) = fs::read_dir(self.path("etc/kubernetes").join(folder)) else {
                continue;
            };
            let files = entries.map(Result::unwrap).filter(|entry| entry.path().is_file());
            found.extend(
                files.map(|entry| format!("{folder}/{}", entry.file_name().into_string().unwrap())),
            );
        }
        found.sort();
        found
    }

    /// Runs the script without a cluster.
    fn script(&self, command: &str, flags: &[&str]) -> Output {
        self.command(command).arg("--no-kubeadm-config").args(flags).output().unwrap()
    }

    /// The script with the flags that have it work here.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut sh = Command::new("sh");
        sh.arg(deploy::folder().join("scheduler/plimsoll-scheduler")).arg(command);
        sh.arg("--root").arg(self.0.path()).arg("--config").arg(self.path("config.yaml"));
        sh
    }

    fn enable(&self, host: &str) -> Output {
        self.script("enable", &["--plain-http", "--extender-host", host])
    }

    fn installed_config(&self) -> String {
        let files = self.files();
        let config =
            files.iter().find(|file| file.starts_with("plimsoll/kube-scheduler-config-")).unwrap();
        fs::read_to_string(self.path("etc/kubernetes").join(config)).unwrap()
    }
}

pub(crate) fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn fails(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn enabling_names_the_configuration_in_kubeadms_manifest_and_mounts_it() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    assert_eq!(node.text(), ENABLED);
    assert_eq!(
        node.installed_config(),
        CONFIG.replace("scheduler-extender.plimsoll.svc", "10.96.3.4")
    );
    let mode = fs::metadata(node.manifest()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the manifest keeps its mode");
}

#[test]
fn the_kubelets_folder_never_holds_a_second_file() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    let in_manifests: Vec<_> =
        node.files().into_iter().filter(|file| file.starts_with("manifests/")).collect();
    assert_eq!(in_manifests, ["manifests/kube-scheduler.yaml"]);
}

#[test]
fn the_enabled_manifest_differs_by_a_flag_a_mount_and_a_volume() {
    let pod: k8s_openapi::api::core::v1::Pod = serde_saphyr::from_str(ENABLED).unwrap();
    let spec = pod.spec.unwrap();
    let container = &spec.containers[0];
    let volumes = spec.volumes.unwrap();
    let flag = &container.command.as_ref().unwrap()[1];
    let path = flag.strip_prefix("--config=").unwrap();
    let mount = &container.volume_mounts.as_ref().unwrap()[0];
    let folder = path.rsplit_once('/').unwrap().0;
    assert_eq!((mount.mount_path.as_str(), mount.read_only), (folder, Some(true)));
    assert_eq!(volumes[0].name, mount.name);
    assert_eq!(volumes[0].host_path.as_ref().unwrap().path, folder);
    assert_eq!(
        (container.command.as_ref().unwrap().len(), volumes.len()),
        (7, 2),
        "and nothing is lost"
    );
}

#[test]
fn enabling_twice_is_the_same_as_once() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    let files = node.files();
    assert!(succeeds(&node.enable("10.96.3.4")).contains("already enabled"));
    assert_eq!((node.text().as_str(), node.files()), (ENABLED, files));
}

#[test]
fn a_new_address_changes_the_manifest_so_that_the_kubelet_restarts_the_scheduler() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    succeeds(&node.enable("fd00::7"));
    assert_ne!(node.text(), ENABLED);
    assert!(node.installed_config().contains("http://[fd00::7]:19100/"));
    assert_eq!(node.files().len(), 4, "the former configuration is gone: {:?}", node.files());
}

#[test]
fn an_address_with_a_port_brackets_or_scheme_is_refused() {
    for host in ["10.96.3.4:19100", "[fd00::7]", "[fd00::7]:19100", "http://extender"] {
        let node = Node::new(KUBEADM);
        let stderr = fails(&node.enable(host));
        assert!(stderr.contains("expected a host name or an IP address"), "{host}: {stderr}");
        assert_eq!(node.text(), KUBEADM, "{host}");
    }
}

#[test]
fn disabling_restores_every_byte_and_leaves_nothing_behind() {
    let node = Node::new(KUBEADM);
    let before = node.files();
    succeeds(&node.enable("10.96.3.4"));
    succeeds(&node.script("disable", &[]));
    assert_eq!((node.text().as_str(), node.files()), (KUBEADM, before));
    assert!(succeeds(&node.script("disable", &[])).contains("nothing to restore"));
}

#[test]
fn what_others_changed_since_survives_disabling() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    fs::write(node.manifest(), louder(ENABLED)).unwrap();
    succeeds(&node.script("disable", &[]));
    assert_eq!(node.text(), louder(KUBEADM));
    assert!(node.files().contains(&"./kube-scheduler.yaml.before-plimsoll".to_owned()));
}

fn louder(text: &str) -> String {
    text.replace("    - --leader-elect=true\n", "    - --leader-elect=true\n    - --v=4\n")
}

#[test]
fn a_manifest_that_an_upgrade_wrote_anew_is_enabled_again() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    let upgraded = KUBEADM.replace("v1.36.2", "v1.36.3");
    fs::write(node.manifest(), &upgraded).unwrap();
    assert!(fails(&node.script("status", &[])).is_empty());
    succeeds(&node.enable("10.96.3.4"));
    assert_eq!(node.text(), ENABLED.replace("v1.36.2", "v1.36.3"));
    succeeds(&node.script("disable", &[]));
    assert_eq!(node.text(), upgraded);
}

#[test]
fn a_dry_run_shows_the_change_and_makes_none() {
    let node = Node::new(KUBEADM);
    let shown = succeeds(
        &node.script("enable", &["--dry-run", "--plain-http", "--extender-host", "10.96.3.4"]),
    );
    assert!(
        shown.contains("\n+    - --config=/etc/kubernetes/plimsoll/")
            && shown.contains("\n+- urlPrefix: http://10.96.3.4:")
    );
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
}

#[test]
fn status_exits_1_where_it_is_not_enabled() {
    let node = Node::new(KUBEADM);
    fails(&node.script("status", &[]));
    succeeds(&node.enable("10.96.3.4"));
    assert!(succeeds(&node.script("status", &[])).contains("enabled: /etc/kubernetes/plimsoll/"));
}

/// Runs `enable` on a manifest that it must not touch, and returns its stderr.
fn refused(manifest: &str) -> String {
    let node = Node::new(manifest);
    let stderr = fails(&node.enable("10.96.3.4"));
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
    let stderr = refused(
        &KUBEADM
            .replace("--kubeconfig=/etc/kubernetes/scheduler.conf", "--kubeconfig=/srv/other.conf"),
    );
    assert!(stderr.contains("--kubeconfig=/srv/other.conf"), "{stderr}");
}

#[test]
fn lines_whose_marks_were_lost_are_neither_doubled_nor_forgotten() {
    let unmarked = ENABLED.replace(" # plimsoll", "");
    assert!(refused(&unmarked).contains("no longer end in"));
    let node = Node::new(&unmarked);
    assert!(fails(&node.script("disable", &[])).contains("by hand"));
    assert_eq!(node.text(), unmarked);
}

#[test]
fn an_extender_host_must_be_a_host() {
    let node = Node::new(KUBEADM);
    for host in ["http://10.0.0.1", "10.0.0.1/x", "a b", "x&y"] {
        assert!(
            fails(&node.enable(host)).contains("expected a host name or an IP address"),
            "{host}"
        );
    }
    assert_eq!(node.text(), KUBEADM);
}

#[test]
fn a_missing_manifest_is_an_error_that_names_kubeadm() {
    let node = Node::new(KUBEADM);
    fs::remove_file(node.manifest()).unwrap();
    assert!(fails(&node.enable("10.0.0.1")).contains("kubeadm control-plane node"));
}

#[test]
fn a_proxy_in_the_manifest_is_pointed_out() {
    let proxy = "    env:\n    - name: HTTP_PROXY\n      value: http://10.9.9.9:3128\n    image:";
    let node = Node::new(&KUBEADM.replace("    image:", proxy));
    assert!(succeeds(&node.enable("10.96.3.4")).contains("no_proxy must cover 10.96.3.4"));
}

/// A `kubectl` that keeps Secrets as folders of files in `$SECRETS`, and knows the two other objects that the script
/// asks for.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
while [ $# -gt 0 ]; do
    case $1 in
    --kubeconfig) shift 2 ;;
    --namespace) echo "$2" >>"$SECRETS/../namespaces"; shift 2 ;;
    --request-timeout=*) shift ;;
    *) break ;;
    esac
done
case "$1 $2" in
"get service") echo 10.96.3.4 ;;
# There is no kubeadm-config.
"get configmap" | "get nodes") ;;
"get deployment") echo "$DEPLOYMENT" ;;
"get secret")
    [ -d "$SECRETS/$3" ] || exit 0
    for last in "$@"; do :; done
    case $last in
    name) echo "secret/$3" ;;
    *) for file in ca.crt tls.crt tls.key; do base64 -w 0 <"$SECRETS/$3/$file" && echo; done ;;
    esac ;;
"create secret")
    mkdir "$SECRETS/$4"
    name=$4
    shift 4
    for file in "$@"; do
        pair=${file#--from-file=}
        cp "${pair#*=}" "$SECRETS/$name/${pair%%=*}"
    done ;;
"label secret") ;;
"delete secret") rm -rf "$SECRETS/$3" "$SECRETS/$4" ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"#;

/// Runs the script with [`KUBECTL`], for an extender with or without TLS; `None` where this machine has no openssl.
fn with_kubectl(node: &Node, tls: bool, command: &str, flags: &[&str]) -> Option<Output> {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED: no openssl on this machine");
        return None;
    }
    let bin = node.path("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(node.path("secrets")).unwrap();
    fs::write(bin.join("kubectl"), KUBECTL).unwrap();
    fs::set_permissions(bin.join("kubectl"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut sh = node.command(command);
    sh.args(flags);
    sh.env("PATH", path).env("SECRETS", node.path("secrets"));
    sh.env("DEPLOYMENT", if tls { "PLIMSOLL_TLS_CERT_FILE" } else { "" });
    Some(sh.output().unwrap())
}

/// What kube-scheduler reads, below /etc/kubernetes/plimsoll.
const CERTIFICATE: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

fn installed(node: &Node, file: &str) -> String {
    fs::read_to_string(node.path(&format!("etc/kubernetes/plimsoll/{file}"))).unwrap_or_default()
}

#[test]
fn an_extender_with_tls_gets_certificates_and_kube_scheduler_its_own() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
    assert!(succeeds(&output).contains("made Secrets"));
    for file in CERTIFICATE {
        let kept = node.path(&format!("secrets/kube-scheduler-tls/{file}"));
        assert_eq!(installed(&node, file), fs::read_to_string(kept).unwrap(), "{file}");
    }
    let key = node.path("etc/kubernetes/plimsoll/tls.key");
    assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!node.path("secrets/scheduler-extender-tls/ca.key").exists());
    let config = node.installed_config();
    for line in [
        "- urlPrefix: https://10.96.3.4:19100/load-aware\n",
        "\n  enableHTTPS: true\n  tlsConfig:\n    serverName: scheduler-extender.plimsoll.svc\n",
        "\n    caFile: /etc/kubernetes/plimsoll/ca.crt\n",
        "\n    certFile: /etc/kubernetes/plimsoll/tls.crt\n",
        "\n    keyFile: /etc/kubernetes/plimsoll/tls.key\n",
    ] {
        assert!(config.contains(line), "{line} is not in {config}");
    }
    let again = with_kubectl(&node, true, "enable", &[]).unwrap();
    assert!(succeeds(&again).contains("already enabled"));
    succeeds(&node.script("disable", &[]));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
}

#[test]
fn both_certificates_are_signed_by_the_ca_for_what_they_are_used_for() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "certificates", &["--kubeconfig", "x"]) else {
        return;
    };
    succeeds(&output);
    for (secret, purposes) in [
        ("scheduler-extender-tls", &["sslserver", "sslclient"][..]),
        ("kube-scheduler-tls", &["sslclient"]),
    ] {
        let folder = node.path(&format!("secrets/{secret}"));
        for purpose in ["sslserver", "sslclient"] {
            let mut verify = Command::new("openssl");
            verify.args(["verify", "-purpose", purpose, "-CAfile"]).arg(folder.join("ca.crt"));
            let verified = verify.arg(folder.join("tls.crt")).output().unwrap().status.success();
            assert_eq!(verified, purposes.contains(&purpose), "{secret}: {purpose}");
        }
    }
}

#[test]
fn another_namespace_is_asked_and_stands_in_the_certificate_and_the_configuration() {
    let node = Node::new(KUBEADM);
    let elsewhere = ["--namespace", "elsewhere"];
    let Some(output) = with_kubectl(&node, true, "enable", &elsewhere) else { return };
    assert!(succeeds(&output).contains("made Secrets elsewhere/scheduler-extender-tls"));
    let asked = fs::read_to_string(node.path("namespaces")).unwrap();
    let known = ["elsewhere", "kube-system"];
    assert!(asked.lines().all(|namespace| known.contains(&namespace)), "{asked}");
    let config = node.installed_config();
    assert!(config.contains("- urlPrefix: https://10.96.3.4:19100/load-aware\n"), "{config}");
    assert!(config.contains("    serverName: scheduler-extender.elsewhere.svc\n"), "{config}");
    let mut show = Command::new("openssl");
    show.args(["x509", "-noout", "-text", "-in"]);
    let shown = show.arg(node.path("secrets/scheduler-extender-tls/tls.crt")).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    // As the subject and as the DNS name.
    assert!(shown.contains("DNS:scheduler-extender.elsewhere.svc"), "{shown}");
    assert_eq!(shown.matches("scheduler-extender.elsewhere.svc").count(), 2, "{shown}");
}

#[test]
fn what_is_no_name_of_a_namespace_is_refused() {
    for name in ["", "a/b", "a b", "A", "a.b", "$(x)"] {
        let node = Node::new(KUBEADM);
        let stderr = fails(&node.script("enable", &["--namespace", name]));
        assert!(stderr.contains("expected the name of a namespace"), "{name}: {stderr}");
        assert_eq!(node.text(), KUBEADM, "{name}");
    }
}

#[test]
fn certificates_that_are_there_are_taken_and_new_ones_are_installed() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
    succeeds(&output);
    let manifest = node.text();
    let key = installed(&node, "tls.key");
    let other = Node::new(KUBEADM);
    fs::rename(node.path("secrets"), other.path("secrets")).unwrap();
    assert!(!succeeds(&with_kubectl(&other, true, "enable", &[]).unwrap()).contains("made"));
    assert_eq!(installed(&other, "tls.key"), key);
    succeeds(&with_kubectl(&other, true, "certificates", &["--new"]).unwrap());
    succeeds(&with_kubectl(&other, true, "enable", &[]).unwrap());
    assert_ne!(installed(&other, "tls.key"), key);
    assert_ne!(other.text(), manifest, "the kubelet restarts kube-scheduler for a new CA");
}

#[test]
fn certificates_in_use_stay_where_no_new_ones_can_be_made() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
    succeeds(&output);
    let openssl = node.path("bin/openssl");
    fs::write(&openssl, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&openssl, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = with_kubectl(&node, true, "certificates", &["--new"]).unwrap();
    assert!(!refused.status.success());
    for secret in ["scheduler-extender-tls", "kube-scheduler-tls"] {
        assert!(node.path(&format!("secrets/{secret}/tls.key")).exists(), "{secret}");
    }
}

#[test]
fn without_tls_and_in_a_dry_run_no_certificate_is_made() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "enable", &["--dry-run"]) else { return };
    let shown = succeeds(&output);
    assert!(shown.contains("would make Secrets") && shown.contains("+  enableHTTPS: true"));
    succeeds(&with_kubectl(&node, false, "enable", &[]).unwrap());
    assert_eq!(node.text(), ENABLED);
    assert_eq!(fs::read_dir(node.path("secrets")).unwrap().count(), 0);
}

#[test]
fn certificates_are_made_once_and_say_so() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "certificates", &[]) else { return };
    assert!(succeeds(&output).contains("made Secrets"));
    let made = scheduler_key(&node);
    let again = succeeds(&with_kubectl(&node, true, "certificates", &[]).unwrap());
    assert!(again.contains("are there"), "{again}");
    assert_eq!((scheduler_key(&node), node.text().as_str()), (made, KUBEADM));
}

fn scheduler_key(node: &Node) -> String {
    fs::read_to_string(node.path("secrets/kube-scheduler-tls/tls.key")).unwrap()
}

#[test]
fn an_address_that_is_given_leaves_it_to_the_deployment_whether_there_is_tls() {
    let node = Node::new(KUBEADM);
    let host = ["--extender-host", "10.96.3.5"];
    let Some(output) = with_kubectl(&node, true, "enable", &host) else { return };
    succeeds(&output);
    assert!(node.installed_config().contains("https://10.96.3.5:19100/"));
    let plain = [&host[..], &["--plain-http"]].concat();
    succeeds(&with_kubectl(&node, true, "enable", &plain).unwrap());
    assert!(node.installed_config().contains("http://10.96.3.5:19100/"));
}

#[test]
fn one_secret_without_the_other_is_an_error_that_says_so() {
    let node = Node::new(KUBEADM);
    fs::create_dir_all(node.path("secrets/kube-scheduler-tls")).unwrap();
    let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
    let stderr = fails(&output);
    assert!(stderr.contains("kube-scheduler-tls is there, and scheduler-extender-tls is not"));
    assert_eq!(node.text(), KUBEADM);
}

/// A certificate of CN=x that was valid on the first day of 2020 only.
const EXPIRED: &str = "-----BEGIN CERTIFICATE-----\n\
                       MIH+MIGmAgEBMAoGCCqGSM49BAMCMAwxCjAIBgNVBAMMAXgwHhcNMjAwMTAxMDAw\n\
                       MDAwWhcNMjAwMTAyMDAwMDAwWjAMMQowCAYDVQQDDAF4MFkwEwYHKoZIzj0CAQYI\n\
                       KoZIzj0DAQcDQgAEn5PX9htjWDH56nh+vMiuoVBwftQL0385bbmTodGdKckvnh7O\n\
                       N6AwTa3vojxXFvvzYVm8llWfaJtnAd6oV+E/6TAKBggqhkjOPQQDAgNHADBEAiB6\n\
                       Xns1vwC+5y4yjtDT8ZaJHGnr1Tm6nR0OWGoM2z17TAIgYvA14Vl18EgIlZ4G3nzq\n\
                       MMmmU1D+IUrPyGO5nKMTtD8=\n\
                       -----END CERTIFICATE-----\n";

/// Other extenders' entries in every form that YAML has for them, and ours, indented and quoted.
const WITH_OTHERS: &str = "clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler.conf\nextenders:\n\
                           - urlPrefix: http://127.0.0.1:8888/other\n  filterVerb: filter\n\
                           - urlPrefix: https://other.example:8443\n  enableHTTPS: true\n";

#[test]
fn only_our_entries_are_given_https_however_they_are_written() {
    for (ours, indent) in [
        ("- urlPrefix: http://scheduler-extender.plimsoll.svc:19100/load-aware\n", "  "),
        ("  - urlPrefix: \"http://scheduler-extender.plimsoll.svc:19100/load-aware\"\n", "    "),
        ("- urlPrefix: 'http://10.96.0.7:19100/load-aware'\n", "  "),
        (
            "- filterVerb: filter\n  urlPrefix: http://scheduler-extender.plimsoll.svc:19100/load-aware\n",
            "  ",
        ),
        (
            "- urlPrefix: http://scheduler-extender.plimsoll.svc.cluster.local:19100/load-aware\n",
            "  ",
        ),
    ] {
        let node = Node::new(KUBEADM);
        fs::write(node.path("config.yaml"), WITH_OTHERS.to_owned() + ours).unwrap();
        let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
        succeeds(&output);
        let config = node.installed_config();
        assert!(config.starts_with(WITH_OTHERS), "{config}");
        let ours = ours.replace("http:", "https:").replace(".cluster.local", "");
        let ours = ours.replace("scheduler-extender.plimsoll.svc", "10.96.3.4");
        let server = "serverName: scheduler-extender.plimsoll.svc\n";
        let entry =
            format!("{ours}{indent}enableHTTPS: true\n{indent}tlsConfig:\n{indent}  {server}");
        assert!(config.contains(&entry), "{config}");
    }
}

#[test]
fn a_configuration_without_an_entry_of_ours_is_refused() {
    let node = Node::new(KUBEADM);
    fs::write(node.path("config.yaml"), WITH_OTHERS).unwrap();
    assert!(fails(&node.enable("10.96.3.4")).contains("no urlPrefix names"));
    assert_eq!(node.text(), KUBEADM);
}

#[test]
fn a_manifest_whose_flag_someone_took_out_is_cleaned_before_the_folder_goes() {
    let node = Node::new(KUBEADM);
    succeeds(&node.enable("10.96.3.4"));
    let without_flag: Vec<&str> =
        ENABLED.split_inclusive('\n').filter(|line| !line.contains("--config=")).collect();
    fs::write(node.manifest(), without_flag.concat()).unwrap();
    // After `enable` the saved copy has none of our lines.
    succeeds(&node.enable("10.96.3.4"));
    let before = node.path("etc/kubernetes/plimsoll/kube-scheduler.yaml.before");
    assert_eq!(fs::read_to_string(before).unwrap(), KUBEADM);
    fs::write(node.manifest(), without_flag.concat()).unwrap();
    assert!(succeeds(&node.script("disable", &[])).contains("as it was before"));
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
}

#[test]
fn flags_that_a_configuration_switches_off_are_carried_over_or_refused() {
    let node = node_with_flag("--profiling=false");
    succeeds(&node.enable("10.96.3.4"));
    assert!(node.installed_config().ends_with("\nenableProfiling: false\n"));
    let said = CONFIG.to_owned() + "enableProfiling: true\n";
    fs::write(node.path("config.yaml"), &said).unwrap();
    succeeds(&node.enable("10.96.3.4"));
    assert_eq!(node.installed_config().matches("enableProfiling").count(), 1);
    let node = node_with_flag("'--contention-profiling=false'");
    // The file's last line has no line break.
    fs::write(node.path("config.yaml"), CONFIG.trim_end()).unwrap();
    succeeds(&node.enable("10.96.3.4"));
    assert!(node.installed_config().ends_with("/load-aware\nenableContentionProfiling: false\n"));
    for flag in ["--profiling=False", "--profiling", "\"--contention-profiling=0\""] {
        assert!(fails(&node_with_flag(flag).enable("10.96.3.4")).contains("is neither"), "{flag}");
    }
    for flag in ["'--kube-api-qps=5'", "--kube-api-qps"] {
        assert!(
            fails(&node_with_flag(flag).enable("10.96.3.4")).contains("clientConnection.qps"),
            "{flag}"
        );
    }
    let node = node_with_flag("--kube-api-qps=100");
    assert!(fails(&node.enable("10.96.3.4")).contains("set clientConnection.qps"));
    let said = CONFIG.replace("clientConnection:\n", "clientConnection:\n  qps: 100\n");
    fs::write(node.path("config.yaml"), said).unwrap();
    succeeds(&node.enable("10.96.3.4"));
}

fn node_with_flag(flag: &str) -> Node {
    let line = format!("    - kube-scheduler\n    - {flag}\n");
    Node::new(&KUBEADM.replace("    - kube-scheduler\n", &line))
}

#[test]
fn a_certificate_that_ends_soon_is_told_and_one_that_has_ended_fails_the_status() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
    assert!(!succeeds(&output).contains("warning"));
    succeeds(&node.script("status", &[]));
    let certificate = node.path("etc/kubernetes/plimsoll/tls.crt");
    let mut new = Command::new("openssl");
    new.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    new.args(["-subj", "/CN=x", "-days", "7", "-keyout", "/dev/null", "-out"]).arg(&certificate);
    assert!(new.output().unwrap().status.success());
    let soon = succeeds(&node.script("status", &[]));
    assert!(soon.contains("certificate ends at") && soon.contains("enabled: "), "{soon}");
    fs::write(certificate, EXPIRED).unwrap();
    assert_eq!(node.script("status", &[]).status.code(), Some(1));
}

#[test]
fn going_back_to_plain_http_removes_the_key() {
    let node = Node::new(KUBEADM);
    let Some(output) = with_kubectl(&node, true, "enable", &[]) else { return };
    succeeds(&output);
    succeeds(&with_kubectl(&node, true, "enable", &["--plain-http"]).unwrap());
    assert_eq!(CERTIFICATE.map(|file| installed(&node, file)), ["", "", ""]);
}

#[test]
fn a_signal_leaves_no_key_behind() {
    let node = Node::new(KUBEADM);
    let Some(_) = with_kubectl(&node, true, "status", &[]) else { return };
    // kubectl hangs, as with an API server that drops packets. By then the keys are made.
    let slow = KUBECTL.replace(
        "\"create secret\")",
        "\"create secret\") touch \"$SECRETS/asked\"; sleep 60 ;;\n\"never\")",
    );
    fs::write(node.path("bin/kubectl"), slow).unwrap();
    let scratch = node.path("scratch");
    fs::create_dir(&scratch).unwrap();
    let mut sh = Command::new("sh");
    sh.arg(deploy::folder().join("scheduler/plimsoll-scheduler")).arg("certificates");
    let path = format!("{}:{}", node.path("bin").display(), std::env::var("PATH").unwrap());
    sh.env("PATH", path).env("SECRETS", node.path("secrets")).env("TMPDIR", &scratch);
    // The script gets a process group of its own, so that the signal reaches all of it, as one from a terminal does.
    let mut child = sh.process_group(0).spawn().unwrap();
    while !node.path("secrets/asked").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
    let killed = Command::new("kill").args(["-TERM", "--", &format!("-{}", child.id())]).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}
