//! What is written is read back as it was; no text makes a codec panic.

use api::allocation::Allocation;
use api::claim::{Claim, Share};
use api::expected_use::ExpectedUse;
use api::explain::{self, Request};
use api::gpus::{Closed, Gpu, Gpus, Isolation};
use api::health::{Condition, ConditionState, Health};
use api::inspect::{Device, Inspected, InspectedNode, InspectedPod};
use api::pods::{NodePods, PodUse};
use api::policy_check::{Fault, PolicyCheck};
use api::readings::{MetricColumn, PolledReadings};
use api::shadow::{Choice, Difference, Shadow, ShadowedPod};
use api::share::{GpuShare, NodeShare};
use api::share_config::ShareConfig;
use api::workloads::{Distribution, Learned, Workload, Workloads};
use jiff::Timestamp;
use placement::units::{Cores, GpuId, MiB, PodUid, Units};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;

fn units() -> impl Strategy<Value = Units> {
    any::<u32>().prop_map(Units)
}

/// Names with whatever JSON has to escape.
fn name() -> impl Strategy<Value = String> {
    "\\PC{1,12}|[a-z\"\\\\\n]{1,12}"
}

fn uuid() -> impl Strategy<Value = GpuId> {
    name().prop_map(GpuId::from)
}

fn gpus() -> impl Strategy<Value = Gpus> {
    let pods = btree_map(name().prop_map(PodUid::from), units(), 0..6);
    let closed = of(prop_oneof![
        Just(Closed::Isolation),
        Just(Closed::Cdi),
        Just(Closed::CdiFolder),
        Just(Closed::ComputeMode),
        Just(Closed::Context),
        Just(Closed::Dra),
        Just(Closed::Claims),
        Just(Closed::Plugin),
        Just(Closed::Other)
    ]);
    let isolation =
        of(prop_oneof![Just(Isolation::None), Just(Isolation::Mps), Just(Isolation::Driver)]);
    let outside = vec(name().prop_map(PodUid::from), 0..3);
    let linked = vec(any::<u32>(), 0..4);
    let states =
        (any::<bool>(), closed, isolation, linked, of(any::<u16>()), of(any::<bool>()), outside);
    let gpu = (name(), any::<u64>(), units(), of(any::<u32>()), states, pods);
    let gpus = btree_map(any::<u32>(), gpu, 0..6);
    gpus.prop_map(|gpus| {
        let gpu = |(index, (model, memory, units, numa_node, states, pods))| {
            let (healthy, closed, isolation, linked, mps_clients, mps_drain, outside_mps) = states;
            Gpu {
                uuid: GpuId::from(format!("GPU-{index}")),
                index,
                model,
                memory: MiB(memory),
                units,
                numa_node,
                linked,
                healthy,
                closed,
                isolation,
                mps_clients,
                mps_drain,
                outside_mps,
                pods,
            }
        };
        Gpus(gpus.into_iter().map(gpu).collect())
    })
}

fn share() -> impl Strategy<Value = NodeShare> {
    let gpu = (uuid(), units(), units(), of(any::<u64>()), of(0.0..=1.0_f64));
    let gpu = gpu.prop_map(|(uuid, units, allocated, used, utilisation)| GpuShare {
        uuid,
        units,
        allocated,
        used: used.map(MiB),
        utilisation,
    });
    let time = (0_i64..4_000_000_000).prop_map(|second| Timestamp::from_second(second).unwrap());
    (time, vec(gpu, 0..6)).prop_map(|(time, gpus)| NodeShare { time, gpus })
}

fn claim() -> impl Strategy<Value = Claim> {
    let detailed = (units(), 0..=100_u32, any::<bool>(), of(units()));
    let share = detailed.prop_map(|(units, cores, exclusive, limit)| {
        let share = placement::gpu::GpuShare::of(units);
        Share::new(placement::gpu::GpuShare { cores: Cores(cores), exclusive, ..share }, limit)
    });
    let containers = btree_map(name(), btree_map(uuid(), share, 0..3), 0..6);
    containers.prop_map(|containers| Claim { containers })
}

fn allocation() -> impl Strategy<Value = Allocation> {
    let containers = btree_map(any::<usize>(), btree_map(any::<u32>(), units(), 0..3), 0..6);
    containers.prop_map(|containers| Allocation { containers })
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0_i64..4_000_000_000).prop_map(|second| Timestamp::from_second(second).unwrap())
}

fn pods() -> impl Strategy<Value = NodePods> {
    let pod = (name(), of(0.0..1e12_f64), of(any::<u64>()));
    let pod = pod.prop_map(|(uid, cpu_seconds_total, memory_used_bytes)| PodUse {
        uid: uid.into(),
        cpu_seconds_total,
        memory_used_bytes,
    });
    (time(), any::<u64>(), vec(pod, 0..6)).prop_map(|(time, omitted, pods)| NodePods {
        time,
        omitted,
        pods,
    })
}

fn workloads() -> impl Strategy<Value = Workloads> {
    let distribution =
        || {
            prop::array::uniform5(0.0..1e15_f64)
                .prop_map(|[mean, p50, p90, p95, p99]| Distribution { mean, p50, p90, p95, p99 })
        };
    let learned = move || {
        (distribution(), of(distribution()))
            .prop_map(|(amount, by_request)| Learned { amount, by_request })
    };
    let id = (name(), name(), name(), any::<u64>());
    let workload = (id, time(), 0.0..1e9_f64, of(learned()), of(learned()));
    let workload = workload.prop_map(
        |((namespace, kind, name, template), last_seen, pod_minutes, cpu, memory)| Workload {
            namespace,
            kind,
            name,
            template,
            last_seen,
            pod_minutes,
            cpu,
            memory,
        },
    );
    (time(), vec(workload, 0..4)).prop_map(|(time, workloads)| Workloads { time, workloads })
}

fn readings() -> impl Strategy<Value = PolledReadings> {
    let reading = of((0.0..1e15_f64, -100..1_000_000_i64));
    let column = ("[a-z][a-z0-9_]{0,20}[a-z]", vec(reading, 4));
    let all = ("[0-9a-f]{1,16}-[0-9a-f]{1,16}", time(), vec(name(), 4), vec(column, 0..3));
    all.prop_map(|(version, time, nodes, columns)| {
        let mut metrics: Vec<MetricColumn> = Vec::new();
        for (name, readings) in columns {
            let (values, ages) = readings.into_iter().map(Option::unzip).unzip();
            if metrics.iter().all(|known| known.name.as_str() != name) {
                metrics.push(MetricColumn { name: name.into(), values, ages });
            }
        }
        let nodes = nodes.into_iter().map(Into::into).collect();
        PolledReadings { version, time, nodes, metrics }
    })
}

fn expected_use() -> impl Strategy<Value = ExpectedUse> {
    (of(name()), of(name())).prop_map(|(cpu, memory)| ExpectedUse { cpu, memory })
}

fn inspected() -> impl Strategy<Value = Inspected> {
    let pod = (name(), name(), any::<u32>());
    let pod = pod.prop_map(|(name, namespace, used)| InspectedPod { name, namespace, used });
    let device = (any::<u32>(), any::<u32>(), any::<u32>(), vec(pod, 0..3), any::<bool>());
    let device = device.prop_map(|(id, total, used, pods, unhealthy)| Device {
        id,
        total,
        used,
        pods,
        unhealthy,
    });
    let node = (name(), any::<u64>(), any::<u64>(), vec(device, 0..3));
    let node = node.prop_map(|(name, total, used, devs)| InspectedNode { name, total, used, devs });
    (vec(node, 0..3), "[a-z]{0,9}").prop_map(|(nodes, error)| Inspected { nodes, error })
}

prop_compose! {
    fn policy_check()(
        error in of((any::<u64>(), name(), name())),
        kind in of(name()),
        policy in of((name(), vec(0.0..1e9_f64, 0..3))),
        when_configured in vec(name(), 0..3),
        warnings in vec(name(), 0..3),
    ) -> PolicyCheck {
        PolicyCheck {
            valid: error.is_none(),
            error: error.map(|(line, field, problem)| Fault { line, field, problem }),
            refused: kind.clone(),
            kind,
            policy: policy.map(|(field, values)| serde_json::json!({field: values})),
            when_configured,
            warnings,
        }
    }
}

fn question() -> impl Strategy<Value = Request> {
    (name(), name(), any::<bool>(), of(vec(name(), 0..3))).prop_map(
        |(namespace, name, fresh, node_names)| Request { namespace, name, fresh, node_names },
    )
}

fn choice() -> impl Strategy<Value = Choice> {
    let choice = (any::<u32>(), any::<u32>(), any::<u32>(), vec(name(), 0..4), of(0..=100_u8));
    choice.prop_map(|(rejected, rejected_alone, best_nodes, best, best_score)| Choice {
        rejected,
        rejected_alone,
        best_nodes,
        best,
        best_score,
    })
}

fn health() -> impl Strategy<Value = Health> {
    use ConditionState::{Failed, Ok, Unknown, Warning};
    let state = prop::sample::select(vec![Ok, Warning, Failed, Unknown]);
    let condition = (name(), state, name(), of(name()), time());
    let condition = condition.prop_map(|(id, state, text, remedy, since)| Condition {
        id,
        state,
        text,
        remedy,
        since,
    });
    (name(), name(), vec(condition, 0..3)).prop_map(|(program, version, conditions)| Health {
        program,
        version,
        conditions,
    })
}

fn shadow() -> impl Strategy<Value = Shadow> {
    let pod = (name(), name(), name()).prop_map(|(namespace, name, uid)| explain::Pod {
        namespace,
        name,
        uid,
    });
    let differs = prop::sample::subsequence(vec![Difference::Filter, Difference::Score], 0..=2);
    let pod = (pod, time(), of(name()), any::<u32>(), choice(), choice(), differs);
    let pod = pod.prop_map(|(pod, time, node, nodes, policy, shadow, differs)| ShadowedPod {
        pod,
        time,
        node,
        nodes,
        policy,
        shadow,
        differs,
    });
    (time(), vec(name(), 0..2), vec(pod, 0..3)).prop_map(|(time, missing, pods)| Shadow {
        time,
        missing,
        pods,
    })
}

proptest! {
    #[test]
    fn a_question_is_read_back(question in question()) {
        let text = serde_json::to_string(&question).unwrap();
        prop_assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), question);
    }

    #[test]
    fn a_healths_answer_is_read_back(health in health()) {
        let text = serde_json::to_string(&health).unwrap();
        prop_assert_eq!(serde_json::from_str::<Health>(&text).unwrap(), health);
    }

    #[test]
    fn a_shadows_answer_is_read_back(shadow in shadow()) {
        let text = serde_json::to_string(&shadow).unwrap();
        prop_assert_eq!(serde_json::from_str::<Shadow>(&text).unwrap(), shadow);
    }

    #[test]
    fn gpus_are_read_back(gpus in gpus()) {
        prop_assert_eq!(Gpus::from_json(&gpus.to_json()), Ok(gpus));
    }

    #[test]
    fn a_share_is_read_back(share in share()) {
        prop_assert_eq!(NodeShare::from_json(&share.to_json()), Ok(share));
    }

    #[test]
    fn a_share_config_is_read_back(
        isolation in of(prop::sample::select(placement::gpu::Isolation::ALL.to_vec())),
        memory_limit in of(1..=1_u64 << 43),
    ) {
        let config = ShareConfig { isolation, memory_limit: memory_limit.map(MiB) };
        let value = serde_json::to_value(config).unwrap();
        prop_assert_eq!(ShareConfig::from_value(&value), Ok(config));
    }

    #[test]
    fn a_claim_is_read_back(claim in claim()) {
        prop_assert_eq!(Claim::from_json(&claim.to_json(), 99), Ok(claim));
    }

    #[test]
    fn an_allocation_is_read_back(allocation in allocation()) {
        prop_assert_eq!(Allocation::from_json(&allocation.to_json()), Ok(allocation));
    }

    #[test]
    fn pods_are_read_back(pods in pods()) {
        prop_assert_eq!(NodePods::from_json(&pods.to_json()), Ok(pods));
    }

    #[test]
    fn workloads_are_read_back(workloads in workloads()) {
        prop_assert_eq!(Workloads::from_json(&workloads.to_json()), Ok(workloads));
    }

    #[test]
    fn readings_are_read_back(readings in readings()) {
        prop_assert_eq!(PolledReadings::from_json(&readings.to_json()), Ok(readings));
    }

    #[test]
    fn an_expected_use_is_read_back(expected in expected_use()) {
        prop_assert_eq!(ExpectedUse::from_json(&expected.to_json()), Ok(expected));
    }

    #[test]
    fn an_inspect_answer_is_read_back(inspected in inspected()) {
        let text = serde_json::to_string(&inspected).unwrap();
        prop_assert_eq!(serde_json::from_str::<Inspected>(&text).unwrap(), inspected);
    }

    #[test]
    fn a_policy_check_is_read_back(check in policy_check()) {
        let text = serde_json::to_string(&check).unwrap();
        prop_assert_eq!(serde_json::from_str::<PolicyCheck>(&text).unwrap(), check);
    }

    #[test]
    fn no_text_makes_a_codec_panic(text in "\\PC{0,120}") {
        let _ = Gpus::from_json(&text);
        let _ = Claim::from_json(&text, 1);
        let _ = NodeShare::from_json(&text);
        let _ = Allocation::from_json(&text);
        let _ = ExpectedUse::from_json(&text);
        let _ = NodePods::from_json(&text);
        let _ = Workloads::from_json(&text);
    }
}
