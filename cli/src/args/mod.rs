//! The flags. Those of one subject are a module; this one has the commands, and the flags about files of policies.

pub(crate) mod access;
pub(crate) mod convert;
pub(crate) mod gpus;
pub(crate) mod operate;
pub(crate) mod pods;
#[cfg(unix)]
pub(crate) mod scheduler;
pub(crate) mod stored_policy;

use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};
use placement::names::{is_of_label, limits};

/// See what Plimsoll knows of a cluster, why pods are where they are, and what is wrong.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
It reaches the cluster by kubectl, with kubectl's context and login, and forwards the extender's port for itself.
Installed as kubectl-plimsoll on the PATH, this is also `kubectl plimsoll`.
Exit status: 0 done, 1 the answer is an error, 2 wrong flags.";

impl Args {
    /// As given. Help and wrong flags end the process.
    pub(crate) fn of_command_line() -> Self {
        let mut line = Self::with_early_flags();
        if std::env::args_os().next().is_some_and(|program| is_kubectl_plugin(&program)) {
            line = line.bin_name("kubectl plimsoll");
        }
        let parsed = Self::from_arg_matches(&line.clone().get_matches());
        parsed.unwrap_or_else(|error| error.format(&mut line).exit())
    }

    /// The flags of the cluster can stand before the command too, as kubectl's. There they are in no help: each
    /// command's own help has those that it takes.
    fn with_early_flags() -> clap::Command {
        let access = access::Access::augment_args(clap::Command::new("access"));
        let early = |flag: &clap::Arg| flag.clone().global(true).hide(true);
        Self::command().args(access.get_arguments().map(early))
    }
}

/// kubectl starts the plugin `plimsoll` by the name `kubectl-plimsoll`.
fn is_kubectl_plugin(program: &OsStr) -> bool {
    Path::new(program).file_stem().is_some_and(|name| name == "kubectl-plimsoll")
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell whether Plimsoll is installed, wired and healthy.
    ///
    /// Each check is a line: what was looked at, what is wrong, and behind `->` what to do. It reads objects by
    /// kubectl, and the metrics of extender and annotator by port-forwards. It changes nothing.
    Doctor(operate::Doctor),
    /// Tell why a pod is where it is, or why it waits.
    ///
    /// For a pod that has a node these are the readings and GPUs that it was decided by, as the extender keeps them
    /// for the last thousand pods. For a pod that waits they are those of this moment. The best nodes stand first, and
    /// the pod's own is marked with `*`; below them the nodes that lack least. kube-scheduler adds the points of its
    /// own plugins to these scores.
    ///
    /// What is shown of this moment, as with -f and --fresh, is load and GPUs alone: kube-scheduler's own plugins
    /// look at taints, affinity, CPU and memory.
    ///
    /// Where Plimsoll is installed without an extender: the nodes by the band that the pod prefers.
    Why(pods::Why),
    /// Show every pod that waits, and why, grouped by workload.
    ///
    /// WHY is what the extender decided, with the number of nodes, or why it was not asked. FITS IF is what would have
    /// to change at the node where that is least.
    Pending(pods::Pending),
    /// Show the hottest nodes, the pods that hold most, the fullest GPUs.
    #[command(subcommand)]
    Top(gpus::Top),
    /// Show GPUs, who holds what of each, and what still fits.
    ///
    /// In units of the GPU memory resource, as the extender that leads counts them, with the GPUs of pods that are
    /// being bound. A pod whose GPU is unknown counts on every GPU of its node.
    Gpus(gpus::Gpus),
    /// The former name of `gpus`; with --json the answer of the inspect API.
    #[command(hide = true)]
    Inspect(gpus::Inspect),
    /// Tell how many more GPU pods of a size fit, by model and in all.
    ///
    /// As many as Filter would accept one after the other, by GPUs alone: CPU, memory, taints and load may let fewer
    /// pods in. `why -f FILE` tells of one pod, by load and GPUs.
    Capacity(gpus::Capacity),
    /// Propose the fewest moves that make room for a pod with one or several GPUs.
    ///
    /// A move is an eviction of a pod whose successor fits elsewhere, by the GPUs, resources, taints and labels of all
    /// nodes. Nothing is evicted. The extender's flag --move-for-cards has pods moved by such plans for a pod that
    /// waits, and keeps the GPUs for it.
    Defragment(gpus::Defragment),
    /// Show what Plimsoll's programs told by events, the newest last.
    Events(pods::Events),
    /// Check, convert, show and change load policies.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Write manifests of pods with GPU units as manifests of pods with resource claims.
    ///
    /// Reads Pods, Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and Lists of them. Units and
    /// annotations become ResourceClaimTemplates (Kubernetes 1.36) and spec.resourceClaims, for nodes whose label
    /// plimsoll.dev/gpu-mode is `claims`. What a claim cannot say is a warning on stderr. If one document is at fault,
    /// nothing is written.
    Convert(convert::ConvertManifests),
    /// Have a GPU take no new pods.
    ///
    /// Writes its UUID into the Node's annotation plimsoll.dev/cordoned-gpus, which the device plugin follows. Pods
    /// that are on the GPU go on.
    Cordon(gpus::Cordon),
    /// Have a GPU take pods again.
    Uncordon(gpus::Cordon),
    /// Show the nodes that carry a taint for their load, and clear it.
    ///
    /// An annotator with --taint-hot-nodes sets these taints, and one without it clears them. This is for when none
    /// runs any more, as after Plimsoll was removed.
    Taints(operate::Taints),
    /// Have a kubeadm control plane's kube-scheduler call the extender, and take it out again.
    #[cfg(unix)]
    #[command(subcommand)]
    Scheduler(scheduler::SchedulerCommand),
    /// Write the KubeSchedulerConfiguration that a policy needs.
    ///
    /// The extender's entry has only the verbs that do work under the policy: no filter without limits and namespaces,
    /// no prioritize without weights. Its weight goes with the policy's scale. kube-scheduler looks at every node only
    /// where it has to: with --gpu, hard limits, limits with `reject`, or namespaces.
    SchedulerConfig(SchedulerConfig),
    /// Open the extender's web page, through a port-forward that lasts until Ctrl-C.
    Ui(operate::Ui),
    /// Show the versions of this command and of Plimsoll's programs in the cluster.
    Version(operate::Version),
    /// Write an archive of what a report of a fault needs, without secrets.
    ///
    /// Versions, Plimsoll's objects, the nodes' readings and GPUs, events, logs, metrics, the extender's state and
    /// what `doctor` finds. Secrets are never read, and what looks like a token or a password is blanked.
    SupportBundle(operate::SupportBundle),
    /// Write a shell's completion.
    Completion(operate::Completion),
    /// The former name of `why`.
    #[command(subcommand, hide = true)]
    Explain(ExplainCommand),
    /// What the last of these words can be, for kubectl's completion.
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        /// The words behind `kubectl plimsoll`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExplainCommand {
    /// Tell why a pod is where it is, or why it waits.
    Pod(pods::Why),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Check a load policy, and show what it amounts to.
    ///
    /// The file is read as the annotator and the extender read it: a SchedulingPolicy, or crane-scheduler's
    /// DynamicSchedulerPolicy, the content of `policy.yaml` in the ConfigMap. All defaults are filled in. A faulty
    /// policy is refused with the line and the field, and exit status 1.
    ///
    /// Likely mistakes that the programs accept are warnings on stderr, such as a limit that no usage can reach.
    Check(CheckPolicy),
    /// Write a policy of crane-scheduler as a SchedulingPolicy that decides the same.
    ///
    /// Every field is written, with its default where crane has none. Comments above say what to consider changing. A
    /// SchedulingPolicy is written with all its defaults.
    Convert(Convert),
    /// Write the JSON schema of the SchedulingPolicy, for editors and pipelines.
    Schema,
    /// Show the policy in the cluster.
    Show(stored_policy::Show),
    /// Check a policy and put it in force, and keep the one before for `policy rollback`.
    Apply(stored_policy::Apply),
    /// Go back to the policy before the last `policy apply`.
    ///
    /// That one is kept in an annotation of the ConfigMap. Where something else has changed the policy since, as Helm
    /// or a GitOps tool, there is no record of what was before it, and this says so.
    Rollback(stored_policy::Rollback),
    /// Show where the pods of the last hour would have gone under the shadow policy.
    ///
    /// The shadow policy is a second one that the extender decides by without effect (its flag --shadow-policy-file).
    /// For each pod this shows the node that it went to and the nodes that are best under either policy. Both decided
    /// on the same readings; kube-scheduler adds the points of its own plugins, so that a pod need not go to a best
    /// node.
    Diff(Diff),
}

/// Flags of `policy check`.
#[derive(Debug, Parser)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckPolicy {
    /// The policy; `-` reads stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Write one JSON object for programs, also where the policy is refused.
    #[arg(long)]
    pub(crate) json: bool,

    /// Exit status 1 on a warning too.
    #[arg(long)]
    pub(crate) warnings_as_errors: bool,

    /// What the annotator takes readings from: a metric that this cannot give is a warning.
    #[arg(long, value_enum, default_value_t = Source::Exporters, value_name = "SOURCE")]
    pub(crate) source: Source,

    /// The annotator's file of the same flag, with the queries that Prometheus is asked. Without it, it is asked those
    /// for node_exporter's metrics.
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus_queries_file: Option<PathBuf>,
}

/// What the annotator takes readings from, by its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Source {
    /// node-exporter-plus on each node: without one of the two flags below.
    Exporters,
    /// A Prometheus: --prometheus-url.
    Prometheus,
    /// metrics-server: --metrics-server.
    MetricsServer,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  # Before it is applied
  plimsoll policy check policy.yaml

  # In a pipeline that is to stop at a warning
  plimsoll policy check --warnings-as-errors policy.yaml

  # Where the annotator runs with --prometheus-url
  plimsoll policy check --source prometheus --prometheus-queries-file queries.json policy.yaml

  # The one in the cluster
  plimsoll policy show | plimsoll policy check -";

/// Flags of `policy convert`.
#[derive(Debug, Parser)]
pub(crate) struct Convert {
    /// The policy; `-` reads stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Flags of `scheduler-config`.
#[derive(Debug, Parser)]
#[command(after_help = SCHEDULER_CONFIG_EXAMPLES)]
pub(crate) struct SchedulerConfig {
    /// The policy; `-` reads stdin.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: PathBuf,

    /// For the kube-scheduler that Plimsoll runs in the cluster (the chart's scheduler.mode second).
    ///
    /// It schedules the pods that name plimsoll-scheduler in spec.schedulerName, has a Lease of its own, and reaches
    /// the extender by the Service's name over TLS.
    #[arg(long, conflicts_with_all = ["address", "certificates", "kubeconfig"])]
    pub(crate) in_cluster: bool,

    /// The namespace that Plimsoll is in.
    #[arg(long, default_value = "plimsoll", value_name = "NAME", value_parser = namespace)]
    pub(crate) namespace: String,

    /// Where kube-scheduler reaches the extender, and whether by TLS. `plimsoll scheduler enable` puts the Service's
    /// address in place of its name, which kube-scheduler on the host's network cannot resolve, and https where the
    /// extender has certificates [default: port 19100 of scheduler-extender.NAMESPACE.svc, by http]
    #[arg(long, value_name = "URL", value_parser = verbs_url)]
    pub(crate) address: Option<String>,

    /// Where kube-scheduler has the files of the Secret kube-scheduler-tls: ca.crt, tls.crt and tls.key. For https.
    #[arg(
        long,
        default_value = "/etc/kubernetes/plimsoll",
        value_name = "FOLDER",
        value_parser = absolute_path
    )]
    pub(crate) certificates: String,

    /// The file by which kube-scheduler reaches the API server.
    #[arg(
        long,
        default_value = "/etc/kubernetes/scheduler.conf",
        value_name = "FILE",
        value_parser = absolute_path
    )]
    pub(crate) kubeconfig: String,

    /// Another name that pods may have in spec.schedulerName, beside the scheduler's own. It can be given several
    /// times. With crane-scheduler, pods of crane-scheduler need no edit.
    #[arg(long = "scheduler-name", value_name = "NAME", value_parser = scheduler_name)]
    pub(crate) scheduler_names: Vec<String>,

    /// With the entry for pods that ask for GPU memory.
    #[arg(long)]
    pub(crate) gpu: bool,

    /// The configuration that kube-scheduler has so far, into which this one is to be merged. A profile of it that
    /// packs nodes, while the policy spreads pods by load, is warned of.
    #[arg(long, value_name = "FILE")]
    pub(crate) beside: Option<PathBuf>,
}

const SCHEDULER_CONFIG_EXAMPLES: &str = "\
Examples:
  # The configurations that are shipped
  plimsoll scheduler-config --policy deploy/chart/policies/shipped.yaml --gpu
  plimsoll scheduler-config --policy deploy/chart/policies/shipped.yaml    # without GPU nodes

  # On a kubeadm control plane
  plimsoll scheduler-config --policy policy.yaml --gpu > kube-scheduler-config.yaml
  plimsoll scheduler enable --config kube-scheduler-config.yaml

  # After a move from crane-scheduler, whose pods name it
  plimsoll scheduler-config --policy policy.yaml --gpu --scheduler-name crane-scheduler \\
    > kube-scheduler-config.yaml

  # For a kube-scheduler that is set up by hand, as RKE2's
  plimsoll scheduler-config --policy policy.yaml --gpu --address https://10.96.3.4:19100 \\
    --kubeconfig /var/lib/rancher/rke2/server/cred/scheduler.kubeconfig

  # For the one in the cluster, without access to the control plane
  plimsoll scheduler-config --policy policy.yaml --gpu --in-cluster > kube-scheduler-config.yaml
  helm upgrade ... --set-file scheduler.configuration=kube-scheduler-config.yaml";

/// Flags of `policy diff`.
#[derive(Debug, Parser)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct Diff {
    #[command(flatten)]
    pub(crate) query: access::Query,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  # Where pods of the last hour would have gone
  kubectl plimsoll policy diff

  # Pods for which the shadow policy has no node at all
  kubectl plimsoll policy diff -o json | jq '.pods[] | select(.shadow.bestNodes == 0) | .pod'";

/// The base URL of the extender's read-only port, without a slash at its end.
fn extender_url(text: &str) -> Result<String, String> {
    let expected = "expected http://HOST:PORT: the extender speaks plain HTTP";
    base_url(text, "http://").ok_or_else(|| expected.to_owned())
}

/// The base URL of the extender's verbs, without a slash at its end.
fn verbs_url(text: &str) -> Result<String, String> {
    let url = base_url(text, "https://").or_else(|| base_url(text, "http://"));
    url.ok_or_else(|| "expected https://HOST:PORT, or http:// without certificates".to_owned())
}

/// A URL that is this scheme and an authority, without a slash at its end.
fn base_url(text: &str, scheme: &str) -> Option<String> {
    let authority = text.strip_prefix(scheme)?.trim_end_matches('/');
    is_authority(authority).then(|| format!("{scheme}{authority}"))
}

/// The name of a namespace. It becomes a part of a line of YAML, as what the functions below take does.
fn namespace(text: &str) -> Result<String, String> {
    label(text).ok_or_else(|| "expected the name of a namespace".to_owned())
}

/// The name of a scheduler.
fn scheduler_name(text: &str) -> Result<String, String> {
    let expected = "expected small letters, digits and `-`, as in crane-scheduler";
    label(text).ok_or_else(|| expected.to_owned())
}

fn label(text: &str) -> Option<String> {
    let fits = (1..=limits::LABEL).contains(&text.len()) && text.bytes().all(is_of_label);
    (fits && !text.starts_with('-') && !text.ends_with('-')).then(|| text.to_owned())
}

/// An absolute path without a slash at its end, of letters, digits and `/._-`.
fn absolute_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    if path.starts_with('/') && path.bytes().all(is_of_path) {
        Ok(path.to_owned())
    } else {
        Err("expected an absolute path of letters, digits and `/._-`".to_owned())
    }
}

fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)
}

/// Whether it is a host, and a port where it has one. It becomes a line of YAML, so nothing else may be in it.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let host_fits = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_of_name),
    };
    host_fits && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Args::with_early_flags().debug_assert();
    }

    #[test]
    fn an_address_is_a_host_and_a_port_and_nothing_that_yaml_reads_otherwise() {
        for good in ["http://h:1", "http://h", "http://h:1/", "http://[::1]:1", "http://10.0.0.1"] {
            let wanted = good.trim_end_matches('/');
            assert_eq!(extender_url(good).as_deref(), Ok(wanted), "{good}");
            assert_eq!(verbs_url(good).as_deref(), Ok(wanted), "{good}");
            let secure = good.replace("http:", "https:");
            assert_eq!(verbs_url(&secure), Ok(wanted.replace("http:", "https:")), "{secure}");
        }
        for wrong in [
            "http://h:1 #x",
            "http://h:1\n- x",
            "http://h: 1",
            "http://h\":1",
            "http://h{}:1",
            "http://h:99999",
            "http://u@h:1",
            "http://",
            "http://:1",
            "http://h/x",
        ] {
            let secure = wrong.replace("http:", "https:");
            for wrong in [wrong, &secure] {
                assert!(extender_url(wrong).is_err(), "{wrong:?}");
                assert!(verbs_url(wrong).is_err(), "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_namespace_and_a_path_are_nothing_that_yaml_reads_otherwise() {
        assert_eq!(namespace("gpu-1").as_deref(), Ok("gpu-1"));
        for wrong in ["", "a b", "a:", "-a", "a-", "A", "a\nb", "a.b", &"a".repeat(64)] {
            assert!(namespace(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(absolute_path("/etc/k3s.d/p_1-a/").as_deref(), Ok("/etc/k3s.d/p_1-a"));
        for wrong in ["", "/", "etc", "/a b", "/a: b", "/a #b", "/a\nb", "/\"a"] {
            assert!(absolute_path(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_kubectls_name_makes_a_plugin() {
        for (program, plugin) in
            [("/usr/bin/kubectl-plimsoll", true), ("kubectl-plimsoll", true), ("./plimsoll", false)]
        {
            assert_eq!(is_kubectl_plugin(OsStr::new(program)), plugin, "{program}");
        }
    }

    #[test]
    fn the_extender_is_a_host_behind_plain_http() {
        assert_eq!(extender_url("http://[::1]:19100/").as_deref(), Ok("http://[::1]:19100"));
        for text in ["https://a:1", "a:1", "http://", "http://a/b", ""] {
            assert!(extender_url(text).is_err(), "{text}");
        }
    }
}
