//! The flags that every program has, each also an environment variable.

use std::net::{AddrParseError, IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4};

use clap::{Args, Command, Parser, ValueEnum};

/// Log and admin flags together; `ADMIN_PORT` is the program's default admin port.
#[derive(Debug, Clone, Args)]
pub struct DaemonArgs<const ADMIN_PORT: u16> {
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
    /// Where the admin port is.
    #[command(flatten)]
    pub admin: AdminArgs<ADMIN_PORT>,
}

impl<const ADMIN_PORT: u16> DaemonArgs<ADMIN_PORT> {
    /// The flags as [`run`](crate::run) takes them, without the const parameter.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings { log: self.log.clone(), admin: self.admin.address }
    }
}

/// What the names of flags' variables begin with.
const OURS: &str = "PLIMSOLL_";

/// Reads the command line as [`Parser::parse`] does, and warns on standard error of variables that look like a flag's
/// and are none: of a flag that is gone, or misspelled. Its value would be missed without a word.
#[must_use]
pub fn parse<A: Parser>() -> A {
    let args = A::parse();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in unknown(&A::command(), names) {
        eprintln!(
            "warning: {name} is the variable of no flag of this program and has no effect (see --help)"
        );
    }
    args
}

/// Those of the names that are ours and no flag's. Kubernetes sets variables for each Service, whatever its name.
fn unknown(command: &Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let flags: Vec<_> = command.get_arguments().filter_map(|it| it.get_env()?.to_str()).collect();
    let is_services = |name: &str| {
        name.contains("_SERVICE_") || name.contains("_PORT_") || name.ends_with("_PORT")
    };
    let is_unknown = |name: &String| name.starts_with(OURS) && !flags.contains(&name.as_str());
    names.filter(is_unknown).filter(|name| !is_services(name)).collect()
}

/// What [`run`](crate::run) needs before it starts the program.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to log.
    pub log: LogArgs,
    /// Where the admin server listens.
    pub admin: SocketAddr,
}

/// How to log.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// What to log: a level (error, warn, info, debug, trace), or a level for each module,
    /// as in "info,kube=warn".
    #[arg(long, env = "PLIMSOLL_LOG_LEVEL", default_value = "info", value_name = "FILTER")]
    pub log_level: String,

    /// One JSON object a line, or text for people [default: text on a terminal, else json].
    #[arg(long, env = "PLIMSOLL_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line, for log collectors.
    Json,
}

/// Where the admin port is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admin")]
pub struct AdminArgs<const PORT: u16> {
    /// Where to serve /metrics, /livez, /readyz and /version. `[::]` is every address of this machine, IPv4 too.
    #[arg(
        long = "admin-address",
        env = "PLIMSOLL_ADMIN_ADDRESS",
        default_value_t = every_address(PORT),
        value_parser = listen_address,
        value_name = "IP:PORT"
    )]
    pub address: SocketAddr,
}

/// Parses where a port is, `IP:PORT`; for clap's `value_parser`. An IPv4 address may stand in brackets, as an IPv6
/// address must: a manifest can then say `[$(NODE_ADDRESS)]:19101` on nodes of both kinds.
///
/// # Errors
/// When the text is neither.
///
/// # Examples
/// ```
/// assert_eq!(daemon::listen_address("[10.0.0.7]:9"), "10.0.0.7:9".parse());
/// assert_eq!(daemon::listen_address("[fd00::7]:9"), "[fd00::7]:9".parse());
/// assert!(daemon::listen_address("fd00::7:9").is_err());
/// ```
pub fn listen_address(text: &str) -> Result<SocketAddr, AddrParseError> {
    text.parse().or_else(|error| ipv4_in_brackets(text).ok_or(error))
}

fn ipv4_in_brackets(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.strip_prefix('[')?.split_once("]:")?;
    let address: SocketAddrV4 = format!("{address}:{port}").parse().ok()?;
    Some(address.into())
}

/// Every address of this machine, IPv4 too: see [`http::bind`](crate::http::bind).
const fn every_address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        daemon: DaemonArgs<19102>,
    }

    #[test]
    fn a_variable_of_no_flag_is_named_and_those_of_services_are_not() {
        let names = [
            "PLIMSOLL_LOG_LEVEL",
            "PLIMSOLL_EVICT_AFTER",
            "PLIMSOLL_UI_SERVICE_HOST",
            "PLIMSOLL_UI_PORT_80_TCP",
            "PLIMSOLL_UI_PORT",
            "HOME",
        ];
        let found = unknown(&Program::command(), names.into_iter().map(str::to_owned));
        assert_eq!(found, ["PLIMSOLL_EVICT_AFTER"]);
    }

    #[test]
    fn each_program_has_its_own_default_admin_port() {
        let settings = Program::parse_from(["program"]).daemon.settings();
        assert_eq!(settings.admin.to_string(), "[::]:19102");
        assert_eq!(settings.log.log_level, "info");
        assert_eq!(settings.log.log_format, None);
    }

    #[test]
    fn flags_override_the_defaults() {
        let flags =
            ["program", "--admin-address", "[::1]:9", "--log-format=json", "--log-level", "warn"];
        let settings = Program::parse_from(flags).daemon.settings();
        assert_eq!(settings.admin.to_string(), "[::1]:9");
        assert_eq!(settings.log.log_format, Some(LogFormat::Json));
        assert_eq!(settings.log.log_level, "warn");
    }

    #[test]
    fn an_ipv4_address_may_stand_in_brackets() {
        let settings = Program::parse_from(["program", "--admin-address=[10.0.0.7]:9"]);
        assert_eq!(settings.daemon.settings().admin.to_string(), "10.0.0.7:9");
    }

    #[test]
    fn an_address_without_a_port_is_refused() {
        for wrong in ["localhost", "10.0.0.7", "[10.0.0.7]", "[]:9", "[10.0.0.7]:", "[::]9"] {
            let flag = format!("--admin-address={wrong}");
            assert!(Program::try_parse_from(["program", &flag]).is_err(), "{wrong}");
        }
    }
}
