//! `plimsoll convert`.

use std::path::Path;

use serde_json::Value;

use crate::command::{PLIMSOLL, Run, assert_golden, run, run_as};

const MANIFESTS: &str = include_str!("../fixtures/convert.yaml");

fn convert(text: &str, flags: &[&str]) -> Run {
    let args = ["convert", "-f", "-"].into_iter().chain(flags.iter().copied());
    run_as(Path::new(PLIMSOLL), args, text)
}

/// A pod of two containers, with this in its metadata, the units of `main` and this in its spec.
fn pod(metadata: &str, units: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{namespace: shop, {metadata}}}
spec:
  {spec}
  containers:
  - {{name: main, resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}}}
  - {{name: log}}
"
    )
}

fn annotated(annotation: &str) -> String {
    pod(&format!("name: a, annotations: {{plimsoll.dev/{annotation}}}"), "4", "")
}

#[test]
fn units_become_claims_and_what_is_lost_is_told() {
    let run = convert(MANIFESTS, &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_golden("convert.yaml", &run.stdout);
    assert_golden("convert.stderr.txt", &run.stderr);
}

#[test]
fn fields_beside_those_of_gpus_keep_their_content() {
    let mut before: Vec<Value> = read(MANIFESTS);
    let mut after: Vec<Value> = read(&convert(MANIFESTS, &[]).stdout);
    after.retain(|object| object["kind"] != "ResourceClaimTemplate");
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter_mut().zip(&mut after) {
        for object in [before, after] {
            let pod = &mut object["spec"]["template"];
            pod["metadata"] = pod["metadata"]["labels"].take();
            let Some(spec) = pod["spec"].as_object_mut() else { continue };
            spec.remove("resourceClaims");
            spec.remove("nodeSelector");
            for container in spec["containers"].as_array_mut().unwrap() {
                container.as_object_mut().unwrap().remove("resources");
            }
        }
    }
    for place in [0, 1, 2, 3, 6] {
        assert_eq!(before[place], after[place]);
    }
}

/// As kubectl reads it.
fn read(text: &str) -> Vec<Value> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_multiple_with_options(text, options).unwrap()
}

#[test]
fn a_unit_a_resource_and_a_domain_can_have_other_values() {
    let text = pod("name: a, annotations: {example.com/gpu-cores: \"30\"}", "3", "")
        .replace("aliyun.com/gpu-mem", "example.com/memory");
    let flags =
        ["--unit-mib=256", "--gpu-resource=example.com/memory", "--annotation-prefix=example.com"];
    let converted = convert(&text, &flags).success();
    for part in ["memory: 768Mi", "cores: 30", "deviceClassName: gpu-share.example.com"] {
        assert!(converted.contains(part), "{converted}");
    }
    assert!(!converted.contains("annotations") && !converted.contains("example.com/memory"));
}

#[test]
fn an_error_names_document_object_field_and_remedy_and_nothing_is_written() {
    for (text, parts) in [
        (pod("name: a", "4.5", ""), ["spec.containers[0].resources.limits[", "whole number"]),
        (pod("name: a", "-1", ""), ["spec.containers[0].resources.limits[", "found `-1`"]),
        (pod("labels: {}", "4", ""), ["metadata.name: missing", "named after it"]),
        (
            annotated("gpu-cores: \"x\""),
            ["metadata.annotations[plimsoll.dev/gpu-cores]", "0 to 100"],
        ),
        (annotated("gpu-cores: 20"), ["[plimsoll.dev/gpu-cores]: no text", "in quotes"]),
        (annotated("gpu-cores: '{\"log\":20}'"), ["`log` asks for GPU memory", "correct the name"]),
        (annotated("gpu-card-count: \"3\""), ["gpu-card-count]: ", "a multiple of 3 units"]),
        (annotated("gpu-mem-limit: \"2\""), ["gpu-mem-limit]: ", "write 4 or more"]),
        (annotated("gpu-model: \"a,,b\""), ["gpu-model]: an empty name", "with a comma"]),
        (
            annotated(&format!("gpu-uuid: {}", "a".repeat(4097))),
            ["gpu-uuid]: a list of 4097 bytes", "at most 4 KiB"],
        ),
        (annotated("gpu-isolation: full"), ["gpu-isolation]: expected", "`driver`"]),
        (annotated("gpu-placement: full"), ["gpu-placement]: none of", "`pack`"]),
        (
            pod("name: a", "4", "resourceClaims: [{name: gpu}, {name: gpu-main}]"),
            ["spec.resourceClaims: there is a claim `gpu-main`", "rename it"],
        ),
        (pod("name: n", "4", ""), ["metadata.name: no text", "in quotes"]),
        (pod("generateName: 123", "4", ""), ["metadata.generateName: no text", "in quotes"]),
        (
            pod("name: a", "4", "").replace("name: main", "name: 1"),
            ["spec.containers[0]: name: no text", "in quotes"],
        ),
        (
            pod("name: a", "4", "").replace("limits", "requests"),
            ["resources.requests[aliyun.com/gpu-mem]", "move it to"],
        ),
    ] {
        let text = format!("kind: Service\n---\n{text}");
        let error = convert(&text, &[]).failure();
        let start = "error: stdin: document 2 (line 3), Pod shop/";
        assert!(error.starts_with(start), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}\n{error}");
    }
}

#[test]
fn a_text_that_is_no_yaml_is_an_error_with_its_line_and_the_fix() {
    let units = "# aliyun.com/gpu-mem\n";
    let pod = pod("name: a", "4", "");
    let json = r#"{"kind":"Pod","units":"aliyun.com\/gpu-mem"}"#;
    for (text, start, part) in [
        (format!("a: 1\n---\n{units}c: [\n"), "document 2 (line ", "cannot be read: "),
        (format!("a: 1\n---\n{units}b: 1\nb: 2\n"), "document 2 (line 5): ", "key: b"),
        (format!("{units}~: 1\n"), "document 1 (line 2): ", "quotes"),
        (
            format!("{units}a: {{b: 1, on: 1}}\n"),
            "document 1 (line 2): ",
            "reads as true: write the key in quotes",
        ),
        (
            format!("{units}0644: 1\n"),
            "document 1 (line 2): ",
            "reads as 420: write the key in quotes",
        ),
        (format!("{json}\n{json}\n"), "document 1 (line ", "`---` between JSON objects"),
        (format!("{{{{- if x }}}}\n{pod}"), "document 1 (line ", "`helm template`"),
    ] {
        let error = convert(&text, &[]).failure();
        assert!(error.starts_with(&format!("error: stdin: {start}")), "{error}");
        assert!(error.contains(part), "{error}");
        assert!(!error.contains("Policy") && !error.contains("Option"), "{error}");
    }
    let quoted = format!("{units}\"on\": {{\"1\": 1}}\n");
    assert_eq!(convert(&quoted, &[]).success(), quoted);
    let missing = run(["convert", "-f", "/nowhere/a.yaml"]).failure();
    assert_eq!(missing, "error: /nowhere/a.yaml: No such file or directory (os error 2)\n");
}

#[test]
fn a_document_that_names_no_units_is_not_read() {
    let text = format!("b: 1\nb: 2\n---\n{{{{ x }}}}: [\n---\n{}", pod("name: a", "4", ""));
    let converted = convert(&text, &[]).success();
    assert!(converted.starts_with("b: 1\nb: 2\n---\n{{ x }}: [\n---\napiVersion"), "{converted}");
}

/// The warnings of a conversion that succeeds.
fn warnings(text: &str) -> String {
    let run = convert(text, &[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.stderr
}

#[test]
fn what_has_no_effect_with_claims_is_a_warning() {
    let affinity = "affinity: {nodeAffinity: {required: [{key: plimsoll.dev/gpu-mode}]}}";
    for (spec, parts) in [
        ("schedulerName: default-scheduler", &[][..]),
        ("schedulerName: gpu", &["spec.schedulerName: ", "unless `gpu` serves claims"]),
        (affinity, &["spec.affinity.nodeAffinity: ", "plimsoll.dev/gpu-mode=claims"]),
        (
            "env: $(ALIYUN_COM_GPU_MEM_DEV)",
            &["spec: ALIYUN_COM_GPU_MEM_DEV ", "_CONTAINER instead"],
        ),
        ("env: ALIYUN_COM_GPU_MEM_IDX", &["spec: ALIYUN_COM_GPU_MEM_IDX "]),
        ("env: ALIYUN_COM_GPU_MEM_POD", &["spec: ALIYUN_COM_GPU_MEM_POD "]),
        ("env: ALIYUN_COM_GPU_MEM_CONTAINER", &[]),
    ] {
        let found = warnings(&pod("name: a", "4", spec));
        assert_eq!(found.is_empty(), parts.is_empty(), "{spec}: {found}");
        assert!(parts.iter().all(|part| found.contains(part)), "{spec}: {found}");
    }
}

#[test]
fn what_an_init_container_makes_grow_is_told_with_the_pods_totals() {
    let cores = |init: u32| format!("gpu-cores: '{{\"main\":20,\"load\":{init}}}'");
    let init = |units: u32| {
        format!(
            "initContainers: [{{name: load, resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}}}]\n  containers:"
        )
    };
    let told = |units, init_cores| {
        warnings(&annotated(&cores(init_cores)).replace("containers:", &init(units)))
    };
    assert_eq!(told(4, 20), "");
    let memory = told(6, 10);
    assert!(
        memory.contains("`load`, which uses that of container `main`: memory from 4Gi to 6Gi; "),
        "{memory}"
    );
    assert!(told(3, 50).contains("`main`: cores from 20 to 50; "));
    assert!(told(6, 50).contains("`main`: memory from 4Gi to 6Gi, cores from 20 to 50; "));
}

#[test]
fn containers_of_a_pod_with_exclusive_gpus_have_the_same_number() {
    let of = |log: u32| {
        let values = format!(r#"gpu-card-count: '{{"main":"2 exclusive","log":{log}}}'"#);
        let units = "{name: log, resources: {limits: {aliyun.com/gpu-mem: 2}}}";
        convert(&annotated(&values).replace("{name: log}", units), &[])
    };
    let error = of(1).failure();
    assert!(error.contains("`main` and `log` have 2 and 1 GPUs"), "{error}");
    let converted = of(2).stdout;
    assert_eq!(converted.matches("- name: gpu\n").count(), 4, "{converted}");
    assert!(converted.contains("count: 2") && !converted.contains("memory:"), "{converted}");
}

#[test]
fn a_pod_that_cannot_be_a_client_of_mps_has_the_drivers_isolation_as_by_units() {
    let pod = annotated("gpu-isolation: mps");
    let by = |text: &str| {
        let converted = convert(text, &[]).success();
        let (_, isolation) = converted.split_once("isolation: ").unwrap();
        isolation.lines().next().unwrap().to_owned()
    };
    assert_eq!(by(&pod), "mps");
    let own = |list: &str, path: &str| {
        pod.replace("name: main,", &format!("name: main, {list}: [{{name: v, {path}}}],"))
    };
    assert_eq!(by(&own("volumeMounts", "mountPath: /dev/shm/")), "driver");
    assert_eq!(by(&own("volumeDevices", "devicePath: /run/nvidia-mps")), "driver");
    assert_eq!(by(&own("volumeMounts", "mountPath: /data")), "mps");
    assert_eq!(by(&pod.replace("spec:\n", "spec:\n  hostIPC: true\n")), "driver");
    // A container without a share of the GPU may have it.
    let log = pod.replace("name: log", "name: log, volumeMounts: [{mountPath: /dev/shm}]");
    assert_eq!(by(&log), "mps");
}

/// The names of the templates that are written, which must be those that pods name.
fn templates(text: &str) -> Vec<String> {
    let (mut written, mut named) = (Vec::new(), Vec::new());
    for line in convert(text, &[]).success().lines() {
        if let Some(name) = line.strip_prefix("  name: a-gpu-") {
            written.push(name.to_owned());
        }
        if let Some((_, name)) = line.split_once("resourceClaimTemplateName: a-gpu-") {
            named.push(name.to_owned());
        }
    }
    assert!(named.iter().all(|name| written.contains(name)), "{written:?} {named:?}");
    written
}

#[test]
fn a_share_has_a_template_of_its_own_name() {
    let four = pod("name: a", "4", "");
    let name = templates(&four);
    assert!(name.len() == 1 && name[0].len() == 6, "{name:?}");
    assert_eq!(templates(&format!("{four}---\n{four}")), name);
    let five = templates(&pod("name: a", "5", ""));
    assert_ne!(five, name);
    assert_eq!(
        templates(&format!("{four}---\n{}", pod("name: a", "5", ""))),
        [name, five].concat()
    );
    let long = pod(&format!("name: {}", "a".repeat(243)), "4", "");
    let error = convert(&long, &[]).failure();
    assert!(error.contains("more than 253 characters; shorten metadata.name"), "{error}");
}

#[test]
fn a_pod_with_another_claim_named_gpu_has_one_named_after_its_container() {
    let text = pod("name: a", "4", "resourceClaims: [{name: gpu, resourceClaimName: x}]");
    let converted = convert(&text, &[]).success();
    assert!(converted.contains("- name: gpu-main\n    resourceClaimTemplateName"), "{converted}");
    assert!(converted.contains("resourceClaimName: x"), "{converted}");
}

#[test]
fn a_manifest_without_units_keeps_its_text() {
    let text = "# head\n---\nkind: Pod   # c\nspec: {containers: [{name: a}]}\n---\n";
    assert_eq!(convert(text, &[]).success(), text);
    assert_eq!(convert("", &[]).success(), "");
}
