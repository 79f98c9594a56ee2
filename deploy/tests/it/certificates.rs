//! The extender's certificates: what its pods mount is what its flags name.

use serde_json::json;

use crate::flags::parsed;
use crate::manifests::pod;

/// That the command makes such Secrets, `testing/e2e` tries: it installs by the command.
#[test]
fn the_extender_is_given_the_certificates_that_its_flags_name() {
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
    let own = flags.raw("replica-server-name").expect("a name");
    assert!(secret["optional"].is_null(), "without it no pod may start");
    // The common names that the command gives.
    let variables = pod("scheduler-extender")["containers"][0]["env"].clone();
    let names =
        json!({"name": "PLIMSOLL_CLIENT_NAMES", "value": format!("system:kube-scheduler,{own}")});
    assert!(variables.as_array().expect("variables").contains(&names));
}
