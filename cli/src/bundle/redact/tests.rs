use serde_json::json;

use super::*;

#[test]
fn what_looks_like_a_token_goes_and_the_rest_stays() {
    for (before, after) in [
        ("--level=info --exporter-token=abc -v", "--level=info --exporter-token=<blanked>"),
        (r#"{"password": "hunter2", "a": 1}"#, r#"{"a":1,"password":"<blanked>"}"#),
        ("Authorization: Bearer abc.def", "Authorization: <blanked>"),
        ("curl -H 'X-A: Bearer abc' http://h", "curl -H 'X-A: Bearer <blanked>"),
        ("http://user:pass@host:1/x", "http://<blanked>@host:1/x"),
        ("key 0123456789abcdef0123456789abcdef end", "key <blanked> end"),
        ("eyJhbGciOi.eyJzdWIi.c2ln", "<blanked>"),
        ("token=@x y", "token=<blanked>"),
        ("cannot read the token: No such file", "cannot read the token: <blanked>"),
    ] {
        assert_eq!(text(before), after);
    }
    for kept in [
        r#"{ "pod":  "a" }"#,
        "http://host:1/x",
        "image@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "--exporter-token-file=/etc/token",
        "secretName: exporter-tls",
        "automountServiceAccountToken: true",
        "app --password none --verbose",
        r#"x {"token":null,"pod":"a"} {"token":"none"}"#,
        "pod 8a1c2f1e-9f0a-4b7e-8d66-0e5b7f1b2c3d runs",
        "plimsoll_certificate_not_after_seconds{file=\"client_ca\"} 1",
    ] {
        assert_eq!(text(kept), kept);
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
        "docker login -p 9canary",
        "curl -u 1jane:canary https://host",
        "curl -u=1jane:canary https://host",
        "curl -u '1 jane:canary' https://host",
        "password: none shall pass canary",
        r#"x "password":"null canary""#,
        r#"x "password":null canary"#,
        "password: 'none''canary'",
        "password=none-canary",
        "app --password none:canary",
        r#"{"env":[{"name":"DB","value":"canary"}]}"#,
        r#"{"httpHeaders":[{"name":"Authorization","value":"canary"}]}"#,
        r#"{"command":["--password","canary"],"args":["-u","1jane:canary"]}"#,
        r#"{"annotations":{"note":"canary"},"data":{"token":"canary"}}"#,
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
        name + &long("\"a"),
        long("a="),
        long("a=\\\""),
        long("\"password\":null,"),
        long("\"password\":\"none\","),
        "password: none".to_owned() + &long(" "),
        long("password:true,"),
        long("Authorization: none "),
        long(",-u="),
        long("-u 1 "),
        long("--password none "),
        long("://a@"),
        long("-----BEGIN "),
        long("-----BEGIN -----END "),
        long("sha256:a "),
        long("{\"a\":"),
        long("a: |\n"),
        long("a=A0"),
    ] {
        assert!(!text(&line).is_empty());
    }
    assert_eq!(text("curl -u=a:b c"), "curl -u=<blanked>");
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
    ] {
        assert_eq!(text(line), line);
    }
}

#[test]
fn json_within_a_text_and_headers_of_probes_are_looked_into() {
    let mut object = json!({
        "data": {"x": "{\n  \"env\": [{\"name\": \"DB\", \"value\": \"short\"}]\n}"},
        "httpHeaders": [{"name": "Authorization", "value": "short"}],
        "command": ["curl", "-u", "user:short", "-p", "80"],
        "items": [{"kind": "Secret", "data": {"a": "short"}}],
    });
    value(&mut object);
    assert!(!object.to_string().contains("short"), "{object}");
    assert_eq!(object["command"], json!(["curl", "-u", BLANK, "-p", "80"]));
}

/// What is kept of an object.
fn kept_of(mut object: Value) -> Value {
    kept(&mut object);
    object
}

#[test]
fn of_annotations_only_plimsolls_own_and_readings_are_kept() {
    let own = json!({
        "plimsoll.dev/gpu-isolation": "driver",
        "cpu_usage_avg_5m": "0.25,2026-11-20T09:00:00Z",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "meta.helm.sh/release-name": "plimsoll",
    });
    let mut all = own.clone();
    for other in ["kapp.k14s.io/original", "objectset.rio.cattle.io/applied", "note"] {
        all[other] = json!("short");
    }
    assert_eq!(kept_of(json!({"annotations": all})), json!({"annotations": own}));
}

#[test]
fn of_variables_only_plimsolls_settings_keep_their_values() {
    let object = kept_of(json!({"kind": "Pod", "metadata": {"managedFields": [1]}, "env": [
        {"name": "PLIMSOLL_LOG_LEVEL", "value": "info"}, {"name": "DB", "value": "short"},
        {"name": "PLIMSOLL_TOKEN", "value": "short"}, {"name": "PLIMSOLL_EXPORTER_TOKEN_FILE", "value": "/t"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ], "args": ["--password", "short", "--x", "y"]}));
    let values: Vec<&Value> =
        object["env"].as_array().unwrap().iter().map(|it| &it["value"]).collect();
    assert_eq!(values, [&json!("info"), &Value::Null, &Value::Null, &json!("/t"), &Value::Null]);
    assert_eq!(object["args"], json!(["--password", BLANK, "--x", "y"]));
    assert_eq!(object["metadata"], json!({}));
}

#[test]
fn a_field_that_is_not_listed_is_dropped_wherever_it_is() {
    let object = kept_of(json!({
        "spec": {"containers": [{"name": "a", "mine": "short", "httpGet": {
            "path": "/readyz", "httpHeaders": [{"name": "Authorization", "value": "short"}],
        }}], "mine": {"name": "short"}},
        "command": ["curl", "-u", "user:short", "-p", "80"],
        "args": ["sh -c 'echo short'", "--config=/etc/x"],
    }));
    let expected = json!({
        "spec": {"containers": [{"name": "a", "httpGet": {"path": "/readyz"}}]},
        "command": ["curl", "-u", BLANK, "-p", "80"],
        "args": [BLANK, "--config=/etc/x"],
    });
    assert_eq!(object, expected);
}

#[test]
fn what_the_shipped_manifests_say_of_rights_and_ports_is_kept() {
    let manifests = include_str!("../../../../deploy/manifests/external/plimsoll.yaml");
    let mut kinds = 0;
    for object in serde_saphyr::from_multiple::<Value>(manifests).unwrap() {
        let after = kept_of(object.clone());
        for part in ["rules", "roleRef", "subjects"] {
            assert_eq!(after[part], object[part], "{}", object["metadata"]["name"]);
            kinds += usize::from(!object[part].is_null());
        }
        let containers = &object["spec"]["template"]["spec"]["containers"];
        for (place, container) in containers.as_array().into_iter().flatten().enumerate() {
            let kept = &after["spec"]["template"]["spec"]["containers"][place];
            for part in ["args", "ports", "securityContext", "resources", "volumeMounts"] {
                assert_eq!(kept[part], container[part], "{}", container["name"]);
            }
        }
    }
    assert!(kinds > 10);
}

#[test]
fn of_data_only_the_keys_of_plimsolls_configmaps_are_kept() {
    let policy = "pods:\n  password: short\n";
    let object = json!({
        "data": {"policy.yaml": policy, "password": "short", "other.yaml": "short"},
        "metadata": {"labels": {"api-token": "short", "app": "a"}},
    });
    let expected = json!({
        "data": {"policy.yaml": policy.replace("short", BLANK)},
        "metadata": {"labels": {"api-token": BLANK, "app": "a"}},
    });
    assert_eq!(kept_of(object), expected);
}

#[test]
fn a_secret_is_emptied() {
    let list = json!({"items": [{"kind": "Secret", "data": {"a": "c2hvcnQ="}}]});
    assert_eq!(kept_of(list), json!({"items": [{}]}));
}
