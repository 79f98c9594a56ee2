//! What is beyond a limit is refused; what is at it is not.

use std::collections::BTreeMap;

use api::JsonError;
use api::claim::{Claim, Detailed, Share};
use api::expected_use::{self, ExpectedUse};
use api::gpus::{Gpu, Gpus, GpusError, MAX_GPUS, MAX_NAME, MAX_PODS, MAX_TEXT};
use api::pods::{self, NodePods, PodUse, PodsError};
use api::readings::{MAX_CELLS, MAX_NODES, MetricColumn, PolledReadings, ReadingsError};
use api::share::{self, NodeShare};
use api::share_config::ShareConfig;
use api::workloads::{Workload, Workloads, WorkloadsError};
use placement::names::limits;
use placement::reading::{Reading, ReadingError};
use placement::units::{Cores, GpuId, MiB, PodUid, Ratio, Units};

use crate::values::{self, gpu, uuid};

fn refused(gpus: Vec<Gpu>) -> GpusError {
    Gpus::from_json(&Gpus(gpus).to_json()).unwrap_err()
}

fn uid(pod: usize) -> PodUid {
    PodUid::from(format!("00000000-0000-4000-8000-{pod:012x}"))
}

#[test]
fn a_text_that_is_too_long_is_not_parsed() {
    let text = " ".repeat(MAX_TEXT + 1);
    let too_long = JsonError::TooLong { length: MAX_TEXT + 1, limit: MAX_TEXT };
    assert_eq!(Gpus::from_json(&text), Err(GpusError::Json(too_long)));
    let text = " ".repeat(share::MAX_TEXT + 1);
    assert!(matches!(NodeShare::from_json(&text), Err(JsonError::TooLong { .. })));
}

#[test]
fn an_expected_use_that_is_too_long_or_names_another_resource_is_refused() {
    let long = " ".repeat(expected_use::MAX_TEXT + 1);
    assert!(matches!(ExpectedUse::from_json(&long), Err(JsonError::TooLong { .. })));
    for wrong in [r#"{"mem":"1Gi"}"#, r#"{"cpu":1}"#, r#"{"cpu":"1","cpu":"2"}"#, "1"] {
        assert!(matches!(ExpectedUse::from_json(wrong), Err(JsonError::Malformed(_))), "{wrong}");
    }
}

#[test]
fn as_many_gpus_and_pods_as_a_machine_may_have_are_read() {
    let pods = |gpu: usize| (0..16).map(move |pod| (uid(gpu * 16 + pod), Units(1))).collect();
    let gpus = Gpus(
        (0..MAX_GPUS)
            .map(|index| Gpu {
                model: "N".repeat(MAX_NAME),
                pods: pods(index),
                ..gpu(u32::try_from(index).unwrap())
            })
            .collect(),
    );
    assert_eq!(Gpus::from_json(&gpus.to_json()), Ok(gpus));
    let crowded = Gpu { pods: (0..MAX_PODS).map(|pod| (uid(pod), Units(1))).collect(), ..gpu(0) };
    assert_eq!(Gpus::from_json(&Gpus(vec![crowded.clone()]).to_json()), Ok(Gpus(vec![crowded])));
}

#[test]
fn more_gpus_or_pods_than_a_machine_has_are_refused() {
    let many = (0..65).map(gpu).collect();
    assert_eq!(refused(many), GpusError::TooMany(65));
    let crowded = Gpu { pods: (0..=MAX_PODS).map(|pod| (uid(pod), Units(1))).collect(), ..gpu(7) };
    assert_eq!(refused(vec![crowded]), GpusError::TooManyPods { index: 7, pods: MAX_PODS + 1 });
    let outside = Gpu { outside_mps: (0..=MAX_PODS).map(uid).collect(), ..gpu(7) };
    assert_eq!(refused(vec![outside]), GpusError::TooManyPods { index: 7, pods: MAX_PODS + 1 });
}

fn text(length: usize) -> String {
    "N".repeat(length)
}

fn long_name_of_gpu(field: &'static str, limit: usize) -> GpusError {
    GpusError::LongName { index: 0, field, length: limit + 1, limit }
}

#[test]
fn names_that_no_gpu_or_pod_has_are_refused() {
    let model = Gpu { model: text(MAX_NAME + 1), ..gpu(0) };
    assert_eq!(refused(vec![model]), long_name_of_gpu("model", MAX_NAME));
    let name = Gpu { uuid: text(MAX_NAME + 1).into(), ..gpu(0) };
    assert_eq!(refused(vec![name]), long_name_of_gpu("uuid", MAX_NAME));
    let pods: BTreeMap<PodUid, Units> = [(text(limits::UID + 1).into(), Units(1))].into();
    assert_eq!(refused(vec![Gpu { pods, ..gpu(0) }]), long_name_of_gpu("pod UID", limits::UID));
}

#[test]
fn a_uuid_that_json_writes_longer_or_a_list_divides_is_refused() {
    for odd in ["\u{1}", "\n", "\"", "\\", ",", " ", "\u{7f}", "é", "\u{2028}"] {
        let name = format!("GPU-{odd}7f2a");
        assert_eq!(refused(vec![Gpu { uuid: name.into(), ..gpu(0) }]), GpusError::OddUuid(0));
    }
    for uuid in ["GPU-7f2a-0b11", "MIG-GPU-7f2a/1/2", "MIG-7f2a"] {
        let gpus = Gpus(vec![Gpu { uuid: uuid.into(), ..gpu(0) }]);
        assert_eq!(Gpus::from_json(&gpus.to_json()), Ok(gpus));
    }
}

#[test]
fn a_gpu_listed_twice_is_refused() {
    let again = Gpu { uuid: uuid(0), ..gpu(1) };
    assert_eq!(refused(vec![gpu(0), again]), GpusError::Twice(uuid(0)));
}

#[test]
fn a_claim_may_be_as_long_as_its_containers_make_it_and_no_longer() {
    let units = Units(u32::MAX);
    let cores = Cores(u32::MAX);
    let limit = Some(units);
    let share = Share::Detailed(Detailed { units, cores, exclusive: true, limit });
    let on: BTreeMap<GpuId, Share> = [(GpuId::from("G".repeat(MAX_NAME)), share)].into();
    let containers = (0..1000).map(|number| (format!("{number:0>63}"), on.clone()));
    let claim = Claim { containers: containers.collect() };
    let text = claim.to_json();
    assert_eq!(Claim::from_json(&text, 1000), Ok(claim));
    let refused = Claim::from_json(&text, 999);
    assert!(matches!(refused, Err(JsonError::TooLong { .. })), "{refused:?}");
}

#[test]
fn a_claim_that_names_a_container_or_a_gpu_twice_is_refused() {
    for twice in [r#"{"a":{"GPU-1":1},"a":{"GPU-1":1}}"#, r#"{"a":{"GPU-1":1,"GPU-1":2}}"#] {
        let refused = Claim::from_json(twice, 2).unwrap_err();
        assert!(refused.to_string().starts_with("a key stands in an object twice"), "{refused}");
    }
}

#[test]
fn an_error_repeats_little_of_the_text() {
    let text = format!(r#"{{"{}":[]}}"#, "c".repeat(5000));
    assert!(Claim::from_json(&text, 100).unwrap_err().to_string().len() <= 200);
    let text = format!(r#"[{{"uuid":0,"model":"{}"}}]"#, "c".repeat(5000));
    assert!(Gpus::from_json(&text).unwrap_err().to_string().len() <= 230);
}

#[test]
fn a_fault_of_a_share_config_names_field_value_and_fix() {
    let kind = r#""apiVersion":"plimsoll.dev/v1","kind":"ShareConfig""#;
    let of = |fields: &str| format!("{{{kind},{fields}}}");
    let long = format!("{:?}", "x".repeat(5000));
    for (text, wanted) in [
        (
            "7".to_owned(),
            "parameters: found 7: write an object with apiVersion `plimsoll.dev/v1` and",
        ),
        ("{}".to_owned(), "apiVersion: found nothing: write `plimsoll.dev/v1`"),
        (
            format!("{{{kind}}}").replace("v1", "v2"),
            "apiVersion: found \"plimsoll.dev/v2\": write `p",
        ),
        (
            format!("{{{kind}}}").replace("Share", "Gpu"),
            "kind: found \"GpuConfig\": write `ShareConfig`",
        ),
        (of(r#""isolation":"Mps""#), "isolation: found \"Mps\": write `driver`, `mps` or `none`"),
        (of(r#""isolation":null"#), "isolation: found nothing: write `driver`, `mps` or `none`"),
        (
            of(r#""memoryLimit":"6GB""#),
            "memoryLimit: found \"6GB\": write bytes above 0, such as `6Gi`",
        ),
        (of(r#""memoryLimit":0"#), "memoryLimit: found 0: write bytes above 0"),
        (of(r#""memoryLimit":-1"#), "memoryLimit: found -1: write bytes above 0"),
        (of(&format!("{long}:{long}")), "xxx"),
    ] {
        let error = ShareConfig::from_value(&serde_json::from_str(&text).unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(wanted) && error.len() < 220, "{error}");
    }
    for limit in ["1048577", "\"1025Ki\"", "\"2Mi\""] {
        let text = of(&format!(r#""memoryLimit":{limit}"#));
        let read = ShareConfig::from_value(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(read.memory_limit, Some(MiB(2)));
    }
}

fn pods(pods: Vec<PodUse>) -> Result<NodePods, PodsError> {
    NodePods::from_json(&NodePods { pods, ..values::pods() }.to_json())
}

fn pod(uid: &str) -> PodUse {
    PodUse { uid: uid.into(), ..values::pods().pods.remove(0) }
}

fn crowd(count: usize) -> Vec<PodUse> {
    (0..count).map(|n| PodUse { uid: uid(n), ..pod("a") }).collect()
}

#[test]
fn as_many_pods_as_a_node_may_have_are_read_and_no_more() {
    assert_eq!(pods(crowd(pods::MAX_PODS)).map(|read| read.pods.len()), Ok(pods::MAX_PODS));
    assert_eq!(pods(crowd(pods::MAX_PODS + 1)), Err(PodsError::TooMany(1025)));
    let long = " ".repeat(pods::MAX_TEXT + 1);
    assert!(matches!(NodePods::from_json(&long), Err(PodsError::Json(JsonError::TooLong { .. }))));
}

#[test]
fn a_uid_that_no_pod_has_is_refused() {
    assert_eq!(pods(vec![pod("")]), Err(PodsError::Uid(0)));
    assert_eq!(pods(vec![pod("a"), pod(&"a".repeat(64))]), Err(PodsError::Uid(64)));
}

#[test]
fn numbers_that_no_pod_uses_are_no_answer() {
    for wrong in ["1e999", "NaN", "\"1\"", "-"] {
        let text = format!(
            r#"{{"time":"2026-11-22T07:00:00Z","pods":[{{"uid":"a","cpu_seconds_total":{wrong}}}]}}"#
        );
        assert!(NodePods::from_json(&text).is_err(), "{wrong}");
    }
    for wrong in ["-1", "1.5", "99999999999999999999"] {
        let text = format!(
            r#"{{"time":"2026-11-22T07:00:00Z","pods":[{{"uid":"a","memory_used_bytes":{wrong}}}]}}"#
        );
        assert!(NodePods::from_json(&text).is_err(), "{wrong}");
    }
}

fn learned(change: impl Fn(&mut Workload)) -> Result<Workloads, WorkloadsError> {
    let mut all = values::workloads();
    change(&mut all.workloads[0]);
    Workloads::from_json(&all.to_json())
}

#[test]
fn ten_thousand_workloads_with_the_longest_names_are_read_and_no_more() {
    let mut longest = values::workloads().workloads.remove(0);
    longest.memory = longest.cpu;
    longest.namespace = "n".repeat(63);
    longest.kind = "k".repeat(63);
    longest.name = "a".repeat(253);
    let all = |count| Workloads { workloads: vec![longest.clone(); count], ..values::workloads() };
    let text = all(10_000).to_json();
    assert!(text.len() < 10 << 20, "{}", text.len());
    assert_eq!(Workloads::from_json(&text).map(|read| read.workloads.len()), Ok(10_000));
    assert_eq!(Workloads::from_json(&all(10_001).to_json()), Err(WorkloadsError::TooMany(10_001)));
}

fn long_name(field: &'static str, length: usize, limit: usize) -> WorkloadsError {
    WorkloadsError::LongName { field, length, limit }
}

#[test]
fn a_workload_that_cannot_be_is_refused() {
    assert_eq!(learned(|w| w.namespace = "n".repeat(64)), Err(long_name("namespace", 64, 63)));
    assert_eq!(learned(|w| w.kind = "k".repeat(64)), Err(long_name("kind", 64, 63)));
    assert_eq!(learned(|w| w.name = "a".repeat(254)), Err(long_name("name", 254, 253)));
    let negative = learned(|w| w.cpu.as_mut().unwrap().by_request.as_mut().unwrap().p99 = -1.0);
    assert_eq!(negative, Err(WorkloadsError::Amount("-1".to_owned())));
    for template in ["c0ffee", "0000000000C0FFEG", "+000000000c0ffee"] {
        let text = values::workloads().to_json().replace("0000000000c0ffee", template);
        assert!(Workloads::from_json(&text).is_err(), "{template}");
    }
}

/// An answer with so many nodes of the longest names, and so many metrics with values as long as any.
fn longest(nodes: usize, metrics: usize) -> PolledReadings {
    let column = |number| MetricColumn {
        name: format!("{}{number:02}", "m".repeat(61)).into(),
        values: vec![Some(123_456_789.123_45); nodes],
        ages: vec![Some(-86_400); nodes],
    };
    PolledReadings {
        nodes: vec!["n".repeat(253).into(); nodes],
        metrics: (0..metrics).map(column).collect(),
        ..values::readings()
    }
}

#[test]
fn readings_of_as_many_nodes_as_an_answer_has_are_read_and_no_more() {
    for metrics in [0, 2, 20, 100] {
        let nodes = PolledReadings::most_nodes(metrics);
        assert!(nodes <= MAX_NODES && nodes * metrics <= MAX_CELLS && nodes >= 3_000);
        let text = longest(nodes, metrics).to_json();
        assert!(text.len() < 14 << 20, "{}", text.len());
        assert!(PolledReadings::from_json(&text).is_ok());
        let more = ReadingsError::TooMany { nodes: nodes + 1, metrics };
        assert_eq!(PolledReadings::from_json(&longest(nodes + 1, metrics).to_json()), Err(more));
    }
    let more = ReadingsError::TooMany { nodes: 1, metrics: 101 };
    assert_eq!(PolledReadings::from_json(&longest(1, 101).to_json()), Err(more));
}

#[test]
fn an_answer_takes_no_more_nodes_and_metrics_than_are_read() {
    let at = values::readings().time;
    let readings = |from: usize, count: usize| -> Vec<_> {
        let named = |number| format!("metric_{number}").into();
        let value = Reading::new(Ratio::new(0.5).unwrap(), at);
        (from..from + count).map(|number| (named(number), value)).collect()
    };
    let mut answer = PolledReadings::new("1-1".to_owned(), at);
    let mut pushed = 0;
    while answer.push(format!("n{pushed}").into(), &readings(0, 60)) {
        pushed += 1;
    }
    assert_eq!(pushed, MAX_CELLS / 60);
    assert!(PolledReadings::from_json(&answer.to_json()).is_ok());
    // As after a change of the policy.
    let mut answer = PolledReadings::new("1-1".to_owned(), at);
    assert!(
        answer.push("a".into(), &readings(0, 60)) && answer.push("b".into(), &readings(50, 60))
    );
    assert_eq!((answer.of_node(0).count(), answer.of_node(1).count()), (60, 50));
    assert_eq!(PolledReadings::from_json(&answer.to_json()), Ok(answer));
}

fn polled(change: impl Fn(&mut PolledReadings)) -> Result<PolledReadings, ReadingsError> {
    let mut all = values::readings();
    change(&mut all);
    PolledReadings::from_json(&all.to_json())
}

#[test]
fn an_answer_with_readings_that_cannot_be_is_refused_as_a_whole() {
    for version in ["", "5f/2", "a b", "1&since=2"] {
        assert_eq!(polled(|all| all.version = version.into()), Err(ReadingsError::Version));
    }
    assert_eq!(polled(|all| all.version = "1".repeat(65)), Err(ReadingsError::Version));
    assert_eq!(polled(|all| all.nodes[1] = "".into()), Err(ReadingsError::Node(0)));
    assert_eq!(polled(|all| all.nodes[1] = "n".repeat(254).into()), Err(ReadingsError::Node(254)));
    let twice = polled(|all| all.metrics[1].name = all.metrics[0].name.clone());
    assert_eq!(twice, Err(ReadingsError::Metric(1)));
    for name in ["", "a b", "a/b"] {
        assert_eq!(polled(|all| all.metrics[0].name = name.into()), Err(ReadingsError::Metric(0)));
    }
    assert_eq!(polled(|all| all.metrics[1].ages.truncate(1)), Err(ReadingsError::Column(1)));
    assert_eq!(polled(|all| all.metrics[0].values.push(None)), Err(ReadingsError::Column(0)));
    assert_eq!(polled(|all| all.nodes.truncate(1)), Err(ReadingsError::Column(0)));
    let text = values::readings().to_json().replace("0.63012", "1e400");
    assert!(matches!(PolledReadings::from_json(&text), Err(ReadingsError::Json(_))));
}

#[test]
fn a_value_that_is_no_fraction_is_an_error_and_one_without_a_time_is_absent() {
    let read = |change: fn(&mut MetricColumn)| {
        let all = polled(|all| change(&mut all.metrics[1])).unwrap();
        let of_node = all.of_node(0).nth(1).map(|(_, reading)| reading.map(|it| it.value.get()));
        (of_node, all.of_node(1).count())
    };
    assert_eq!(read(|_| ()), (Some(Ok(0.25)), 1));
    let negative = ReadingError::Value("-0.25".to_owned());
    assert_eq!(read(|memory| memory.values[0] = Some(-0.25)), (Some(Err(negative)), 1));
    assert_eq!(read(|memory| memory.ages[0] = None), (None, 1));
    assert_eq!(read(|memory| memory.ages[0] = Some(i64::MIN)), (None, 1));
    assert_eq!(read(|memory| memory.ages[0] = Some(i64::MAX)), (None, 1));
    assert_eq!(read(|memory| memory.values[1] = None), (Some(Ok(0.25)), 0));
}
