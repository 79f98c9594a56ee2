//! The tables of flags in configuration.md: from the programs' own parsers, with the values of the shipped manifests.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use clap::Arg;
use serde_json::Value;

use super::{markdown, sentence, triples};
use crate::flags::parsed;
use crate::manifests::{PROGRAMS, container, strings};
use crate::repository::read;

const DOCUMENT: &str = "docs/configuration.md";

/// Where the documents say more about a flag: a program that has it, the flag, a link.
const MORE: &str = "\
annotator admin-address [ports](metrics.md#ports)
annotator burst-interval [when Nodes are written](readings.md#when-nodes-are-written)
annotator dead-band [when Nodes are written](readings.md#when-nodes-are-written)
annotator exporter-ca-file [the exporters' certificates](certificates.md#turn-on-tls-and-a-token-for-exporters)
annotator exporter-service [where exporters are found](readings.md#where-exporters-are-found)
annotator lease-name [several annotators](operations.md#annotator-replicas)
annotator metrics-server [metrics-server](readings.md#metrics-server-in-place-of-exporters)
annotator policy-file [the load policy](policy.md)
annotator prometheus-url [Prometheus](readings.md#prometheus-in-place-of-exporters)
annotator replicas-address [what workloads use](readings.md#what-workloads-use)
annotator taint-hot-nodes [the taint](operations.md#taint-hot-nodes)
gpushare-device-plugin audit-interval [the audit](gpu.md#the-audit)
gpushare-device-plugin claims [shares by ResourceClaims](claims.md)
gpushare-device-plugin context-probe-socket [GPUs that CUDA cannot use](gpu.md#gpus-that-cuda-cannot-use)
gpushare-device-plugin health-interval [what pods use](gpu.md#what-pods-use)
gpushare-device-plugin host-root [when a pod ends](gpu.md#when-a-pod-ends)
gpushare-device-plugin idle-without-cards [which nodes are GPU nodes](install.md#which-nodes-are-gpu-nodes)
gpushare-device-plugin isolation [the share of a GPU](security.md#limit-gpu-memory-and-compute)
gpushare-device-plugin nvidia-cdi-dirs [a pod fails on its node](troubleshoot.md#a-pod-fails-or-waits-on-its-node)
gpushare-device-plugin response [the GPU of a container](security.md#which-gpu-a-container-sees)
gpushare-device-plugin unclaimed-pods [forged claims](security.md#forged-claims)
gpushare-device-plugin unhealthy-gpus-namespace [a GPU node](troubleshoot.md#a-gpu-node)
gpushare-device-plugin unit-mib [changing the unit](operations.md#change-the-unit)
node-exporter-plus config.file [more values](readings.md#more-values)
node-exporter-plus host-root [what each pod uses](readings.md#what-each-pod-uses)
node-exporter-plus web.tls-cert-file [the exporters' certificates](certificates.md#turn-on-tls-and-a-token-for-exporters)
node-exporter-plus web.token-file [the bearer token](certificates.md#turn-on-tls-and-a-token-for-exporters)
scheduler-extender client-names [the extender's certificates](certificates.md#make-the-extenders-certificates)
scheduler-extender crane-hot-value [keys on Nodes](#nodes)
scheduler-extender evict-for-cards [preemption](gpu.md#preemption)
scheduler-extender evict-outside-mps [outside of MPS](security.md#what-mps-does-not-separate)
scheduler-extender move-for-cards [defragmentation](gpu.md#defragmentation)
scheduler-extender inspect-address [the read-only port](security.md#open-ports)
scheduler-extender inspect-host-names [behind an Ingress](cli.md#behind-an-ingress)
scheduler-extender learned-use-url [readings without a write](readings.md#readings-without-a-write), [what workloads use](readings.md#what-workloads-use)
scheduler-extender lease-name [several extenders](operations.md#extender-replicas)
scheduler-extender listen-address [the extender entries](#kube-scheduler)
scheduler-extender policy-config-map [events](monitoring.md#events)
scheduler-extender replica-server-name [the extender's certificates](certificates.md#make-the-extenders-certificates)
scheduler-extender replicas-service [several extenders](operations.md#extender-replicas)
scheduler-extender shadow-policy-file [trying a policy](operations.md#try-a-policy-without-effect)
scheduler-extender tls-cert-file [the extender's certificates](certificates.md#make-the-extenders-certificates)";

/// A row: one flag of one or several programs that explain it alike.
struct Flag {
    programs: Vec<&'static str>,
    name: String,
    variable: String,
    /// The text of `--help`, and the values that the flag takes.
    help: String,
    default: String,
    /// The value in each manifest that sets another than the default.
    shipped: BTreeSet<String>,
    /// The chart's values that change it.
    values: BTreeSet<String>,
}

impl Flag {
    fn new(program: &'static str, arg: &Arg, manifest: &Value) -> Self {
        let name = arg.get_long().expect("a name");
        let variable = arg.get_env().expect("a variable").to_str().expect("a name in UTF-8");
        let (help, default_in_help) = help(arg);
        let mut default = match default_value(arg) {
            Some(default) => format!("`{default}`"),
            None if arg.is_required_set() => "required".to_owned(),
            None => default_in_help.unwrap_or_else(|| "none".to_owned()),
        };
        let mut shipped = shipped(manifest, name, variable).filter(|value| *value != default);
        if name == "admin-address" {
            // clap keeps one default for all programs of this process: that of the first that it was asked for.
            default = "`[::]` and the program's own port".to_owned();
            shipped = None;
        }
        Self {
            programs: vec![program],
            name: name.to_owned(),
            variable: variable.to_owned(),
            help,
            default,
            shipped: shipped.into_iter().collect(),
            values: values(program, variable),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.help == other.help && self.default == other.default
    }

    /// Takes in the same flag of another program.
    fn merge(&mut self, other: Self) {
        self.programs.extend(other.programs);
        self.shipped.extend(other.shipped);
        self.values.extend(other.values);
    }

    fn row(&self) -> String {
        let mut text = sentence(&self.help);
        if !self.shipped.is_empty() {
            text += &format!(" Shipped: {}.", joined(&self.shipped));
        }
        match self.values.len() {
            0 => (),
            1 => text += &format!(" The value {} changes it.", joined(&self.values)),
            _ => text += &format!(" The values {} change it.", joined(&self.values)),
        }
        let links = triples(MORE).filter(|(program, flag, _)| self.is(program, flag));
        let links: Vec<&str> = links.map(|(_, _, link)| link).collect();
        if !links.is_empty() {
            text += &format!(" More: {}.", links.join(", "));
        }
        format!("| `--{}` | {} | `{}` | {text} |\n", self.name, self.default, self.variable)
    }

    fn is(&self, program: &str, flag: &str) -> bool {
        self.programs.contains(&program) && self.name == flag
    }
}

fn joined(values: &BTreeSet<String>) -> String {
    values.iter().cloned().collect::<Vec<_>>().join(", ")
}

/// The text of `--help`, and the default that it names in words.
fn help(arg: &Arg) -> (String, Option<String>) {
    let text = arg.get_long_help().or(arg.get_help()).expect("a help text").to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, default) = match text.split_once(" [default: ") {
        Some((text, default)) => (text, Some(markdown(default.trim_end_matches(['.', ']'])))),
        None => (text.as_str(), None),
    };
    let mut help = markdown(text);
    for value in arg.get_possible_values() {
        if let Some(meaning) = value.get_help() {
            let meaning = markdown(&meaning.to_string());
            help = format!("{} `{}`: {meaning}", sentence(&help), value.get_name());
        }
    }
    (help, default)
}

fn default_value(arg: &Arg) -> Option<&str> {
    arg.get_default_values().first()?.to_str()
}

/// The value that a manifest gives a flag, as an argument or as a variable.
fn shipped(manifest: &Value, flag: &str, variable: &str) -> Option<String> {
    let start = format!("--{flag}=");
    for argument in strings(&manifest["args"]) {
        if let Some(value) = argument.strip_prefix(&start) {
            return Some(format!("`{value}`"));
        }
    }
    let mut variables = manifest["env"].as_array()?.iter();
    let found = variables.find(|entry| entry["name"] == variable)?;
    match found["value"].as_str() {
        Some(value) => Some(format!("`{value}`")),
        None => {
            Some(format!("the pod's `{}`", found["valueFrom"]["fieldRef"]["fieldPath"].as_str()?))
        }
    }
}

/// The chart's values by which the template of a program sets a variable: those of the condition before it.
fn values(program: &str, variable: &str) -> BTreeSet<String> {
    let set = format!("set $env \"{variable}\" ");
    let mut found = BTreeSet::new();
    let mut condition = "";
    let template = read(&format!("deploy/chart/templates/{program}.yaml"));
    for line in template.lines() {
        if ["{{- if ", "{{- else if ", "{{- with "].iter().any(|start| line.starts_with(start)) {
            condition = line;
        } else if line.starts_with("{{- end ") {
            condition = "";
        } else if line.contains(&set) {
            for name in condition.split(".Values.").skip(1) {
                let end = |letter: char| !letter.is_ascii_alphabetic() && letter != '.';
                found.insert(format!("`{}`", name.split(end).next().unwrap_or_default()));
            }
        }
    }
    found
}

/// The flags of all programs; those that several programs explain alike once.
static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(flags);

fn flags() -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for program in PROGRAMS {
        let manifest = container(program);
        for arg in parsed(program).own_flags() {
            let flag = Flag::new(program, arg, &manifest);
            let same = flags.iter_mut().find(|other| other.is_same(&flag));
            match same {
                Some(same) => same.merge(flag),
                None => flags.push(flag),
            }
        }
    }
    flags
}

/// The table of the flags that these programs share, and no other program has.
pub(super) fn table(programs: &str) -> String {
    let mut table = "| flag | default | variable | |\n|---|---|---|---|\n".to_owned();
    for flag in FLAGS.iter() {
        if flag.programs.join(", ") == programs {
            table += &flag.row();
        }
    }
    table
}

#[test]
fn every_flag_is_in_a_table() {
    let document = read(DOCUMENT);
    for flag in FLAGS.iter() {
        let row = format!("\n{}", flag.row());
        assert!(
            document.contains(&row),
            "{DOCUMENT}: no table has --{} of {:?}",
            flag.name,
            flag.programs
        );
    }
}

#[test]
fn every_link_is_of_a_flag_that_is_there() {
    for (program, name, _) in triples(MORE) {
        assert!(FLAGS.iter().any(|flag| flag.is(program, name)), "{program} has no --{name}");
    }
}
