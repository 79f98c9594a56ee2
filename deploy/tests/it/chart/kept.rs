//! `deploy/manifests` is what Helm renders, for kubectl, for kustomizations of users, and by both releases of Helm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::render::{HELMS, chart_objects, objects, program, stderr, stdout, template, with_all};
use crate::documents::cells;
use crate::manifests::{Manifests, PROGRAMS, REGISTRY};
use crate::repository::{read, root};

/// The values of the table of docs/install.md, each as for `--set`.
pub(super) fn documented() -> Vec<String> {
    let text = read("docs/install.md");
    let rows = text.lines().filter(|line| line.starts_with("| `")).map(cells);
    let values = rows.map(|row| row[1].trim_matches('`').to_owned());
    let values: Vec<String> = values.filter(|it| it.contains('=') && !it.contains(' ')).collect();
    assert!(values.len() > 20, "{values:?}");
    values
}

/// The files below a folder that were rendered.
fn rendered(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mode in ["external", "second", "none"] {
        found.push(folder.join(format!("manifests/{mode}/plimsoll.yaml")));
    }
    found.push(folder.join("manifests/rules.yaml"));
    for part in ["claims", "mps-control-daemon", "unhealthy-gpus"] {
        found.push(folder.join(format!("tests/rendered/{part}.yaml")));
    }
    found
}

#[test]
#[ignore = "make chart"]
fn the_kept_manifests_are_what_helm_renders() {
    for by in HELMS {
        let folder = TempDir::new().expect("a folder");
        let mut script = Command::new(root().join("scripts/manifests.sh"));
        let output = script.arg(folder.path()).env("HELM", program(by)).output().expect("it runs");
        assert!(output.status.success(), "{by}: {}", stderr(&output));
        for (fresh, kept) in rendered(folder.path()).iter().zip(rendered(deploy::folder())) {
            let [fresh, text] = [fresh, &kept].map(|file| fs::read_to_string(file).expect("it"));
            assert!(fresh == text, "{by}: {} is stale: make reference", kept.display());
        }
    }
}

/// Helm's releases differ in how they read values and order objects.
#[test]
#[ignore = "make chart"]
fn both_releases_of_helm_render_the_same_of_each_documented_value_and_of_many() {
    let values = documented();
    for value in &values {
        let [three, four] = HELMS.map(|by| chart_objects(by, "plimsoll", &[value]));
        assert!(three == four, "{value}");
    }
    let all = with_all(&[]);
    let [three, four] = HELMS.map(|by| objects(&stdout(&template(by, "plimsoll", &all))));
    assert!(three == four && three.len() > 80, "{}", three.len());
}

/// As in docs/install.md.
const OWN: &str = "
resources: [MANIFESTS/second]
images:
- {name: plimsoll.invalid/annotator, newName: registry.example.com/plimsoll/annotator, newTag: a}
- {name: plimsoll.invalid/gpushare-device-plugin, newName: registry.example.com/plimsoll/gpushare-device-plugin, newTag: a}
- {name: plimsoll.invalid/node-exporter-plus, newName: registry.example.com/plimsoll/node-exporter-plus, newTag: a}
- {name: plimsoll.invalid/scheduler-extender, newName: registry.example.com/plimsoll/scheduler-extender, newTag: a}
- {name: registry.k8s.io/kube-scheduler, newTag: v1.35.9}
configMapGenerator:
- {name: policy, namespace: plimsoll, behavior: replace, files: [policy.yaml]}
generatorOptions: {disableNameSuffixHash: true}
patches:
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: annotator, namespace: plimsoll}
    spec: {template: {spec: {containers: [{name: annotator, env: [{name: PLIMSOLL_LOG_LEVEL, value: debug}]}]}}}
";

/// What kustomize makes of a kustomization with these lines, in which `MANIFESTS` stands for the way to the kept ones.
fn kustomized(lines: &str) -> String {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().canonicalize().expect("a path");
    // kustomize takes no absolute path.
    let up = "../".repeat(path.components().count() - 1);
    let manifests = deploy::folder().canonicalize().expect("a path").join("manifests");
    let manifests = format!("{up}{}", manifests.display().to_string().trim_start_matches('/'));
    fs::write(path.join("kustomization.yaml"), lines.replace("MANIFESTS", &manifests)).expect("it");
    fs::write(path.join("policy.yaml"), "mine\n").expect("a policy");
    let mut kustomize = Command::new(program("KUSTOMIZE"));
    stdout(&kustomize.arg("build").arg(&path).output().expect("kustomize runs"))
}

#[test]
#[ignore = "make chart"]
fn a_kustomization_of_the_users_own_sets_images_policy_and_patches() {
    let built = kustomized(OWN);
    assert!(!built.contains(REGISTRY), "{built}");
    let built = Manifests::of_text(&built);
    let policy = built.object("ConfigMap", "policy");
    assert_eq!(policy["data"], serde_json::json!({"policy.yaml": "mine\n"}));
    assert_eq!(built.objects().len(), Manifests::of_mode("second").objects().len());
    for program in PROGRAMS {
        let image = format!("registry.example.com/plimsoll/{program}:a");
        assert_eq!(built.container(program)["image"], image);
    }
    let scheduler: Value = built.container("kube-scheduler");
    assert_eq!(scheduler["image"], "registry.k8s.io/kube-scheduler:v1.35.9");
    assert_eq!(built.container("annotator")["env"][0]["value"], "debug");
}

/// What docs/certificates.md has for a kustomization.
const CONTROL_PLANE: &str = "
resources: [MANIFESTS/external]
patches:
- target: {kind: NetworkPolicy, name: scheduler-extender}
  patch: |-
    - op: add
      path: /spec/ingress/1/from
      value:
      - ipBlock:
          cidr: 192.0.2.10/32
      - podSelector:
          matchLabels:
            app.kubernetes.io/name: scheduler-extender
            app.kubernetes.io/part-of: plimsoll
";

#[test]
#[ignore = "make chart"]
fn the_patch_of_the_documents_opens_the_verbs_as_the_value_does() {
    let patch = CONTROL_PLANE.split_once("patches:").expect("it").1;
    assert!(read("docs/certificates.md").contains(patch), "docs/certificates.md has another one");
    let patched = Manifests::of_text(&kustomized(CONTROL_PLANE));
    let value = super::render::manifests(&["networkPolicy.controlPlane={192.0.2.10/32}"]);
    let [patched, value] =
        [patched, value].map(|it| it.object("NetworkPolicy", "scheduler-extender"));
    assert_eq!(patched["spec"], value["spec"]);
}
