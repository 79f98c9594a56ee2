//! `plimsoll scheduler-config`: the KubeSchedulerConfiguration that a policy needs.
//!
//! Invariant: an entry has only the verbs that do work under the policy, and kube-scheduler looks at every node only
//! where the extender's answers need that, since each costs scheduling throughput. The files of kube-scheduler's
//! configuration in `deploy/`, those of the chart included, are what this writes.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use placement::policy::{
    Direction, Limit, LoadPolicy, Model, Scoring, Unknown, Weight, WhenAllOverloaded,
};

use crate::args::SchedulerConfig;
use crate::format::printable;
use crate::packing::packing_profiles;
use crate::policy::parsed;

/// Writes the KubeSchedulerConfiguration.
///
/// # Errors
///
/// Where the policy cannot be read, or is faulty; where kube-scheduler cannot have a name that is given.
pub(crate) fn scheduler_config(flags: &SchedulerConfig, output: &mut dyn Write) -> Result<()> {
    check_names(flags)?;
    let policy = parsed(&flags.policy)?;
    if let Some(file) = &flags.beside {
        warn_of_packing(&policy, file)?;
    }
    write!(output, "{}", configuration(&policy, flags))?;
    if flags.address.is_none() && !flags.in_cluster {
        writeln!(io::stderr(), "{ADDRESS_FOR_ENABLE}")?;
    }
    Ok(())
}

/// Warns of profiles that pack nodes in the configuration that kube-scheduler has so far.
fn warn_of_packing(policy: &LoadPolicy, file: &Path) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let packing = packing_profiles(&text)
        .with_context(|| format!("{} is no configuration of kube-scheduler", file.display()))?;
    if spreads_by_load(policy) {
        for profile in packing {
            writeln!(
                io::stderr(),
                "Warning: {} packs nodes, and the policy spreads pods by load: take one of the two (docs/autoscalers.md).",
                printable(&profile)
            )?;
        }
    }
    Ok(())
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
    let entries = match (load_entry(policy, &extender), gpu) {
        (None, None) => NO_ENTRIES.to_owned(),
        (load, gpu) => format!("\n{}{}", load.unwrap_or_default(), gpu.unwrap_or_default()),
    };
    format!("{}{}extenders:{entries}", head(flags, &extender), every_node(policy, flags.gpu))
}

/// The setting that has kube-scheduler look at every node; empty where its own sample does. It ends its search once so
/// many nodes suit a pod: 100 or more, 42% of 1,000 and 10% of 5,000. The extender is asked about these alone.
fn every_node(policy: &LoadPolicy, gpu: bool) -> String {
    let mut needed_for = Vec::new();
    // A node's units may fit a pod in sum, and on no GPU: kube-scheduler's own filters see the sum.
    if gpu {
        needed_for.push("GPUs");
    }
    // All of a sample can be over a limit. With soft limits its least loaded nodes take the pod then.
    let limits: Vec<&Limit> =
        policy.limits.iter().chain(policy.pools.iter().flat_map(|pool| &pool.limits)).collect();
    let is_hard = matches!(policy.overload.when_all, WhenAllOverloaded::Wait { .. });
    let limits_demand = policy.demand.all().any(|(_, rule)| rule.limit.is_some());
    if is_hard && (limits_demand || !limits.is_empty()) {
        needed_for.push("hard limits");
    }
    // Where no node of a sample is measured, soft limits let the pod go to one that is to be rejected.
    let rejects =
        |limit: &&Limit| [limit.when_missing, limit.when_stale].contains(&Unknown::Reject);
    if limits.iter().any(rejects) {
        needed_for.push("nodes that are rejected without a reading");
    }
    // None of a sample may be of the nodes that a namespace is restricted to.
    if !policy.namespaces.is_empty() {
        needed_for.push("the nodes of namespaces");
    }
    if needed_for.is_empty() {
        return String::new();
    }
    let what_for = needed_for.join(" and ");
    let few_gpus = if what_for == "GPUs" { FEW_GPU_NODES } else { "" };
    format!(
        "# Look at every node, for {what_for}.\n{EVERY_NODE}{few_gpus}percentageOfNodesToScore: 100\n"
    )
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
    fn entry(&self, path: &str) -> String {
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
    let mut others = String::new();
    for name in &flags.scheduler_names {
        others += &format!("- schedulerName: {}\n", yaml_text(name));
    }
    if flags.in_cluster {
        let namespace = yaml_text(&flags.namespace);
        let lease = format!("  resourceName: {OWN_NAME}\n  resourceNamespace: {namespace}\n");
        return format!("{OF_SECOND}{KIND}{OWN_LEASE}{lease}{PROFILE}{others}");
    }
    // Nothing where kube-scheduler has its default name alone.
    let profiles = if others.is_empty() { "" } else { PROFILES };
    let comment = if extender.has_tls() { BY_HAND } else { FOR_ENABLE };
    let kubeconfig = &flags.kubeconfig;
    let whose = if kubeconfig == KUBEADMS { " This is kubeadm's file." } else { "" };
    format!(
        "{comment}{KIND}# With a configuration file the scheduler no longer reads its --kubeconfig flag.{whose}\n\
         clientConnection:\n  kubeconfig: {kubeconfig}\nleaderElection:\n  leaderElect: true\n{profiles}{others}"
    )
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
        let weighs = |weights: &[Weight]| weights.iter().any(|weight| weight.weight > 0.0);
        Self {
            filter: !policy.limits.is_empty()
                || policy.pools.iter().any(|pool| !pool.limits.is_empty())
                || policy.demand.all().any(|(_, rule)| rule.limit.is_some())
                || !policy.namespaces.is_empty(),
            scores: weighs(&policy.weights)
                || policy.pools.iter().any(|pool| weighs(&pool.weights))
                || policy.demand.all().any(|(_, rule)| rule.weight > 0.0),
        }
    }
}

/// The entry for all pods; `None` if the policy needs none.
fn load_entry(policy: &LoadPolicy, extender: &Extender) -> Option<String> {
    let Needs { filter, scores } = Needs::of(policy);
    let mut entry = format!("{LOAD}{}", extender.entry("load-aware"));
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
        entry += &weight(&policy.scoring);
    }
    (filter || scores).then(|| entry + LOAD_END)
}

/// The weight, below what it makes of a score.
fn weight(scoring: &Scoring) -> String {
    let highest = scoring.scale.highest();
    let weight = weight_for(highest);
    let mut comment =
        if highest == 10 { WEIGHT_OF_TEN.to_owned() } else { points_of(scoring, highest) };
    if scoring.direction == Direction::Spread {
        comment += PACKING;
    }
    format!("{comment}  weight: {weight}\n")
}

/// What a score up to this is worth with the weight 1.
fn points_of(scoring: &Scoring, highest: u8) -> String {
    let costs = match scoring.model {
        Model::CraneLinear => "moves a node by",
        Model::AboveTypical => "above what is typical of the candidates costs a node",
    };
    let most = u32::from(highest) * POINTS_EACH;
    let each = f64::from(most) / 100.0;
    format!(
        "  # kube-scheduler adds score (0 to {highest}) x weight x 10 to the 0 to 1400 points of its own plugins, and \
         clamps nothing.\n  # With 1, each percent of load {costs} {each} points, {most} at most.\n{IN_TREE_POINTS}"
    )
}

/// Whether less loaded nodes get a higher score.
pub(crate) fn spreads_by_load(policy: &LoadPolicy) -> bool {
    Needs::of(policy).scores && policy.scoring.direction == Direction::Spread
}

/// The most points of kube-scheduler that the score by load gives, with the weight that is written for the policy.
pub(crate) fn most_points(policy: &LoadPolicy) -> u32 {
    let highest = policy.scoring.scale.highest();
    u32::from(highest) * weight_for(highest) * POINTS_EACH
}

/// What the extender's scores are multiplied with. 3 gives crane's scale of 10 the points that crane's plugin has.
fn weight_for(highest_score: u8) -> u32 {
    if highest_score == 10 { 3 } else { 1 }
}

/// The entry for pods that request GPU memory.
fn gpu_entry(policy: &LoadPolicy, extender: &Extender) -> String {
    let (comment, score) = if Needs::of(policy).scores {
        (GPU_SCORED_ABOVE, "")
    } else {
        (GPU_SCORED_HERE, "  prioritizeVerb: prioritize\n  weight: 3\n")
    };
    let lines = extender.entry("gpushare-scheduler");
    format!("{comment}{lines}  filterVerb: filter\n{score}{GPU_END}")
}

/// kube-scheduler's points for each of an extender's, at weight 1: its own go to 100, an extender's to 10.
pub(crate) const POINTS_EACH: u32 = 10;
/// What pods name for the kube-scheduler in the cluster.
const OWN_NAME: &str = "plimsoll-scheduler";
/// What pods have that name no scheduler.
const DEFAULT_NAME: &str = "default-scheduler";

const KUBEADMS: &str = "/etc/kubernetes/scheduler.conf";

const ADDRESS_FOR_ENABLE: &str = "\
Warning: the address is the Service's name behind http://, for `plimsoll scheduler enable`, which puts the Service's
address in its place and https with certificates. By hand, give --address https://ADDRESS:19100: the extender as
shipped speaks TLS alone.";

const FOR_ENABLE: &str = "\
# What kube-scheduler needs to know of Plimsoll. On a kubeadm control plane, `plimsoll scheduler enable` installs
# this file with the Service's address in place of its name, and https with certificates in place of http; elsewhere,
# do so by hand (docs/install.md), and merge `extenders`, and `percentageOfNodesToScore` if it is here, into the
# configuration that the scheduler has.
# After a change of the policy's limits, weights, namespaces or scale: plimsoll scheduler-config --policy FILE
";

const BY_HAND: &str = "\
# What kube-scheduler needs to know of Plimsoll. Where it has a configuration, merge `extenders` into that, and
# `percentageOfNodesToScore` if it is here (docs/schedulers.md).
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
# By default kube-scheduler shows extenders the first nodes that suit a pod otherwise (100 or more: 420 of 1,000, 500
# of 5,000). Where they reject all of these, a pod waits or goes to one of them, though another node would do.
";

/// Such a pod needs units, and no search ends before 100 nodes have enough of them.
const FEW_GPU_NODES: &str = "\
# With at most 100 GPU nodes leave it out: then all of them are looked at for a GPU pod, and fewer for the others.
";

const NO_ENTRIES: &str =
    " []\n# Under this policy Plimsoll has nothing to say to kube-scheduler.\n";

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
";

const IN_TREE_POINTS: &str = "  \
  # A taint to be avoided costs 300, a topology spread, preferred affinities of pods and of nodes have 200 each,
  # NodeResourcesFit and ImageLocality 100.
";

const PACKING: &str = "  \
  # A profile that packs nodes (NodeResourcesFit by MostAllocated) pulls the other way: docs/autoscalers.md.
";

const LOAD_END: &str = "  \
  # Without an answer, pods schedule as if Plimsoll were not there: at most one time-out for each verb and pod.
  ignorable: true
  nodeCacheCapable: true
  httpTimeout: 500ms
";

const GPU_SCORED_ABOVE: &str = "\
# GPUs, for the pods that ask for GPU memory. Their score is part of the entry above, so no prioritizeVerb.
";

const GPU_SCORED_HERE: &str = "\
# GPUs, for the pods that ask for GPU memory.
";

const GPU_END: &str = "  \
  # Keeps preemption from evicting pods that free enough units on a node, but not on one GPU of it.
  preemptVerb: preempt
  bindVerb: bind
  # Never: a GPU pod that kube-scheduler bound by itself would have no GPU.
  ignorable: false
  nodeCacheCapable: true
  # Longer than the 4 s of the extender's Bind, so that a late binding is still reported as what it is.
  httpTimeout: 5s
  managedResources:
  - name: aliyun.com/gpu-mem
    # kube-scheduler keeps counting each node's total: it alone knows of pods that are not bound yet.
    ignoredByScheduler: false
";
