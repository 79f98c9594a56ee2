//! Every container's flags and environment, parsed by the program's own parser.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, CommandFactory, Parser};
use gpushare_device_plugin::host::HostPaths;

use crate::manifests::{PROGRAMS, container, ports, strings};

/// The flags and environment of a program's manifest, parsed.
pub(crate) struct Parsed {
    command: Command,
    matches: ArgMatches,
}

impl Parsed {
    /// The value of a flag, defaults included.
    pub(crate) fn raw(&self, flag: &str) -> Option<String> {
        let arg = self.command.get_arguments().find(|arg| arg.get_long() == Some(flag))?;
        let mut values = self.matches.get_raw(arg.get_id().as_str())?;
        Some(values.next()?.to_str()?.to_owned())
    }

    /// The addresses that the program listens on. It takes an IPv4 address in brackets, too.
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let flags = self.flags().filter(|flag| flag.ends_with("address"));
        flags.filter_map(|flag| daemon::listen_address(&self.raw(flag)?).ok())
    }

    /// Its flags, but for `--help` and `--version`.
    pub(crate) fn own_flags(&self) -> impl Iterator<Item = &Arg> {
        let args = self.command.get_arguments();
        args.filter(|arg| !matches!(arg.get_long(), None | Some("help" | "version")))
    }

    fn flags(&self) -> impl Iterator<Item = &str> {
        self.command.get_arguments().filter_map(Arg::get_long)
    }
}

/// Parses a program's manifest; a flag or variable that it does not know is a failure.
pub(crate) fn parsed(program: &str) -> Parsed {
    match program {
        "annotator" => parse::<annotator::Args>(program),
        "gpushare-device-plugin" => parse::<gpushare_device_plugin::args::Args>(program),
        "node-exporter-plus" => parse::<node_exporter_plus::Args>(program),
        "scheduler-extender" => parse::<scheduler_extender::Args>(program),
        other => panic!("no program {other}"),
    }
}

fn parse<A: Parser + CommandFactory>(program: &str) -> Parsed {
    let line = command_line(program, &A::command());
    let mut command = A::command();
    let matches = command.try_get_matches_from_mut(&line);
    let matches = matches.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(A::from_arg_matches(&matches).is_ok(), "{program}: {line:?}");
    Parsed { command, matches }
}

/// What the kubelet puts into the exporter's arguments.
const NODE_ADDRESS: &str = "10.0.0.2";

/// The manifest's arguments, then each variable of its environment as the flag of the same name.
fn command_line(program: &str, command: &Command) -> Vec<String> {
    let container = container(program);
    let mut line = vec![program.to_owned()];
    for argument in strings(&container["args"]) {
        line.push(argument.replace("$(NODE_ADDRESS)", NODE_ADDRESS));
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().expect("a name");
        if name.starts_with("PLIMSOLL_") {
            let of_pod = &variable["valueFrom"]["fieldRef"]["fieldPath"];
            let of_pod =
                if of_pod == "status.podIP" { "10.0.0.1" } else { "from-the-downward-api" };
            let value = variable["value"].as_str().unwrap_or(of_pod);
            line.push(format!("--{}={value}", flag_of(command, name)));
        }
    }
    line
}

fn flag_of<'a>(command: &'a Command, variable: &str) -> &'a str {
    let known =
        command.get_arguments().find(|arg| arg.get_env().is_some_and(|env| env == variable));
    let arg =
        known.unwrap_or_else(|| panic!("{} reads no variable {variable}", command.get_name()));
    arg.get_long().expect("a flag for every variable")
}

/// Whether a program reads a variable.
pub(crate) fn knows_variable(program: &str, variable: &str) -> bool {
    parsed(program)
        .command
        .get_arguments()
        .any(|arg| arg.get_env().is_some_and(|env| env == variable))
}

/// The environment variable of a flag.
fn variable(flag: &str) -> String {
    format!("PLIMSOLL_{}", flag.to_uppercase().replace(['-', '.'], "_"))
}

#[test]
fn every_container_starts_with_flags_that_its_program_takes() {
    for program in PROGRAMS {
        assert_eq!(parsed(program).command.get_name(), program);
    }
}

#[test]
fn every_flag_is_also_a_variable_of_the_same_name() {
    for program in PROGRAMS {
        let parsed = parsed(program);
        for arg in parsed.own_flags() {
            let flag = arg.get_long().expect("a name");
            assert_eq!(
                arg.get_env().and_then(|env| env.to_str()),
                Some(variable(flag).as_str()),
                "{program} --{flag}"
            );
        }
    }
}

#[test]
fn containers_expose_exactly_the_ports_that_their_programs_listen_on() {
    for program in PROGRAMS {
        let parsed = parsed(program);
        let listened: BTreeSet<u64> =
            parsed.addresses().map(|address| address.port().into()).collect();
        let exposed: BTreeSet<u64> = ports(program).into_iter().map(|(_, port)| port).collect();
        assert_eq!(exposed, listened, "{program}");
    }
}

/// The kubelet's probes and kube-scheduler's calls go to addresses of the cluster's own family.
#[test]
fn every_port_in_the_pods_network_takes_clients_over_ipv6_and_ipv4() {
    for program in PROGRAMS.into_iter().filter(|program| *program != "node-exporter-plus") {
        let parsed = parsed(program);
        let others: Vec<_> =
            parsed.addresses().filter(|address| address.ip() != Ipv6Addr::UNSPECIFIED).collect();
        assert!(others.is_empty(), "{program}: {others:?}");
    }
}

/// The kubelet reports a Node's first InternalIP as `status.hostIP` of its pods, and as `status.podIP` of those on the
/// host's network, which its probes go to. The annotator asks at the first InternalIP.
#[test]
fn on_the_hosts_network_ports_are_open_at_the_nodes_address_alone() {
    let parsed = parsed("node-exporter-plus");
    let hosts: Vec<String> = parsed.addresses().map(|address| address.ip().to_string()).collect();
    assert_eq!(hosts, [NODE_ADDRESS, NODE_ADDRESS]);
    let container = container("node-exporter-plus");
    let variables = container["env"].as_array().expect("variables");
    let address = variables.iter().find(|variable| variable["name"] == "NODE_ADDRESS");
    let field = &address.expect("it")["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(field, "status.hostIP");
    for probe in ["livenessProbe", "readinessProbe"] {
        assert!(container[probe]["httpGet"]["host"].is_null(), "{probe}: at the pod's address");
    }
}

#[test]
fn the_policy_and_the_hosts_folders_are_mounted_where_the_programs_look() {
    assert_eq!(parsed("node-exporter-plus").raw("host-root").as_deref(), Some("/host"));
    let has = |program: &str, path: &Path| mounts(program).iter().any(|it| path.starts_with(it));
    for program in PROGRAMS {
        let Some(path) = parsed(program).raw("policy-file") else { continue };
        assert!(has(program, Path::new(&path)), "{program}: {path}");
    }
    let program = "gpushare-device-plugin";
    let root = parsed(program).raw("host-root").expect("a default");
    let host = HostPaths::below(Path::new(&root));
    for path in [host.device_plugins, host.pod_resources, host.cdi, host.cgroups, host.state] {
        assert!(has(program, &path), "{}", path.display());
    }
}

fn mounts(program: &str) -> Vec<PathBuf> {
    let container = container(program);
    let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
    mounts.iter().map(|mount| PathBuf::from(mount["mountPath"].as_str().expect("a path"))).collect()
}
