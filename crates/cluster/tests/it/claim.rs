//! The annotations of a bound pod.

use api::gpus::{MAX_GPUS, MAX_NAME};
use cluster::{GpuRequestError, MAX_ANNOTATION_BYTES, Pod, claim_annotations};
use jiff::Timestamp;
use placement::gpu::{
    Choice, ChosenGpu, Claim, ContainerKind, ContainerRequest, GpuRequest, GpuUse, Reservation,
};
use placement::names::Names;
use placement::units::{Cores, GpuId, Units};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ask(name: &str, kind: ContainerKind, position: usize, units: u32) -> ContainerRequest {
    let gpu_use = GpuUse::default();
    ContainerRequest { name: name.to_owned(), kind, position, units: Units(units), gpu_use }
}

#[test]
fn bind_writes_our_annotation_and_aliyuns() {
    let request = GpuRequest::new([
        ask("load", ContainerKind::Init, 0, 4),
        ask("serve", ContainerKind::App, 0, 2),
        ask("log", ContainerKind::App, 2, 1),
    ])
    .unwrap()
    .unwrap();
    let uuid = GpuId::from("GPU-00000003-0000-0000-0000-000000000000");
    let claim = Claim::on_gpu(&request, &uuid);
    let gpu = ChosenGpu { uuid, index: 3, units: Units(16), left: Units(12) };
    let choice = Choice { gpus: vec![gpu], cost: None };
    let reservation = Reservation { claim, choice };
    let at: Timestamp = "2026-11-20T09:00:00.000000001Z".parse().unwrap();
    let written = claim_annotations(&Names::default(), &request, &reservation, at);
    let golden = include_str!("../golden/bind-annotations.json");
    assert_eq!(format!("{}\n", serde_json::to_string_pretty(&written).unwrap()), golden);
}

fn chosen(index: u32) -> ChosenGpu {
    let uuid = GpuId::from(format!("GPU-{index}"));
    ChosenGpu { uuid, index, units: Units(16), left: Units(0) }
}

#[test]
fn bind_writes_several_gpus_where_the_pod_has_them() {
    let limit = Some(Units(6));
    let gpu_use = GpuUse { gpus: 2, exclusive: true, limit, ..GpuUse::default() };
    let asks = [ContainerRequest { gpu_use, ..ask("train", ContainerKind::App, 0, 4) }];
    let request = GpuRequest::new(asks).unwrap().unwrap();
    let gpus = vec![chosen(5), chosen(2)];
    let uuids: Vec<GpuId> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let reservation = Reservation {
        claim: Claim::on_gpus(&request, &uuids),
        choice: Choice { gpus, cost: None },
    };
    let at: Timestamp = "2026-11-20T09:00:00Z".parse().unwrap();
    let written = claim_annotations(&Names::default(), &request, &reservation, at);
    let of = |key: &str| written[key].as_str();
    assert_eq!(
        of("plimsoll.dev/gpu-claim"),
        r#"{"train":{"GPU-2":{"units":2,"exclusive":true,"limit":6},"GPU-5":{"units":2,"exclusive":true,"limit":6}}}"#
    );
    assert_eq!(of("scheduler.framework.gpushare.allocation"), r#"{"0":{"2":16,"5":16}}"#);
    assert_eq!((of("ALIYUN_COM_GPU_MEM_IDX"), of("ALIYUN_COM_GPU_MEM_POD")), ("2", "4"));
}

fn bytes_of<'a>(annotations: impl IntoIterator<Item = (&'a String, &'a String)>) -> usize {
    annotations.into_iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn asks() -> impl Strategy<Value = Vec<ContainerRequest>> {
    let kind = prop_oneof![
        6 => Just(ContainerKind::App), 1 => Just(ContainerKind::Sidecar), 1 => Just(ContainerKind::Init),
    ];
    let ask = ("[a-z0-9]{0,60}", kind, 1_u32..=8, any::<bool>(), any::<bool>());
    let asks = prop::collection::vec(ask, 1..40);
    (asks, any::<bool>()).prop_map(|(asks, has_init)| {
        let asks = asks.into_iter().enumerate();
        asks.map(|(at, (name, kind, gpus, exclusive, limited))| {
            // An init container hands one GPU on, and only one container may have all of a GPU's compute.
            let gpus = if has_init { 1 } else { gpus };
            let kind = if has_init { kind } else { ContainerKind::App };
            let cores = if at == 0 { Cores::ALL } else { Cores::ZERO };
            let limit = limited.then_some(Units(u32::MAX));
            let gpu_use = GpuUse { gpus, exclusive, cores, limit, processes: 1 };
            // Long numbers, which sum up to no more than a number of units holds.
            let units = Units(gpus * 1_000_000);
            ContainerRequest { name: format!("{name}{at}"), kind, position: at, units, gpu_use }
        })
        .collect()
    })
}

proptest! {
    #[test]
    fn bind_never_writes_more_than_was_counted_for_it(asks in asks(), at in any::<i32>()) {
        let names = Names::default();
        let request = GpuRequest::new(asks).unwrap().unwrap();
        let most = request.containers().iter().map(|ask| ask.gpu_use.gpus).max().unwrap_or(1);
        let gpus: Vec<ChosenGpu> = (0..most)
            .map(|n| {
                let uuid = GpuId::from(format!("{n:0>MAX_NAME$}"));
                ChosenGpu { uuid, index: u32::MAX - n, units: Units(u32::MAX), left: Units(0) }
            })
            .collect();
        let uuids: Vec<GpuId> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let reservation = Reservation {
            claim: Claim::on_gpus(&request, &uuids),
            choice: Choice { gpus, cost: None },
        };
        let at = Timestamp::from_second(i64::from(at)).unwrap();
        let written = claim_annotations(&names, &request, &reservation, at);
        let (own, counted) = Pod::default().annotation_bytes(&names, &request);
        prop_assert_eq!(own, 0);
        prop_assert!(bytes_of(&written) <= counted, "{} of {counted}", bytes_of(&written));
    }
}

#[test]
fn a_claim_that_the_device_plugin_writes_leaves_room_for_others() {
    // It follows the kubelet's record: at most all GPUs of a node in place of the one that was counted.
    let bytes = |gpus| {
        let gpu_use = GpuUse { gpus, ..GpuUse::default() };
        let ask = ContainerRequest { gpu_use, ..ask("main", ContainerKind::App, 0, 64) };
        let request = GpuRequest::new([ask]).unwrap().unwrap();
        Pod::default().annotation_bytes(&Names::default(), &request).1
    };
    let all = bytes(u32::try_from(MAX_GPUS).unwrap());
    assert!(MAX_ANNOTATION_BYTES + (all - bytes(1)) < (256 << 10) - (32 << 10), "{all}");
}

/// A pod with so many containers that each ask for a unit of so many GPUs, and this annotation.
fn wide_pod(containers: usize, gpus: usize, text: &str, node: Option<&str>) -> Pod {
    let containers: Vec<Value> = (0..containers)
        .map(|n| json!({"name": format!("c{n:03}"), "resources": {"limits": {"aliyun.com/gpu-mem": gpus}}}))
        .collect();
    let annotations = json!({
        "text": text, "plimsoll.dev/gpu-card-count": gpus.to_string(),
        "plimsoll.dev/gpu-claim": "what Bind replaces ".repeat(1_000),
    });
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "annotations": annotations},
        "spec": {"containers": containers, "nodeName": node},
    });
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_may_have_192_kib_of_annotations_with_its_claim_and_not_a_byte_more() {
    let names = Names::default();
    for (containers, gpus) in [(1, 1), (1, 8), (100, 8), (256, 1)] {
        let small = wide_pod(containers, gpus, "", None);
        let request = small.request(&names).unwrap().unwrap();
        let (own, added) = small.annotation_bytes(&names, &request);
        let most = MAX_ANNOTATION_BYTES - own - added;
        let largest = wide_pod(containers, gpus, &"x".repeat(most), None);
        assert!(largest.request(&names).is_ok());
        let larger = "x".repeat(most + 1);
        let refused = wide_pod(containers, gpus, &larger, None).request(&names);
        let own = own + most + 1;
        assert_eq!(refused, Err(GpuRequestError::LongAnnotations { own, added }));
        // Its author may add as many as Kubernetes takes once it is bound: it holds what it holds.
        let bound = wide_pod(containers, gpus, &larger, Some("n1"));
        assert_eq!(bound.request(&names), Ok(Some(request)));
    }
}

#[test]
fn a_claim_that_alone_is_too_long_is_refused_with_its_size() {
    let refused = wide_pod(256, 8, "", None).request(&Names::default()).unwrap_err();
    let text = refused.to_string();
    assert!(text.starts_with("annotations: ") && text.contains("fewer GPUs"), "{text}");
    assert!(wide_pod(1, MAX_GPUS, "", None).request(&Names::default()).is_ok());
}
