//! The ConfigMap kube-system/kubeadm-config, out of which `kubeadm upgrade` writes kube-scheduler's manifest.
//!
//! kubeadm writes all of it back at the end of an upgrade: without comments, with its own indentation, and with the
//! annotations that it found. So our settings are known by their text.
//!
//! Invariant: it names our folder only while every control-plane node has that: where one lacked it, kube-scheduler
//! would not start there after an upgrade. Texts of others stay byte for byte as they were.

use std::io::Write;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::manifest::{CURRENT, FOLDER};
use crate::cluster_access::objects::{ConfigMap, List, Object};
use crate::cluster_access::{ENABLED_NODES, Failure, Kubectl};
use crate::format::{differences, printable_lines};

const MAP: [&str; 3] = ["configmap", "kubeadm-config", "--namespace=kube-system"];
const KEY: &str = "ClusterConfiguration";
/// The version of the text that we change.
const VERSION: &str = "apiVersion: kubeadm.k8s.io/v1beta4";
/// How often it is read again where someone else has changed it meanwhile.
const TRIES: usize = 5;

/// Each section of `scheduler`, and our item of it, as kubeadm writes them.
const SECTIONS: [[&str; 2]; 2] = [
    [
        "  extraArgs:\n",
        "  - name: config\n    value: /etc/kubernetes/plimsoll/kube-scheduler-config.yaml\n",
    ],
    [
        "  extraVolumes:\n",
        "  - hostPath: /etc/kubernetes/plimsoll\n    mountPath: /etc/kubernetes/plimsoll\n    name: plimsoll\n    \
         pathType: Directory\n    readOnly: true\n",
    ],
];
/// The mark says that the line was not there.
const OUR_HEAD: &str = "scheduler: # plimsoll\n";

/// The ConfigMap, as far as it is read, and the control plane.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stored {
    version: String,
    /// The ClusterConfiguration; empty where there is no ConfigMap.
    text: String,
    /// The nodes on which `enable` has run.
    pub(super) enabled: Vec<String>,
    control_plane: Vec<String>,
}

impl Stored {
    pub(super) fn read(kubectl: &Kubectl) -> Result<Self, Failure> {
        let words = [&MAP[..], &["--ignore-not-found"]].concat();
        let map: ConfigMap = kubectl.get_if_there(&words)?.unwrap_or_default();
        let nodes: List<Object> =
            kubectl.get(&["nodes", "--selector=node-role.kubernetes.io/control-plane"])?;
        let enabled = map.metadata.annotations.get(ENABLED_NODES);
        let text = map.data.get(KEY).map_or("", String::as_str);
        Ok(Self {
            version: map.metadata.resource_version,
            text: text.lines().map(|line| format!("{line}\n")).collect(),
            enabled: enabled.iter().flat_map(|it| it.split(',')).map(str::to_owned).collect(),
            control_plane: nodes.items.into_iter().map(|node| node.metadata.name).collect(),
        })
    }

    pub(super) fn is_there(&self) -> bool {
        !self.text.is_empty()
    }

    pub(super) fn names_us(&self) -> bool {
        without_us(&self.text) != self.text
    }

    /// Whether it names our folder in a form that this command has not written.
    pub(super) fn names_us_otherwise(&self) -> bool {
        without_us(&self.text).contains(FOLDER)
    }

    /// What it is to be once `enable` has run on this node. It stays as it is where our settings cannot be added.
    pub(super) fn with(&self, node: &str) -> Self {
        let mut after = self.without(node);
        let Ok(merged) = with_us(&after.text) else { return self.clone() };
        after.enabled.push(node.to_owned());
        after.enabled.sort();
        after.text = if after.lacking().is_empty() { merged } else { self.text.clone() };
        after
    }

    /// What it is to be once `disable` has run on this node. Nodes that are gone are forgotten.
    pub(super) fn without(&self, node: &str) -> Self {
        let mut after = Self { text: without_us(&self.text), ..self.clone() };
        after.enabled.retain(|it| it != node && self.control_plane.contains(it));
        after
    }

    /// The control-plane nodes on which `enable` has not run.
    fn lacking(&self) -> String {
        let mut lacking = self.control_plane.clone();
        lacking.retain(|node| !self.enabled.contains(node));
        lacking.join(" ")
    }

    /// For a comparison.
    fn shown(&self) -> String {
        format!("{ENABLED_NODES}: {}\n{}", self.enabled.join(","), self.text)
    }

    /// What the next `kubeadm upgrade` makes of an enabled node.
    pub(super) fn told(&self) -> String {
        let map = "the ConfigMap kube-system/kubeadm-config";
        let lost = "kubeadm upgrade takes Plimsoll out of kube-scheduler's manifest";
        let lacking = self.lacking();
        let told = match with_us(&self.text) {
            _ if !self.is_there() => {
                format!("Without {map}, run enable again after each upgrade of Kubernetes.")
            }
            _ if self.names_us() && lacking.is_empty() => {
                format!("kubeadm upgrade keeps it: {map} names {CURRENT}.")
            }
            _ if self.names_us() => format!(
                "Warning: {map} names {CURRENT}, and enable has not run on these control-plane nodes: {lacking}. Without \
                 {FOLDER}, kube-scheduler does not start there after kubeadm upgrade."
            ),
            Err(problem) => format!(
                "Warning: {map}: {problem:#}. It was left as it is, and {lost}: run enable again after it.{}",
                self.by_hand()
            ),
            Ok(_) if lacking.is_empty() => {
                format!("Warning: {lost}: {map} does not name it. Run enable again.")
            }
            Ok(_) => format!(
                "Warning: {lost} until enable has run on these control-plane nodes too: {lacking}. The last one adds it to \
                 {map}."
            ),
        };
        printable_lines(&told)
    }

    /// How to add our settings. Another version has another form, and the next upgrade writes this one.
    fn by_hand(&self) -> String {
        if !self.text.lines().any(|line| line == VERSION) {
            return String::new();
        }
        format!(
            "\nOr have its ClusterConfiguration say this, by hand, once enable has run on every control-plane \
             node:\nscheduler:\n{}",
            SECTIONS.concat().concat().trim_end()
        )
    }

    /// Changes it, and returns what it was and is. A dry run shows the change.
    pub(super) fn update(
        mut self,
        change: impl Fn(&Self) -> Self,
        kubectl: &Kubectl,
        dry_run: bool,
        output: &mut dyn Write,
    ) -> Result<(Self, Self)> {
        for _ in 0..TRIES {
            let after = change(&self);
            if !self.is_there() || after == self {
                return Ok((self, after));
            }
            if dry_run {
                let shown = printable_lines(&differences(&self.shown(), &after.shown()));
                write!(output, "Would change the ConfigMap kube-system/kubeadm-config:\n{shown}")?;
                return Ok((self, after));
            }
            match after.patch(kubectl) {
                Err(Failure::Conflict(_)) => self = Self::read(kubectl)?,
                patched => {
                    patched.context("cannot change the ConfigMap kube-system/kubeadm-config")?;
                    return Ok((self, after));
                }
            }
        }
        bail!("the ConfigMap kube-system/kubeadm-config changes all the time: run this again")
    }

    /// The API server refuses it where the ConfigMap has changed since it was read.
    fn patch(&self, kubectl: &Kubectl) -> Result<String, Failure> {
        let nodes = (!self.enabled.is_empty()).then(|| self.enabled.join(","));
        let patch = json!({
            "metadata": {"resourceVersion": self.version, "annotations": {ENABLED_NODES: nodes}},
            "data": {KEY: self.text},
        });
        let how = ["--type=merge", "--patch-file=/dev/stdin"];
        kubectl.run_with(&[&["patch"], &MAP[..], &how].concat(), &patch.to_string())
    }
}

/// A ClusterConfiguration with this change of the lines of `scheduler`, of which there may be none.
fn edited(text: &str, edit: impl Fn(&str) -> String) -> String {
    // Behind a line break that is put before the text, a line begins where the break is without that.
    let start = format!("\n{text}").find("\nscheduler:").unwrap_or(text.len());
    let (before, rest) = text.split_at(start);
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        if length > 0 && !line.starts_with([' ', '#', '\n']) {
            break;
        }
        length += line.len();
    }
    let (scheduler, after) = rest.split_at(length);
    format!("{before}{}{after}", edit(scheduler))
}

/// A ClusterConfiguration without our settings.
fn without_us(text: &str) -> String {
    edited(text, |scheduler| {
        let mut body = scheduler.to_owned();
        for [section, item] in SECTIONS {
            // What stands behind a line break begins a line.
            let Some((start, end)) = body.split_once(&format!("\n{item}")) else { continue };
            body = format!("{start}\n{end}");
            let has_items = |rest: &str| rest.starts_with("  - ") || rest.starts_with("    ");
            match body.split_once(&format!("\n{section}")) {
                Some((start, end)) if !has_items(end) => body = format!("{start}\n{end}"),
                _ => {}
            }
        }
        let (head, rest) = body.split_once('\n').unwrap_or_default();
        match head {
            _ if body == scheduler => body,
            _ if rest.starts_with("  ") => format!("scheduler:\n{rest}"),
            _ if head == OUR_HEAD.trim_end() => rest.to_owned(),
            _ => format!("scheduler: {{}}\n{rest}"),
        }
    })
}

/// A ClusterConfiguration that has none of our settings, with them.
///
/// # Errors
///
/// Where they cannot be added: another version, settings of others in their place, or a text that is not laid out as
/// kubeadm writes it.
fn with_us(text: &str) -> Result<String> {
    let version = text.lines().find(|line| line.starts_with("apiVersion:")).unwrap_or_default();
    ensure!(
        version == VERSION,
        "it has {version}, and not {VERSION}, which the next kubeadm upgrade writes"
    );
    let merged = edited(text, |scheduler| {
        let (head, body) = scheduler.split_once('\n').unwrap_or_default();
        let head = if head.is_empty() { OUR_HEAD } else { "scheduler:\n" };
        let (mut new, mut body) = (String::new(), format!("\n{body}"));
        for [section, item] in SECTIONS {
            let at = format!("\n{section}");
            if body.contains(&at) {
                body = body.replacen(&at, &format!("{at}{item}"), 1);
            } else {
                new += &format!("{section}{item}");
            }
        }
        format!("{head}{new}{}", &body[1..])
    });
    let strange = "scheduler is not written as kubeadm writes it";
    let read: Value = serde_saphyr::from_str(&merged).ok().context(strange)?;
    let has_one = |section: &str, name: &str| {
        let items = read["scheduler"][section].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().filter(|item| item["name"] == name).count() == 1
    };
    ensure!(has_one("extraArgs", "config"), "scheduler.extraArgs has a configuration already");
    ensure!(
        has_one("extraVolumes", "plimsoll") && !text.contains(FOLDER),
        "scheduler.extraVolumes has the volume plimsoll already, in another form"
    );
    ensure!(without_us(&merged) == text, strange);
    Ok(merged)
}
