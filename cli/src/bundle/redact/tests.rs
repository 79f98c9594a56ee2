use serde_json::json;

use super::*;

#[test]
fn what_looks_like_a_token_goes_and_the_rest_stays() {
    for (before, after) in [
        ("--exporter-token=abc --level=info", "--exporter-token=<blanked> --level=info"),
        (r#"{"password": "hunter2", "a": 1}"#, r#"{"a":1,"password":"<blanked>"}"#),
        (r#"{ "pod":  "a" }"#, r#"{ "pod":  "a" }"#),
        ("Authorization: Bearer abc.def", "Authorization: <blanked>"),
        ("curl -H 'X-A: Bearer abc' http://h", "curl -H 'X-A: Bearer <blanked>' http://h"),
        ("http://user:pass@host:1/x", "http://<blanked>@host:1/x"),
        ("http://host:1/x", "http://host:1/x"),
        ("key 0123456789abcdef0123456789abcdef end", "key <blanked> end"),
        (
            "image@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "image@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        ),
        ("eyJhbGciOi.eyJzdWIi.c2ln", "<blanked>"),
        ("--exporter-token-file=/etc/token", "--exporter-token-file=/etc/token"),
        ("secretName: exporter-tls", "secretName: exporter-tls"),
        ("token=@x y", "token=<blanked> y"),
        ("automountServiceAccountToken: true", "automountServiceAccountToken: true"),
        (
            "pod 8a1c2f1e-9f0a-4b7e-8d66-0e5b7f1b2c3d runs",
            "pod 8a1c2f1e-9f0a-4b7e-8d66-0e5b7f1b2c3d runs",
        ),
        (
            "plimsoll_certificate_not_after_seconds{file=\"client_ca\"} 1",
            "plimsoll_certificate_not_after_seconds{file=\"client_ca\"} 1",
        ),
    ] {
        assert_eq!(text(before), after);
    }
    let block = "a:\n  token: |-\n    one\n\n    two\n  b: 1";
    assert_eq!(text(block), "a:\n  token: <blanked>\n<blanked>\n<blanked>\n<blanked>\n  b: 1");
    let pem = "a\n-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\nb";
    assert_eq!(text(pem), "a\n<blanked>\nb");
}

/// Each has `canary` in its secret, and nowhere else.
#[test]
fn a_secret_goes_however_it_is_written() {
    for line in [
        "password = canary",
        r#""password" : "canary""#,
        "sh -c 'app --password canary --verbose'",
        "app --password 'a canary b' --verbose",
        r#"{"msg":"x","password":"correct horse canary"}"#,
        r#"x {"password":"correct horse canary"}"#,
        r#"msg="{\"password\":\"correct horse canary\"}" pod=a"#,
        r#"password="a\"canary""#,
        "password: 'it''s canary'",
        "password=\"\"\"canary\"\"\"",
        "  - password: correct horse canary",
        "password=/canary",
        "password=a&canary",
        "password=a;canary",
        r"password=a\canary",
        "password=a\"canary",
        "password:=canary",
        "token: Some(\"canary\")",
        "\u{130} password=canary",
        "\u{130}\u{130}\u{130}password=canary",
        "--db-pass=canary",
        "PGPASS=canary",
        "passphrase=canary",
        "pwd=canary",
        "private_key=canary",
        r#"{"auth":"canary"}"#,
        r#"{"password":12345,"tokens":["canary"]}"#,
        "Cookie: session=canary; id=canary",
        r#"Cookie: "a"; id="canary""#,
        "X-Auth-Key: canary",
        "SharedAccessSignature sig=canary",
        "DefaultEndpointsProtocol=https;AccountKey=canary",
        "https://canary@host/x",
        "https://user:canary@host/x",
        "curl -u user:canary https://host",
        "curl --user=user:canary https://host",
        "docker login -p canary host",
    ] {
        let blanked = text(line);
        assert!(!blanked.contains("canary") && blanked.contains(BLANK), "{line}: {blanked}");
    }
    for token in [
        "abcdef.0123456789abcdef",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "eyJhbGciOiJub25lIn0",
        "x=AKIACANARYCANARY1234",
    ] {
        assert_eq!(text(&format!("a {token} b")), format!("a {BLANK} b"));
    }
}

/// Where the time goes with the square of the length, one of these takes a quarter of an hour.
#[test]
fn a_long_line_takes_time_by_its_length() {
    let long = |text: &str| text.repeat(300_000 / text.len());
    let name = "password=".to_owned();
    for line in [
        name.clone() + &long("\\"),
        name.clone() + &long("\\") + "\"",
        name.clone() + &long("\\ "),
        name.clone() + &long("\\\"a"),
        name.clone() + &long("\"a"),
        name.clone() + "\"" + &long("\\\"a"),
        name + "\\\\\"" + &long("\\"),
        long("password="),
        long("password=\""),
        long("password=<blanked>"),
        long("password=\"<blanked>"),
        long("password=\\\\\"<blanked>"),
        long("password:true,"),
        long("password={"),
        long("Authorization: <blanked>"),
        long("authorization=none,"),
        long(",-u="),
        long("-u a"),
        long("--password "),
        long("bearer "),
        long("://a@"),
        long("://"),
        long("-----BEGIN "),
        long("-----BEGIN -----END "),
        long("sha256:a "),
        long("{\"a\":"),
        long("["),
        long("a: |\n"),
        long("a."),
        long("a=A0"),
    ] {
        assert!(!text(&line).is_empty());
    }
    assert_eq!(text(&format!("curl -u={}:b c", "a".repeat(400))), "curl -u=<blanked> c");
    assert_eq!(text("app -u=65534 -v"), "app -u=65534 -v");
}

#[test]
fn what_a_report_needs_stays() {
    for line in [
        "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf --authorization-mode=RBAC",
        "MountVolume.SetUp failed for volume \"certificates\" : secret \"extender-tls\" not found",
        "apiVersion: rbac.authorization.k8s.io/v1",
        r#"{"sessionAffinity":"None","topologyKey":"kubernetes.io/hostname","key":"a"}"#,
        "/var/lib/kubelet/pods/8a1c2f1e-9f0a-4b7e-8d66-0e5b7f1b2c3d/volumes/Kubernetes1",
        "plimsoll_extender_requests_total{verb=\"filter\",outcome=\"ok\"} 7",
        "cannot read the token: No such file",
    ] {
        let kept = line.replace("token: No", "token: <blanked>");
        assert_eq!(text(line), kept);
    }
}

#[test]
fn of_annotations_only_plimsolls_own_and_readings_keep_their_values() {
    let mut object = json!({"annotations": {
        "plimsoll.dev/gpu-isolation": "driver",
        "cpu_usage_avg_5m": "0.25,2026-11-20T09:00:00Z",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "meta.helm.sh/release-name": "plimsoll",
        "kapp.k14s.io/original": "{\"env\": [{\"name\": \"DB\", \"value\": \"short\"}]}",
        "objectset.rio.cattle.io/applied": "H4sIAAAAAAAA",
        "note": "short",
    }});
    value(&mut object);
    let kept = json!({"annotations": {
        "plimsoll.dev/gpu-isolation": "driver",
        "cpu_usage_avg_5m": "0.25,2026-11-20T09:00:00Z",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "meta.helm.sh/release-name": "plimsoll",
        "kapp.k14s.io/original": BLANK,
        "objectset.rio.cattle.io/applied": BLANK,
        "note": BLANK,
    }});
    assert_eq!(object, kept);
}

#[test]
fn json_within_a_text_and_headers_of_probes_are_looked_into() {
    let mut object = json!({
        "data": {"x": "{\n  \"env\": [{\"name\": \"DB\", \"value\": \"short\"}]\n}"},
        "httpHeaders": [{"name": "Authorization", "value": "short"}],
        "command": ["curl", "-u", "user:short", "-p", "80"],
    });
    value(&mut object);
    assert!(!object.to_string().contains("short"), "{object}");
    assert_eq!(object["command"], json!(["curl", "-u", BLANK, "-p", "80"]));
}

#[test]
fn of_variables_only_plimsolls_settings_keep_their_values() {
    let mut object = json!({"kind": "Pod", "metadata": {"managedFields": [1]}, "env": [
        {"name": "PLIMSOLL_LOG_LEVEL", "value": "info"}, {"name": "DB", "value": "short"},
        {"name": "PLIMSOLL_TOKEN", "value": "short"}, {"name": "PLIMSOLL_EXPORTER_TOKEN_FILE", "value": "/t"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ], "args": ["--password", "short", "--x", "y"]});
    value(&mut object);
    let values: Vec<&Value> =
        object["env"].as_array().unwrap().iter().map(|it| &it["value"]).collect();
    assert_eq!(values, [&json!("info"), &json!(BLANK), &json!(BLANK), &json!("/t"), &Value::Null]);
    assert_eq!(object["args"], json!(["--password", BLANK, "--x", "y"]));
    assert_eq!(object["metadata"], json!({}));
}

#[test]
fn a_secret_is_emptied() {
    let mut list = json!({"items": [{"kind": "Secret", "data": {"a": "c2hvcnQ="}}]});
    value(&mut list);
    assert_eq!(list, json!({"items": [{}]}));
}
