//! `plimsoll scheduler certificates`, and what `enable` does with them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use x509_parser::pem::parse_x509_pem;

use super::{ENABLED, KUBEADM, Node};
use crate::command::json as parsed;
use crate::world::World;

/// What kube-scheduler reads, below /etc/kubernetes/plimsoll.
const FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const SECRETS: [&str; 2] = ["scheduler-extender-tls", "kube-scheduler-tls"];

/// A kubectl that keeps Secrets as files, and knows an extender with or without TLS.
fn cluster(tls: bool) -> World {
    let env = json!([{"name": "PLIMSOLL_TLS_CERT_FILE", "value": "/x"}]);
    let container = json!({"name": "scheduler-extender", "env": if tls { env } else { json!([]) }});
    let deployment = json!({
        "metadata": {"labels": {"app.kubernetes.io/name": "scheduler-extender"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    });
    World::new()
        .json("get service scheduler-extender", &json!({"spec": {"clusterIP": "10.96.3.4"}}))
        .json("get deployment scheduler-extender", &deployment)
        // There is no kubeadm-config.
        .answer("get configmap kubeadm-config", "")
        .json("get nodes", &json!({"items": []}))
        .acts("get secret", "cat secret-$3 2>/dev/null || :")
        .acts(
            "create --filename=-",
            "cat >new && mv new secret-$(sed 's/.*\"name\":\"\\([^\"]*\\)\".*/\\1/' new)",
        )
        .acts("delete secret", "rm -f secret-$3 secret-$4")
}

fn has_secret(world: &World, name: &str) -> bool {
    world.path().join(format!("secret-{name}")).exists()
}

/// A file of a Secret.
fn kept(world: &World, secret: &str, file: &str) -> String {
    let text = fs::read_to_string(world.path().join(format!("secret-{secret}"))).unwrap();
    let content = STANDARD.decode(parsed(&text)["data"][file].as_str().unwrap()).unwrap();
    String::from_utf8(content).unwrap()
}

#[test]
fn an_extender_with_tls_gets_certificates_and_kube_scheduler_its_own() {
    let (node, world) = (Node::new(KUBEADM), cluster(true));
    assert!(node.run(&world, "enable", &[]).success().contains("Made the Secrets"));
    for file in FILES {
        assert_eq!(node.installed(file), kept(&world, "kube-scheduler-tls", file), "{file}");
        let path = node.path("etc/kubernetes/plimsoll").join(file);
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    for secret in SECRETS {
        let text = fs::read_to_string(world.path().join(format!("secret-{secret}"))).unwrap();
        let keys: Vec<String> =
            parsed(&text)["data"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, FILES, "the key of the CA is not kept");
        assert_eq!(parsed(&text)["metadata"]["labels"]["app.kubernetes.io/part-of"], "plimsoll");
    }
    let config = node.installed_config();
    for line in [
        "- urlPrefix: https://10.96.3.4:19100/load-aware\n",
        "\n  enableHTTPS: true\n  tlsConfig:\n    serverName: scheduler-extender.plimsoll.svc\n",
        "\n    caFile: /etc/kubernetes/plimsoll/ca.crt\n",
        "\n    certFile: /etc/kubernetes/plimsoll/tls.crt\n",
        "\n    keyFile: /etc/kubernetes/plimsoll/tls.key\n",
    ] {
        assert!(config.contains(line), "{line} is not in {config}");
    }
    assert!(node.run(&world, "enable", &[]).success().contains("Already enabled"));
    node.alone("disable", &[]).success();
    assert_eq!((node.text().as_str(), node.files().len()), (KUBEADM, 1));
}

#[test]
fn both_certificates_are_signed_by_the_ca_for_what_they_are_used_for() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED: no openssl on this machine");
        return;
    }
    let world = cluster(true);
    world.run(&["scheduler", "certificates", "--kubeconfig", "x"]).success();
    assert!(world.calls().lines().all(|call| call.contains("--kubeconfig=x")));
    for (secret, purposes) in SECRETS.iter().zip([&["sslserver", "sslclient"][..], &["sslclient"]])
    {
        for file in FILES {
            fs::write(world.path().join(file), kept(&world, secret, file)).unwrap();
        }
        for purpose in ["sslserver", "sslclient"] {
            let mut verify = Command::new("openssl");
            verify.current_dir(world.path()).args(["verify", "-x509_strict", "-purpose", purpose]);
            let verified = verify.args(["-CAfile", "ca.crt", "tls.crt"]).output().unwrap();
            let wanted = purposes.contains(&purpose);
            assert_eq!(verified.status.success(), wanted, "{secret} {purpose}: {verified:?}");
        }
    }
}

#[test]
fn a_certificate_is_of_its_user_and_lasts_for_a_year() {
    let world = cluster(true);
    world.run(&["scheduler", "certificates", "--namespace", "elsewhere"]).success();
    let server = "scheduler-extender.elsewhere.svc";
    for (secret, names, common_name) in
        [(SECRETS[0], &[server][..], server), (SECRETS[1], &[], "system:kube-scheduler")]
    {
        let pem = kept(&world, secret, "tls.crt");
        let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        assert_eq!(certificate.subject().to_string(), format!("O=plimsoll, CN={common_name}"));
        let found = certificate.subject_alternative_name().unwrap();
        let found = found.map_or(Vec::new(), |it| it.value.general_names.clone());
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let names: Vec<String> = names.iter().map(|name| format!("DNSName({name})")).collect();
        assert_eq!(found, names);
        let lasts = certificate.validity().time_to_expiration().unwrap().whole_days();
        assert!((363..=365).contains(&lasts), "{lasts}");
    }
}

#[test]
fn another_namespace_is_asked_and_stands_in_the_configuration() {
    let (node, world) = (Node::new(KUBEADM), cluster(true));
    let said = node.run(&world, "enable", &["--namespace", "elsewhere"]).success();
    assert!(said.contains("Made the Secrets elsewhere/scheduler-extender-tls"), "{said}");
    let namespaced = |call: &str| call.split_once("--namespace=").map(|(_, it)| it.to_owned());
    for namespace in world.calls().lines().filter_map(namespaced) {
        let known = ["elsewhere ", "kube-system "];
        assert!(known.iter().any(|known| namespace.starts_with(known)), "{namespace}");
    }
    let config = node.installed_config();
    assert!(config.contains("- urlPrefix: https://10.96.3.4:19100/load-aware\n"), "{config}");
    assert!(config.contains("    serverName: scheduler-extender.elsewhere.svc\n"), "{config}");
}

#[test]
fn what_is_no_name_of_a_namespace_is_refused() {
    for name in ["", "a/b", "a b", "A", "a.b", "$(x)"] {
        let node = Node::new(KUBEADM);
        let refused = node.alone("enable", &["--namespace", name]);
        assert_eq!(refused.code, Some(2), "{name}");
        assert!(refused.stderr.contains("expected the name of a namespace"), "{name}");
        assert_eq!(node.text(), KUBEADM, "{name}");
    }
}

#[test]
fn certificates_that_are_there_are_taken_and_new_ones_are_installed() {
    let (node, world) = (Node::new(KUBEADM), cluster(true));
    node.run(&world, "enable", &[]).success();
    let (manifest, key) = (node.text(), node.installed("tls.key"));
    let other = Node::new(KUBEADM);
    assert!(!other.run(&world, "enable", &[]).success().contains("Made"));
    assert_eq!(other.installed("tls.key"), key);
    world.run(&["scheduler", "certificates", "--new"]).success();
    other.run(&world, "enable", &[]).success();
    assert_ne!(other.installed("tls.key"), key);
    assert_eq!(other.installed("tls.key"), kept(&world, "kube-scheduler-tls", "tls.key"));
    assert_ne!(other.text(), manifest, "the kubelet restarts kube-scheduler for a new CA");
}

#[test]
fn without_tls_and_in_a_dry_run_no_certificate_is_made() {
    let node = Node::new(KUBEADM);
    let world = cluster(true);
    let shown = node.run(&world, "enable", &["--dry-run"]).success();
    assert!(shown.contains("Would make the Secrets") && shown.contains("+  enableHTTPS: true"));
    let shown = world.run(&["scheduler", "certificates", "--dry-run"]).success();
    assert!(shown.contains("Would make the Secrets"), "{shown}");
    let plain = cluster(false);
    node.run(&plain, "enable", &[]).success();
    assert_eq!(node.text(), ENABLED);
    for secret in SECRETS {
        assert!(!has_secret(&world, secret) && !has_secret(&plain, secret), "{secret}");
    }
}

#[test]
fn certificates_are_made_once_and_say_so() {
    let world = cluster(true);
    let said = world.run(&["scheduler", "certificates"]).success();
    assert!(said.contains("Made the Secrets"), "{said}");
    let made = kept(&world, "kube-scheduler-tls", "tls.key");
    let again = world.run(&["scheduler", "certificates"]).success();
    assert!(again.contains("are there"), "{again}");
    assert_eq!(kept(&world, "kube-scheduler-tls", "tls.key"), made);
}

#[test]
fn an_address_that_is_given_leaves_it_to_the_deployment_whether_there_is_tls() {
    let (node, world) = (Node::new(KUBEADM), cluster(true));
    let host = ["--extender-host", "10.96.3.5"];
    node.run(&world, "enable", &host).success();
    assert!(node.installed_config().contains("https://10.96.3.5:19100/"));
    node.run(&world, "enable", &[&host[..], &["--plain-http"]].concat()).success();
    assert!(node.installed_config().contains("http://10.96.3.5:19100/"));
}

#[test]
fn one_secret_without_the_other_is_an_error_that_says_so() {
    for (there, lacks) in [(SECRETS[0], SECRETS[1]), (SECRETS[1], SECRETS[0])] {
        let (node, world) = (Node::new(KUBEADM), cluster(true));
        fs::write(world.path().join(format!("secret-{there}")), "{}").unwrap();
        let stderr = node.run(&world, "enable", &[]).failure();
        assert!(stderr.contains(&format!("{there} is there, and {lacks} is not")), "{stderr}");
        assert_eq!(node.text(), KUBEADM);
    }
}

/// Other extenders' entries in every form that YAML has for them, and ours, indented and quoted.
pub(super) const WITH_OTHERS: &str = "clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler.conf\nextenders:\n\
                                      - urlPrefix: http://127.0.0.1:8888/other\n  filterVerb: filter\n\
                                      - urlPrefix: https://other.example:8443\n  enableHTTPS: true\n";

#[test]
fn only_our_entries_are_given_https_however_they_are_written() {
    let others = WITH_OTHERS;
    let nested = others.replace("\n- ", "\n  - ").replace("\n  filter", "\n    filter");
    let nested = nested.replace("\n  enableHTTPS", "\n    enableHTTPS");
    for (others, ours, indent) in [
        (others, "- urlPrefix: http://scheduler-extender.plimsoll.svc:19100/load-aware\n", "  "),
        (
            &nested,
            "  - urlPrefix: \"http://scheduler-extender.plimsoll.svc:19100/load-aware\"\n",
            "    ",
        ),
        (others, "- urlPrefix: 'http://10.96.0.7:19100/load-aware'\n", "  "),
        (
            others,
            "- filterVerb: filter\n  urlPrefix: http://scheduler-extender.plimsoll.svc:19100/load-aware\n",
            "  ",
        ),
        (
            others,
            "- urlPrefix: http://scheduler-extender.plimsoll.svc.cluster.local:19100/load-aware\n",
            "  ",
        ),
    ] {
        let node = Node::new(KUBEADM);
        fs::write(node.path("config.yaml"), others.to_owned() + ours).unwrap();
        node.run(&cluster(true), "enable", &[]).success();
        let config = node.installed_config();
        assert!(config.starts_with(others), "{config}");
        let ours = ours.replace("http:", "https:").replace(".cluster.local", "");
        let ours = ours.replace("scheduler-extender.plimsoll.svc", "10.96.3.4");
        let server = "serverName: scheduler-extender.plimsoll.svc\n";
        let entry =
            format!("{ours}{indent}enableHTTPS: true\n{indent}tlsConfig:\n{indent}  {server}");
        assert!(config.contains(&entry), "{config}");
    }
}

#[test]
fn a_certificate_that_ends_soon_is_told_and_one_that_has_ended_fails_the_status() {
    let (node, world) = (Node::new(KUBEADM), cluster(true));
    let said = node.run(&world, "enable", &[]).success();
    assert!(!said.contains("Warning"), "{said}");
    node.alone("status", &[]).success();
    let certificate = node.path("etc/kubernetes/plimsoll/tls.crt");
    lasting(7, &certificate);
    let soon = node.alone("status", &[]).success();
    assert!(soon.contains("certificate ends at") && soon.contains("Enabled: "), "{soon}");
    lasting(-1, &certificate);
    let ended = node.alone("status", &[]);
    assert!(ended.stdout.contains("certificate ends at"), "{}", ended.stdout);
    assert_eq!(ended.code, Some(1));
}

/// Writes a certificate that ends so many days from now.
fn lasting(days: i64, path: &Path) {
    let end = jiff::Zoned::now().checked_add(jiff::Span::new().days(days)).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
    let [month, day] = [end.month(), end.day()].map(i8::unsigned_abs);
    params.not_after = rcgen::date_time_ymd(end.year().into(), month, day);
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(path, params.self_signed(&key).unwrap().pem()).unwrap();
}

#[test]
fn going_back_to_plain_http_removes_the_key() {
    let (node, world) = (Node::new(KUBEADM), cluster(true));
    node.run(&world, "enable", &[]).success();
    node.run(&world, "enable", &["--plain-http"]).success();
    assert_eq!(FILES.map(|file| node.installed(file)), ["", "", ""]);
}
