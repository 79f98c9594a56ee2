//! The extender's certificates: what the command makes is what its pods mount.

use serde_json::json;

use crate::flags::parsed;
use crate::manifests::{pod, read};

/// What clients and replicas are asked for stands in the certificate that is mounted, and comes from the Secret that
/// the command makes.
#[test]
fn the_extender_is_given_the_certificates_that_the_command_makes() {
    let files =
        [("tls-cert-file", "tls.crt"), ("tls-key-file", "tls.key"), ("client-ca-file", "ca.crt")];
    let flags = parsed("scheduler-extender");
    let volumes = pod("scheduler-extender")["volumes"].clone();
    let mut volumes = volumes.as_array().expect("volumes").iter();
    let volume = volumes.find(|volume| volume["name"] == "certificates").expect("certificates");
    let secret = &volume["projected"]["sources"][0]["secret"];
    for (flag, file) in files {
        assert_eq!(flags.raw(flag), Some(format!("/etc/scheduler-extender/{file}")));
        let items = secret["items"].as_array().expect("items");
        assert!(items.contains(&json!({"key": file, "path": file})), "{file}");
    }
    let command = ["cluster_access/mod", "scheduler/certificates"];
    let command = command.map(|file| read(&format!("../cli/src/{file}.rs"))).concat();
    let own = flags.raw("replica-server-name").expect("a name");
    for line in [
        format!("pub(crate) const SERVER_SECRET: &str = {};", secret["name"]),
        format!("        format!(\"{}\", self.namespace)", own.replace(".plimsoll.", ".{}.")),
    ] {
        assert!(command.lines().any(|of_command| of_command == line), "{line}");
    }
    assert!(secret["optional"].is_null(), "without it no pod may start");
    // The common names that the command gives.
    let variables = pod("scheduler-extender")["containers"][0]["env"].clone();
    let names =
        json!({"name": "PLIMSOLL_CLIENT_NAMES", "value": format!("system:kube-scheduler,{own}")});
    assert!(variables.as_array().expect("variables").contains(&names));
}
