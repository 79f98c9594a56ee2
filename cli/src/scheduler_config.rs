//! `plimsoll scheduler-config`: the KubeSchedulerConfiguration that a policy needs.
//!
//! Invariant: an entry has only the verbs that do work under the policy, since each costs scheduling throughput. The
//! files of kube-scheduler's configuration in `deploy/`, those of the chart included, are what this writes.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use placement::policy::{LoadPolicy, Scale};

use crate::args::SchedulerConfig;
use crate::policy::parsed;

/// Writes the KubeSchedulerConfiguration.
///
/// # Errors
///
/// Where the policy cannot be read, or is faulty; where kube-scheduler cannot have a name that is given.
pub(crate) fn scheduler_config(
    flags: &SchedulerConfig,
    output: &mut dyn Write,
) -> Result<ExitCode> {
    check_names(flags)?;
    let policy = parsed(&flags.policy)?;
    write!(output, "{}", configuration(&policy, flags))?;
    if flags.address.is_none() && !flags.in_cluster {
        writeln!(io::stderr(), "{ADDRESS_OF_SCRIPT}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// kube-scheduler ends where two of its profiles have one name. The one in the cluster leaves pods that name no
/// scheduler to the provider's: two schedulers would place each of them.
fn check_names(flags: &SchedulerConfig) -> Result<()> {
    let names = &flags.scheduler_names;
    let own = if flags.in_cluster { OWN_NAME } else { DEFAULT_NAME };
    for (index, name) in names.iter().enumerate() {
        if name == own {
            bail!("--scheduler-name {name}: this is the scheduler's own name: leave the flag out");
        }
        if name == DEFAULT_NAME {
            bail!(
                "--scheduler-name {name}: these pods are those of the cluster's own kube-scheduler, and two would place \
                 each: leave the flag out"
            );
        }
        if names[..index].contains(name) {
            bail!("--scheduler-name {name} is given twice: leave one out");
        }
    }
    Ok(())
}

/// A name as YAML reads it as a text. kube-scheduler refuses a configuration where it reads a number, as `12` and
/// `1e3`, or one of the words of YAML 1.1.
fn yaml_text(name: &str) -> String {
    let is_word = ["false", "n", "no", "null", "off", "on", "true", "y", "yes"].contains(&name);
    if is_word || name.starts_with(|first: char| first.is_ascii_digit()) {
        format!("\"{name}\"")
    } else {
        name.to_owned()
    }
}

fn configuration(policy: &LoadPolicy, flags: &SchedulerConfig) -> String {
    let extender = Extender::of(flags);
    let gpu = flags.gpu.then(|| gpu_entry(policy, &extender));
    let entries: Vec<String> = [load_entry(policy, &extender), gpu].into_iter().flatten().collect();
    let none =
        " []\n# Under this policy Plimsoll has nothing to say to kube-scheduler.\n".to_owned();
    let entries = if entries.is_empty() { none } else { format!("\n{}", entries.concat()) };
    format!("{}{EVERY_NODE}extenders:{entries}", head(flags, &extender))
}

/// How kube-scheduler reaches the extender.
struct Extender {
    /// The base URL, without a slash at its end.
    url: String,
    /// The name in the extender's certificate.
    name: String,
    /// The folder of kube-scheduler's certificate.
    certificates: String,
}

impl Extender {
    fn of(flags: &SchedulerConfig) -> Self {
        let name = format!("scheduler-extender.{}.svc", flags.namespace);
        let scheme = if flags.in_cluster { "https" } else { "http" };
        let url = flags.address.clone().unwrap_or_else(|| format!("{scheme}://{name}:19100"));
        Self { url, name, certificates: flags.certificates.clone() }
    }

    fn has_tls(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// The first lines of the entry that leads to this path.
    fn lines(&self, path: &str) -> String {
        let Self { url, name, certificates } = self;
        let mut lines = format!("- urlPrefix: {url}/{path}\n");
        if self.has_tls() {
            lines += &format!(
                "  enableHTTPS: true\n  tlsConfig:\n    serverName: {name}\n    \
                 caFile: {certificates}/ca.crt\n    certFile: {certificates}/tls.crt\n    \
                 keyFile: {certificates}/tls.key\n"
            );
        }
        lines
    }
}

/// What stands before the number of nodes and the extender's entries.
fn head(flags: &SchedulerConfig, extender: &Extender) -> String {
    if flags.in_cluster {
        let lease = format!(
            "  resourceName: {OWN_NAME}\n  resourceNamespace: {}\n",
            yaml_text(&flags.namespace)
        );
        let others = profiles(&flags.scheduler_names);
        return format!("{OF_SECOND}{KIND}{OWN_LEASE}{lease}{PROFILE}{others}");
    }
    let comment = if extender.has_tls() { BY_HAND } else { OF_SCRIPT };
    let kubeconfig = &flags.kubeconfig;
    let whose = if kubeconfig == KUBEADMS { " This is kubeadm's file." } else { "" };
    format!(
        "{comment}{KIND}# With a configuration file the scheduler no longer reads its --kubeconfig flag.{whose}\n\
         clientConnection:\n  kubeconfig: {kubeconfig}\nleaderElection:\n  leaderElect: true\n{}",
        names_beside_the_default(&flags.scheduler_names)
    )
}

/// Nothing where kube-scheduler has its default name alone.
fn names_beside_the_default(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("{PROFILES}{}", profiles(names))
}

fn profiles(names: &[String]) -> String {
    names.iter().map(|name| format!("- schedulerName: {}\n", yaml_text(name))).collect()
}

/// The parts of the policy that need verbs of the extender.
struct Needs {
    /// Limits, or namespaces with nodes of their own.
    filter: bool,
    /// Weights.
    scores: bool,
}

impl Needs {
    fn of(policy: &LoadPolicy) -> Self {
        let mut pools = policy.pools.iter();
        let limited = !policy.limits.is_empty() || pools.any(|pool| !pool.limits.is_empty());
        let pools = policy.pools.iter().flat_map(|pool| &pool.weights);
        let scores = policy.weights.iter().chain(pools).any(|weight| weight.weight > 0.0);
        Self { filter: limited || !policy.namespaces.is_empty(), scores }
    }
}

/// The entry for all pods; `None` if the policy needs none.
fn load_entry(policy: &LoadPolicy, extender: &Extender) -> Option<String> {
    let Needs { filter, scores } = Needs::of(policy);
    let mut entry = format!("{LOAD}{}", extender.lines("load-aware"));
    if filter {
        entry += "  filterVerb: filter\n";
    }
    if scores {
        entry += "  prioritizeVerb: prioritize\n";
    }
    if filter {
        entry += PREEMPT_BY_LOAD;
    }
    if scores {
        entry += weight(policy.scoring.scale);
    }
    (filter || scores).then(|| entry + LOAD_END)
}

fn weight(scale: Scale) -> &'static str {
    if scale == Scale::TEN { WEIGHT_OF_TEN } else { WEIGHT_OF_HUNDRED }
}

/// The entry for pods that request GPU memory.
fn gpu_entry(policy: &LoadPolicy, extender: &Extender) -> String {
    let (comment, score) = if Needs::of(policy).scores {
        (GPU_SCORED_ABOVE, "")
    } else {
        (GPU_SCORED_HERE, "  prioritizeVerb: prioritize\n  weight: 3\n")
    };
    let lines = extender.lines("gpushare-scheduler");
    format!("{comment}{lines}  filterVerb: filter\n{score}{GPU_END}")
}

/// What pods name for the kube-scheduler in the cluster.
const OWN_NAME: &str = "plimsoll-scheduler";
/// What pods have that name no scheduler.
const DEFAULT_NAME: &str = "default-scheduler";

const KUBEADMS: &str = "/etc/kubernetes/scheduler.conf";

const ADDRESS_OF_SCRIPT: &str = "\
Warning: the address is the Service's name behind http://, for `plimsoll-scheduler enable`, which puts the Service's
address in its place and https with certificates. By hand, give --address https://ADDRESS:19100: the extender as
shipped speaks TLS alone.";

const OF_SCRIPT: &str = "\
# What kube-scheduler needs to know of Plimsoll. On a kubeadm control plane, `plimsoll-scheduler enable` installs
# this file with the Service's address in place of its name, and https with certificates in place of http; elsewhere, do so by
# hand (docs/install.md), and merge `extenders` and `percentageOfNodesToScore` into the configuration that the scheduler has.
# After a change of the policy's limits, weights, namespaces or scale: plimsoll scheduler-config --policy FILE
";

const BY_HAND: &str = "\
# What kube-scheduler needs to know of Plimsoll. Where it has a configuration, merge `extenders` and `percentageOfNodesToScore`
# into that (docs/schedulers.md).
# After a change of the policy's limits, weights, namespaces or scale: plimsoll scheduler-config --policy FILE
";

const OF_SECOND: &str = "\
# What the kube-scheduler that runs in the cluster beside the provider's needs to know of Plimsoll (docs/schedulers.md).
# After a change of the policy's limits, weights, namespaces or scale: plimsoll scheduler-config --in-cluster --policy FILE
";

const KIND: &str = "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
";

const OWN_LEASE: &str = "\
leaderElection:
  leaderElect: true
  # Its own. The provider's is kube-system/kube-scheduler, the default: who holds that one keeps the provider's from scheduling.
";

const PROFILE: &str = "\
profiles:
# The pods that name it in spec.schedulerName, and no others.
- schedulerName: plimsoll-scheduler
";

const PROFILES: &str = "\
profiles:
# The pods that name no scheduler, and those that name one of the others in spec.schedulerName.
- schedulerName: default-scheduler
";

const EVERY_NODE: &str = "\
# Look at every node. By default a cluster of 100 nodes or more shows extenders only a sample, and a pod stays
# pending when they reject all of that sample though another node would do.
percentageOfNodesToScore: 100
";

const LOAD: &str = "\
# Load, for every pod. A verb costs scheduling throughput whether or not it does work, so each entry has only
# the verbs that do under the policy.
";

const PREEMPT_BY_LOAD: &str = "  \
  # Keeps preemption from evicting pods of nodes that Filter would then reject.
  preemptVerb: preempt
";

const WEIGHT_OF_TEN: &str = "  \
  # kube-scheduler adds score (0 to 10) x weight x 10 to the 0 to 1400 points of its own plugins. With 3, load
  # moves a node by up to 300 points. That is what crane-scheduler's plugin has by default, and what
  # NodeResourcesFit, BalancedAllocation and ImageLocality have together, while affinities and taints that a
  # user asked for (200 to 300 points each) still count. From 15 on, an idle node beats them all.
  weight: 3
";

const WEIGHT_OF_HUNDRED: &str = "  \
  # kube-scheduler adds score (0 to 100) x weight x 10 to the 0 to 1400 points of its own plugins, and clamps
  # nothing. With 1, each percent of load moves a node by 10 points: 10% outweigh NodeResourcesFit or ImageLocality
  # (100 points each), 20% a preferred affinity or a topology spread (200), 30% a taint to be avoided (300).
  weight: 1
";

const LOAD_END: &str = "  \
  # Without an answer, pods schedule as if Plimsoll were not there: at most one time-out for each verb and pod.
  ignorable: true
  nodeCacheCapable: true
  httpTimeout: 500ms
";

const GPU_SCORED_ABOVE: &str = "\
# Cards, for the pods that ask for GPU memory. Their score is part of the entry above, so no prioritizeVerb.
";

const GPU_SCORED_HERE: &str = "\
# Cards, for the pods that ask for GPU memory.
";

const GPU_END: &str = "  \
  # Keeps preemption from evicting pods that free enough units on a node, but not on one card of it.
  preemptVerb: preempt
  bindVerb: bind
  # Never: a GPU pod that kube-scheduler bound by itself would have no card.
  ignorable: false
  nodeCacheCapable: true
  # Longer than the extender's --bind-timeout, so that a late binding is still reported as what it is.
  httpTimeout: 5s
  managedResources:
  - name: aliyun.com/gpu-mem
    # kube-scheduler keeps counting each node's total: it alone knows of pods that are not bound yet.
    ignoredByScheduler: false
";
