//! `plimsoll scheduler`: joins kube-scheduler to Plimsoll on a kubeadm control-plane node, and takes it out again.
//!
//! Invariant: nothing on a node or in the cluster is changed before all that can fail without a change has been done.

mod certificates;
mod configuration;
mod files;
mod kubeadm;
mod manifest;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use jiff::{Timestamp, ToSpan};

use self::certificates::Plimsoll;
use self::configuration::Given;
use self::files::Files;
use self::kubeadm::Stored;
use self::manifest::{CURRENT, CommandLine, FOLDER, State, has_all_marks, with_us, without_us};
use crate::args::access::Connection;
use crate::args::scheduler::{ControlPlaneNode, Disable, Enable, SchedulerCommand, Status};
use crate::cluster_access::Kubectl;
use crate::doctor::certificates::end_of;
use crate::format::{differences, printable, printable_lines};

/// The configuration for the policy that is shipped.
const SHIPPED: &str = include_str!("../../../deploy/chart/kube-scheduler/shipped.yaml");
/// How long before its end a certificate is warned of, in hours.
const WARNED: i64 = 30 * 24;

/// Runs one of the commands.
///
/// # Errors
///
/// Where it cannot do its work; says what to do, and that nothing was changed where that is so.
pub(crate) fn scheduler(command: &SchedulerCommand, output: &mut dyn Write) -> Result<ExitCode> {
    match command {
        SchedulerCommand::Enable(flags) => enable(flags, output)?,
        SchedulerCommand::Disable(flags) => disable(flags, output)?,
        SchedulerCommand::Certificates(flags) => certificates::certificates(flags, output)?,
        SchedulerCommand::Status(flags) => {
            return status(flags, output).or_else(|error| {
                writeln!(io::stderr(), "error: {}", printable_lines(&format!("{error:#}")))?;
                Ok(ExitCode::from(2))
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn enable(flags: &Enable, output: &mut dyn Write) -> Result<()> {
    let dry_run = flags.dry_run;
    let files = of_node(&flags.node)?;
    let before = without_us(&files.manifest);
    let given = given(flags.config.as_deref())?;
    let plimsoll = &Plimsoll { kubectl: &admin(&flags.node), namespace: &flags.node.namespace };
    let checked = CommandLine::of(&before).and_then(|it| given.check(&it).map(|()| it));
    let command = checked.map_err(|why| by_hand(&why, &files, &given, plimsoll))?;
    ensure!(
        given.calls_by("http") || given.calls_by("https"),
        "{}: no urlPrefix names {}, or port 19100 of another address. `plimsoll scheduler-config` writes one that does",
        given.name,
        plimsoll.server_name()
    );
    let upgrades = upgrades(&flags.node, plimsoll.kubectl)?;
    let host = flags.extender_host.clone().map_or_else(|| plimsoll.address(), Ok)?;
    let is_told = given.calls_by("https") || flags.tls;
    let has_tls = is_told || !flags.plain_http && plimsoll.asks_for_certificates()?;
    let mut certificate = Vec::new();
    if has_tls {
        plimsoll.ensure_secrets(dry_run, output)?;
        certificate = plimsoll.certificate()?;
    }
    if let Some(own) = certificate.get(1) {
        tell_end(own, plimsoll.namespace, output)?;
    }
    let server_name = has_tls.then(|| plimsoll.server_name());
    let configuration = given.on(&host, server_name.as_deref(), certificate.first(), &command);
    let path = configuration::path_of(&configuration);
    // Or kube-scheduler would be restarted for nothing.
    let of_kubeadm = State::of(&files.manifest) == State::OfKubeadm;
    let stays = of_kubeadm && files.has(&path, &configuration, &[]);
    let manifest = if stays { files.manifest.clone() } else { with_us(&before, &path) };
    if manifest == files.manifest && files.has(&path, &configuration, &certificate) {
        writeln!(output, "Already enabled: there is nothing to change on this node.")?;
    } else if dry_run {
        let changes = differences(&files.manifest, &manifest) + &differences("", &configuration);
        write!(output, "{}", printable_lines(&changes))?;
    } else {
        files.install(&manifest, &path, &configuration, &certificate)?;
        let soon = "the kubelet restarts kube-scheduler within a minute";
        writeln!(output, "Enabled, with the extender at {host}: {soon}.")?;
        if command.has_proxy() {
            let proxy = "kube-scheduler has a proxy set; its no_proxy must cover";
            writeln!(output, "Warning: {proxy} {host}.")?;
        }
    }
    // Only now does this node have what the ConfigMap is to name.
    if let Some((node, stored)) = upgrades {
        let change = |stored: &Stored| stored.with(&node);
        let (_, after) = stored.update(change, plimsoll.kubectl, dry_run, output)?;
        let told = after.told();
        if !dry_run || told.starts_with("Warning") {
            writeln!(output, "{told}")?;
        }
    }
    Ok(())
}

fn disable(flags: &Disable, output: &mut dyn Write) -> Result<()> {
    let files = of_node(&flags.node)?;
    let kubectl = &admin(&flags.node);
    // Before the folder goes: an upgrade at any moment finds what it names.
    if let Some((node, stored)) = upgrades(&flags.node, kubectl)? {
        ensure!(
            !stored.names_us_otherwise(),
            "the ConfigMap kube-system/kubeadm-config names {FOLDER} in a form that this command has not written, and \
             kube-scheduler would not start without that after kubeadm upgrade. Nothing was changed. Take it out of the \
             ClusterConfiguration by hand first"
        );
        let change = |stored: &Stored| stored.without(&node);
        let (before, after) = stored.update(change, kubectl, flags.dry_run, output)?;
        if before.names_us() && !flags.dry_run {
            let map = "the ConfigMap kube-system/kubeadm-config";
            writeln!(output, "Took the configuration out of {map}.")?;
        }
        if !after.enabled.is_empty() {
            writeln!(
                output,
                "Warning: these control-plane nodes are still enabled, and kubeadm upgrade takes Plimsoll out there: {}. \
                 Run disable there too, or enable here again.",
                printable(&after.enabled.join(" "))
            )?;
        }
    }
    let manifest = without_us(&files.manifest);
    let is_out = manifest == files.manifest;
    if is_out {
        writeln!(output, "Not enabled: there is nothing to restore.")?;
    }
    if flags.dry_run {
        write!(output, "{}", printable_lines(&differences(&files.manifest, &manifest)))?;
    } else if is_out {
        files.remove_folder()?;
    } else {
        writeln!(output, "Disabled; {}.", files.restore(&manifest)?)?;
    }
    Ok(())
}

fn status(flags: &Status, output: &mut dyn Write) -> Result<ExitCode> {
    let files = Files::of(&flags.node)?;
    let stored = (!flags.node.no_kubeadm_config).then(|| Stored::read(&admin(&flags.node)));
    let enabled = match State::of(&files.manifest) {
        State::Enabled(path) => path,
        State::OfKubeadm if files.at(CURRENT).exists() => {
            format!("{CURRENT}, in a manifest that kubeadm wrote")
        }
        state => {
            let is_named = stored.is_some_and(|it| it.is_ok_and(|stored| stored.names_us()));
            let told = match state {
                State::OfKubeadm => "the manifest names, as kubeadm wrote it,",
                _ if is_named => "after kubeadm upgrade the manifest names",
                _ => "",
            };
            writeln!(output, "Not enabled.")?;
            if !told.is_empty() {
                let fault = "which is not there: kube-scheduler does not start on this node";
                writeln!(output, "Warning: {told} {CURRENT}, {fault}. Run enable.")?;
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    let certificate = files.certificate("tls.crt");
    if !certificate.is_empty() && tell_end(&certificate, &flags.node.namespace, output)? {
        return Ok(ExitCode::FAILURE);
    }
    writeln!(output, "Enabled: {}.", printable(&enabled))?;
    match stored {
        Some(Ok(stored)) => writeln!(output, "{}", stored.told())?,
        Some(Err(failure)) => {
            let what = "What kubeadm upgrade does cannot be told: kubeadm-config cannot be read";
            writeln!(output, "{what}: {}", printable_lines(&failure.to_string()))?;
        }
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The node's files, all our lines of which are known.
fn of_node(flags: &ControlPlaneNode) -> Result<Files> {
    let files = Files::of(flags)?;
    ensure!(
        has_all_marks(&files.manifest),
        "{} names {FOLDER} in lines that no longer end in \"# plimsoll\". Nothing was changed. Take those lines out by hand, \
         or put back {}",
        files.path.display(),
        files.backup().display()
    );
    Ok(files)
}

fn given(file: Option<&Path>) -> Result<Given> {
    let Some(file) = file else {
        return Given::new("the configuration that is shipped".to_owned(), SHIPPED.to_owned());
    };
    let name = file.display().to_string();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    Given::new(name, text)
}

/// Which part of the usual manifest this one lacks, and how to do the work by hand.
fn by_hand(
    why: &anyhow::Error,
    files: &Files,
    given: &Given,
    plimsoll: &Plimsoll<'_>,
) -> anyhow::Error {
    let (namespace, server_name) = (plimsoll.namespace, plimsoll.server_name());
    anyhow!(
        "{}: {why:#}\n\
         Nothing was changed. To merge by hand:\n  \
         1. put the extender's address in place of {server_name} in {} (`plimsoll scheduler-config` writes it, with --address);\n     \
         if kube-scheduler already has a configuration, merge \"extenders\" into it, and \"percentageOfNodesToScore\" if \
         it is there;\n  \
         2. put the files of the Secret {namespace}/kube-scheduler-tls where the configuration names them;\n  \
         3. give kube-scheduler the flag --config=FILE, and its pod a hostPath volume with the folder of these files.",
        files.path.display(),
        given.name,
    )
}

/// kubectl, as the administrator.
fn admin(flags: &ControlPlaneNode) -> Kubectl {
    kubectl(flags, &flags.kubeconfig)
}

/// kubectl, with a configuration of the node.
fn kubectl(flags: &ControlPlaneNode, kubeconfig: &str) -> Kubectl {
    let file = files::below(&flags.root, Path::new(kubeconfig));
    let kubeconfig = Some(file.to_string_lossy().into_owned());
    Kubectl::new(&Connection { kubeconfig, ..Connection::default() })
}

/// This node's name, and the ConfigMap that kubeadm upgrade reads. Before anything is changed.
fn upgrades(flags: &ControlPlaneNode, administrator: &Kubectl) -> Result<Option<(String, Stored)>> {
    if flags.no_kubeadm_config {
        return Ok(None);
    }
    let stored = Stored::read(administrator).context(
        "cannot read the ConfigMap kube-system/kubeadm-config and the control-plane nodes: see --kubeconfig, or give \
         --no-kubeadm-config. Nothing was changed",
    )?;
    let name = match &flags.node {
        Some(name) => name.clone(),
        None if stored.is_there() => name_of_node(flags)?,
        None => String::new(),
    };
    Ok(Some((name, stored)))
}

/// The kubelet may go by another name than the host.
fn name_of_node(flags: &ControlPlaneNode) -> Result<String> {
    let words = ["auth", "whoami", "--output=jsonpath={.status.userInfo.username}"];
    let user = kubectl(flags, "/etc/kubernetes/kubelet.conf").run(&words).unwrap_or_default();
    let name = user.trim().strip_prefix("system:node:").filter(|name| !name.is_empty());
    name.map(str::to_owned).context(
        "cannot tell this node's name from /etc/kubernetes/kubelet.conf: give --node NAME. Nothing was changed",
    )
}

/// Warns of a certificate that ends soon, and returns whether it has ended.
fn tell_end(certificate: &[u8], namespace: &str, output: &mut dyn Write) -> Result<bool> {
    let now = Timestamp::now();
    let end = end_of(certificate);
    if end.is_none_or(|end| end < now + WARNED.hours()) {
        let when = end.map_or("a time that cannot be read".to_owned(), |end| end.to_string());
        writeln!(
            output,
            "Warning: kube-scheduler's certificate ends at {when}: renew the Secret {namespace}/kube-scheduler-tls, then run \
             enable on each control-plane node."
        )?;
    }
    Ok(end.is_none_or(|end| end <= now))
}
