//! The KubeSchedulerConfiguration of one node: the one that is given, with the extender's address, kube-scheduler's
//! certificate, and the flags that kube-scheduler ignores once it has a configuration.
//!
//! Invariant: entries of others, and comments, stay as they are.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::manifest::{CommandLine, FOLDER};

/// The port of the extender's verbs.
const PORT: &str = ":19100";
/// The flags about profiling, and the fields that they become.
const PROFILING: [(&str, &str); 2] =
    [("profiling", "enableProfiling"), ("contention-profiling", "enableContentionProfiling")];
/// The flags that must be in the configuration, and their fields of `clientConnection`.
const OF_CONNECTION: [(&str, &str); 3] = [
    ("kube-api-qps", "qps"),
    ("kube-api-burst", "burst"),
    ("kube-api-content-type", "contentType"),
];

/// A configuration that is given.
pub(super) struct Given {
    /// What it is called in messages.
    pub(super) name: String,
    text: String,
    value: Value,
}

impl Given {
    pub(super) fn new(name: String, text: String) -> Result<Self> {
        let value = serde_saphyr::from_str(&text).with_context(|| format!("{name} is no YAML"))?;
        Ok(Self { name, text, value })
    }

    /// Whether an entry of the extender begins with this scheme.
    pub(super) fn calls_by(&self, scheme: &str) -> bool {
        self.text.lines().filter_map(Entry::of).any(|entry| entry.scheme == scheme)
    }

    /// Whether nothing that kube-scheduler is told by flags is lost with this configuration.
    ///
    /// # Errors
    ///
    /// Where something is, with what to do.
    pub(super) fn check(&self, command: &CommandLine) -> Result<()> {
        let name = &self.name;
        let connection = &self.value["clientConnection"];
        let (flag, field) = (command.flag("kubeconfig"), connection["kubeconfig"].as_str());
        ensure!(
            flag == field,
            "kube-scheduler has --kubeconfig={}, but {name} says clientConnection.kubeconfig: {}",
            flag.unwrap_or_default(),
            field.unwrap_or_default()
        );
        for (flag, _) in PROFILING {
            if !matches!(command.flag(flag), None | Some("true" | "false")) {
                bail!("--{flag} is neither --{flag}=true nor --{flag}=false");
            }
        }
        for (flag, field) in OF_CONNECTION {
            ensure!(
                command.flag(flag).is_none() || !connection[field].is_null(),
                "kube-scheduler ignores --{flag} once it has a configuration: set clientConnection.{field} in a copy of \
                 {name}, and give that with --config"
            );
        }
        Ok(())
    }

    /// The configuration of a node with this command of kube-scheduler: `host` is the extender's address, as it stands
    /// in a URL, `server_name` the name in its certificate (none for plain HTTP), `ca` its CA, where that is known yet.
    pub(super) fn on(
        &self,
        host: &str,
        server_name: Option<&str>,
        ca: Option<&Vec<u8>>,
        command: &CommandLine,
    ) -> String {
        let mut text = String::new();
        for line in self.text.lines() {
            text += &match Entry::of(line) {
                Some(entry) => entry.on(host, server_name),
                None => format!("{line}\n"),
            };
        }
        for (flag, field) in PROFILING {
            if let Some(value) = command.flag(flag).filter(|_| self.value[field].is_null()) {
                text += &format!("{field}: {value}\n");
            }
        }
        // kube-scheduler reads the certificate and its key again by itself, and the CA only when it starts.
        if let Some(ca) = ca {
            text += &format!("# CA of the extender: {} {}\n", cksum(ca), ca.len());
        }
        text
    }
}

/// A line with the URL of an entry of the extender: by the Service's name in whichever namespace, or by its port.
struct Entry<'a> {
    line: &'a str,
    scheme: &'a str,
    host: &'a str,
}

impl<'a> Entry<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let item = line.trim_start();
        let field = item.strip_prefix("- ").map_or(item, str::trim_start);
        let url = field.strip_prefix("urlPrefix:")?.trim_start().trim_start_matches(['"', '\'']);
        let (scheme, rest) = url.split_once("://")?;
        let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, _) = authority.split_once(':').unwrap_or((authority, ""));
        let is_ours = is_service(host) || rest.contains('/') && authority.ends_with(PORT);
        (is_ours && ["http", "https"].contains(&scheme)).then_some(Self { line, scheme, host })
    }

    /// The line on a node, and those about certificates where it had none.
    fn on(&self, host: &str, server_name: Option<&str>) -> String {
        let mut line = self.line.to_owned();
        // A name that the host's resolver does not know; an address that someone has written stays.
        if is_service(self.host) {
            line = line.replacen(self.host, host, 1);
        }
        let indent = " ".repeat(line.find("urlPrefix").unwrap_or_default());
        match server_name.filter(|_| self.scheme == "http") {
            None => line + "\n",
            Some(server_name) => format!(
                "{line}\n{indent}enableHTTPS: true\n{indent}tlsConfig:\n{indent}  serverName: {server_name}\n\
                 {indent}  caFile: {FOLDER}/ca.crt\n{indent}  certFile: {FOLDER}/tls.crt\n\
                 {indent}  keyFile: {FOLDER}/tls.key\n",
                line = line.replacen("http:", "https:", 1),
            ),
        }
    }
}

/// Whether it is the name of the Service scheduler-extender, or a longer one, as `.svc.cluster.local`.
fn is_service(host: &str) -> bool {
    let namespace = host.strip_prefix("scheduler-extender.").and_then(|it| it.split_once(".svc"));
    namespace.is_some_and(|(namespace, _)| !namespace.contains('.'))
}

/// Where a configuration lies on a node. The kubelet restarts a static pod when its manifest changes, not when a
/// mounted file does: a name that holds the content's checksum makes the one follow from the other. A manifest that
/// kubeadm wrote names the link; it gives way to one with such a name when the configuration changes.
pub(super) fn path_of(configuration: &str) -> String {
    format!("{FOLDER}/kube-scheduler-config-{}.yaml", cksum(configuration.as_bytes()))
}

/// The checksum of the command `cksum`. Former releases named files by it.
fn cksum(bytes: &[u8]) -> u32 {
    let length = bytes.len().to_le_bytes();
    let digits = length.len() - length.iter().rev().take_while(|byte| **byte == 0).count();
    let mut sum: u32 = 0;
    for byte in bytes.iter().chain(&length[..digits]) {
        sum ^= u32::from(*byte) << 24;
        for _ in 0..8 {
            let carry = sum >> 31;
            sum = (sum << 1) ^ (carry * 0x04c1_1db7);
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_cksum() {
        assert_eq!(cksum(b""), 4_294_967_295);
        assert_eq!(cksum(b"123456789"), 930_766_865);
        assert_eq!(cksum(&[b'a'; 300]), 1_664_553_091);
    }
}
