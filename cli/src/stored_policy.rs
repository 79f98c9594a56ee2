//! `plimsoll policy show`, `apply` and `rollback`: the policy in the cluster.
//!
//! The policy is the text `policy.yaml` of the ConfigMap that extender and annotator have it from. `apply` keeps the
//! text before it in an annotation, with a checksum of the text that it wrote. Invariant: `rollback` uses that only
//! while the policy is still that text; where something else has changed it, what was before is not known.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::policy_check::PolicyCheck;
use placement::fnv;
use placement::policy::LoadPolicy;
use serde_json::json;

use crate::args::stored_policy::{Apply, Change, Rollback, Show};
use crate::cluster_access::objects::ConfigMap;
use crate::cluster_access::{Cluster, PolicyMap};
use crate::extender;
use crate::format::{differences, printable, printable_lines};
use crate::output::{refuse_names, write_form};
use crate::policy::{read, write_report};

/// The ConfigMap's key.
const KEY: &str = "policy.yaml";
/// What `kubectl apply` keeps.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The policy before the last change by this command.
const PREVIOUS: &str = "plimsoll.dev/previous-policy";
/// The checksum of the policy that this command wrote last.
const WRITTEN: &str = "plimsoll.dev/written-policy";
/// The longest policy that is kept, in bytes: all annotations of an object together may have 256 KiB, and `kubectl
/// apply` keeps the whole ConfigMap in one of them.
const MAX_PREVIOUS: usize = 96 << 10;

impl ConfigMap {
    fn policy(&self) -> &str {
        self.data.get(KEY).map_or("", String::as_str)
    }

    /// The policy before the last change, if that change was this command's.
    fn previous(&self) -> Option<&str> {
        let written = self.metadata.annotations.get(WRITTEN)?;
        let previous = self.metadata.annotations.get(PREVIOUS)?;
        (*written == checksum(self.policy())).then_some(previous.as_str())
    }

    /// What else writes it, and how to go back there.
    fn owner(&self) -> Option<String> {
        let labels = &self.metadata.labels;
        let annotations = &self.metadata.annotations;
        let flux = ["kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"];
        if let Some(name) = flux.iter().find_map(|key| labels.get(*key)) {
            return Some(format!(
                "Flux ({name}) writes it from its repository, and undoes other changes: revert the commit there"
            ));
        }
        if labels.contains_key("argocd.argoproj.io/instance")
            || annotations.contains_key("argocd.argoproj.io/tracking-id")
        {
            return Some("Argo CD writes it from its repository, and undoes other changes: revert the commit there".to_owned());
        }
        let Some(release) = annotations.get("meta.helm.sh/release-name") else {
            let applied = "`kubectl apply` has it: the next one writes the policy of its files again. Change it there too";
            return annotations.contains_key(LAST_APPLIED).then(|| applied.to_owned());
        };
        Some(format!(
            "Helm's release {release} has it: the next `helm upgrade` writes its own policy again (`helm rollback {release}` \
             goes back to its former one)"
        ))
    }
}

/// A checksum to recognise a text by.
pub(crate) fn checksum(text: &str) -> String {
    format!("{:016x}", fnv::hash(text.as_bytes()))
}

/// Shows the policy.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) fn show(flags: &Show, output: &mut dyn Write) -> Result<()> {
    refuse_names(flags.query.format)?;
    let cluster = Cluster::new(&flags.query.access);
    if flags.effective {
        let report: PolicyCheck = extender::get(&cluster, "/v1/policy")?;
        let is_written = write_form(&report, [], flags.query.format, output)?;
        return if is_written { Ok(()) } else { write_report(&report, output) };
    }
    let found = stored(&cluster, &cluster.policy_map()?)?;
    let text = if flags.previous { previous(&found)? } else { found.policy() };
    if write_form(&json!({ KEY: text }), [], flags.query.format, output)? {
        return Ok(());
    }
    // Elsewhere it is a copy of the policy, for `policy check -` and files.
    if io::stdout().is_terminal() {
        write!(output, "{}", printable_lines(text))?;
    } else {
        write!(output, "{text}")?;
    }
    Ok(())
}

/// Puts a policy in force.
///
/// # Errors
///
/// If it is faulty, or cannot be written.
pub(crate) fn apply(flags: &Apply, output: &mut dyn Write) -> Result<ExitCode> {
    let text = read(&flags.file)?;
    change(&text, "the policy", &flags.change, output, |_| Ok(()))
}

/// Goes back to the policy before the last change.
///
/// # Errors
///
/// If there is no record of it, or it cannot be written.
pub(crate) fn rollback(flags: &Rollback, output: &mut dyn Write) -> Result<ExitCode> {
    let cluster = Cluster::new(&flags.change.access);
    let found = stored(&cluster, &cluster.policy_map()?)?;
    let text = previous(&found)?.to_owned();
    let version = found.metadata.resource_version;
    change(&text, "the policy before", &flags.change, output, |now: &ConfigMap| {
        if now.metadata.resource_version != version {
            bail!("the policy has changed meanwhile: run this again");
        }
        Ok(())
    })
}

fn stored(cluster: &Cluster, map: &PolicyMap) -> Result<ConfigMap> {
    let namespace = format!("--namespace={}", map.namespace);
    Ok(cluster.kubectl().get(&["configmap", &map.name, &namespace])?)
}

fn previous(found: &ConfigMap) -> Result<&str> {
    if let Some(previous) = found.previous() {
        return Ok(previous);
    }
    let how = found.owner().map(|owner| format!(". {owner}")).unwrap_or_default();
    if found.metadata.annotations.contains_key(PREVIOUS) {
        bail!(
            "the policy was changed by something else since the last `policy apply`, so what was before it is not \
             recorded{how}"
        );
    }
    bail!("no former policy is recorded: only `policy apply` keeps the one before{how}")
}

/// Writes the text in place of the policy, after a question.
fn change(
    text: &str,
    what: &str,
    flags: &Change,
    output: &mut dyn Write,
    check: impl FnOnce(&ConfigMap) -> Result<()>,
) -> Result<ExitCode> {
    let policy = LoadPolicy::from_yaml(text).with_context(|| what.to_owned())?;
    let cluster = Cluster::new(&flags.access);
    let map = cluster.policy_map()?;
    let found = stored(&cluster, &map)?;
    check(&found)?;
    if found.policy() == text {
        writeln!(output, "This policy is in the cluster already.")?;
        return Ok(ExitCode::SUCCESS);
    }
    if found.policy().len() > MAX_PREVIOUS {
        bail!(
            "the policy in the cluster has more than {} KiB, and cannot be kept beside the new one: save it with \
             `policy show`, and change the ConfigMap with kubectl",
            MAX_PREVIOUS >> 10
        );
    }
    write!(output, "{}", printable_lines(&differences(found.policy(), text)))?;
    for warning in policy.warnings() {
        writeln!(output, "Warning: {}", printable(&warning.to_string()))?;
    }
    if let Some(owner) = found.owner() {
        writeln!(output, "Warning: {}", printable(&owner))?;
    }
    if flags.dry_run {
        writeln!(output, "Nothing was changed (--dry-run).")?;
        return Ok(ExitCode::SUCCESS);
    }
    output.flush()?;
    if !flags.yes && !confirmed(output)? {
        writeln!(output, "Nothing was changed.")?;
        return Ok(ExitCode::FAILURE);
    }
    let version = &found.metadata.resource_version;
    let annotations = json!({PREVIOUS: found.policy(), WRITTEN: checksum(text)});
    let metadata = json!({"resourceVersion": version, "annotations": annotations});
    let patch = json!({"metadata": metadata, "data": {KEY: text}}).to_string();
    let namespace = format!("--namespace={}", map.namespace);
    // As a word it could be too long for Linux.
    let by_word = format!("--patch={patch}");
    let how = if cfg!(windows) { by_word.as_str() } else { "--patch-file=/dev/stdin" };
    let words = ["patch", "configmap", &map.name, &namespace, "--type=merge", how];
    cluster.kubectl().run_with(&words, &patch)?;
    writeln!(
        output,
        "Changed. Extender and annotator read it within about a minute; `policy show --effective` shows what the extender \
         decides by, `policy rollback` goes back."
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Asks. Without a terminal that is no.
fn confirmed(output: &mut dyn Write) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        bail!(
            "stdin is no terminal to ask on: give --yes to change the policy, or --dry-run to look"
        );
    }
    write!(output, "Put it in force? [y/N] ")?;
    output.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_policy_counts_only_while_the_one_after_it_is_in_force() {
        let map = |policy: &str| -> ConfigMap {
            serde_json::from_value(json!({
                "metadata": {"annotations": {PREVIOUS: "old", WRITTEN: checksum("new")}},
                "data": {KEY: policy},
            }))
            .unwrap()
        };
        assert_eq!(previous(&map("new")).unwrap(), "old");
        let error = previous(&map("other")).unwrap_err().to_string();
        assert!(error.contains("changed by something else"), "{error}");
        let error = previous(&ConfigMap::default()).unwrap_err().to_string();
        assert!(error.contains("no former policy is recorded"), "{error}");
    }

    #[test]
    fn who_else_writes_it_is_told() {
        let with = |metadata: serde_json::Value| -> Option<String> {
            let map: ConfigMap = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            map.owner()
        };
        let helm = with(json!({"annotations": {"meta.helm.sh/release-name": "plimsoll"}}));
        assert!(helm.unwrap().contains("helm rollback plimsoll"));
        let argo = with(json!({"labels": {"argocd.argoproj.io/instance": "x"}}));
        assert!(argo.unwrap().starts_with("Argo CD"));
        let flux = with(json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}}));
        assert!(flux.unwrap().starts_with("Flux (x)"));
        let applied = with(json!({"annotations": {LAST_APPLIED: "{}"}}));
        assert!(applied.unwrap().starts_with("`kubectl apply` has it"));
        assert_eq!(with(json!({})), None);
    }
}
