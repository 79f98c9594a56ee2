//! Which of some pods would fit on a new node: Filter's decision about each and Bind's choice of GPUs, beside those
//! before it that fit.
//!
//! Invariant: nothing is recorded, counted or changed. What a new node is not known to have keeps a pod from being
//! judged; it never counts as nothing.

use std::collections::BTreeMap;

use api::explain::{DecisionBasis, ExplainedGpu, Pod as PodName};
use api::gpus::MAX_GPUS;
use api::simulate::{PodOutcome, SimulatedPod, Simulation};
use cluster::{Node, NodeFacts, Pod};
use jiff::Timestamp;
use placement::gpu::{Closed, Gpu, GpuFilter, GpuIsolation, GpuRequest, Patterns, Topology};
use placement::load::Verdict;
use placement::names::{GPU_COUNT_RESOURCE, Names};
use placement::reading::ReadingCodec;
use placement::units::{MiB, Units};

use crate::Decider;
use crate::binder::{BindError, HELD_BY_DELETED};
use crate::decisions::{self, Decision, Evaluator};
use crate::node_request;
use crate::view::{GpuPodId, NewNode};
use crate::wire::SimulationRequest;

const CLAIMS: &str =
    "not judged: the pod has ResourceClaims, and a new node has no ResourceSlices yet";
const UUIDS: &str =
    "not judged: the pod names GPUs by UUID, and a new node has others than the template";
const KINDS: &str = "not judged: the pod requires a model, UUID or isolation of GPUs, and the template has no \
     annotation gpu-cards that says what its GPUs are";
const SIZES: &str = "not judged: the template has units and neither the annotation gpu-cards nor a number \
     aliyun.com/gpu-count that divides them";

/// What is known of a new node's GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownOfGpus {
    /// All but their UUIDs.
    Kinds,
    /// Their units.
    Sizes,
    /// That it has some.
    Nothing,
}

impl KnownOfGpus {
    /// Why it cannot be said whether the pod fits; `None` where it can.
    fn why_not_judged(self, pod: &Pod, request: Option<&GpuRequest>) -> Option<&'static str> {
        if pod.has_resource_claims() {
            return Some(CLAIMS);
        }
        let filter = request?.filter();
        match self {
            Self::Kinds => (filter.uuids != Patterns::default()).then_some(UUIDS),
            Self::Sizes => (*filter != GpuFilter::default()).then_some(KINDS),
            Self::Nothing => Some(SIZES),
        }
    }
}

/// Tries the pods. Others have a turn after each, where a caller's time limit ends it too.
///
/// # Errors
///
/// What of the node cannot be read.
pub async fn simulation(
    decider: &Decider,
    asked: SimulationRequest<'_>,
    now: Timestamp,
) -> Result<Simulation, String> {
    let (facts, known) = new_node(&asked.node, &decider.names, now)?;
    let mut node = NewNode::new(&decider.view.current(), facts, now);
    let mut pods = Vec::with_capacity(asked.pods.len());
    for (at, (pod, text)) in asked.pods.into_iter().enumerate() {
        let id = GpuPodId::of(&pod);
        // Pods that controllers have not made yet have no UID, and one pod may be asked about several times.
        let numbered = pod.with_uid(format!("simulated-{at}"));
        let large = node_request::large_stored_pod(text.as_bytes(), decider.names.gpu_resource());
        let mut decision =
            decider.decision_for(node.current(), &numbered, [node.name().as_str()], now);
        if large.is_some() {
            decision = decision.without_gpus().with_fault(large);
        }
        pods.push(tried(decider, &mut node, known, (&numbered, &id), decision));
        tokio::task::yield_now().await;
    }
    Ok(Simulation { time: now, pods })
}

/// Places the decision's pod if it fits. `id`: its UID and names in the request.
fn tried(
    decider: &Decider,
    node: &mut NewNode,
    known: KnownOfGpus,
    (pod, id): (&Pod, &GpuPodId),
    decision: Decision,
) -> SimulatedPod {
    let not_judged = known.why_not_judged(pod, decision.request.as_ref());
    let judged = if not_judged.is_some() { decision.without_gpus() } else { decision };
    let verdicts = Evaluator::new(&judged).verdicts();
    let passes = verdicts.each.first() == Some(&Verdict::Accepted) && judged.has_gpus_for_pod(0);
    let request = judged.request.as_ref();
    let waits = || request.is_some_and(|it| decider.view.waits_for_deleted(id, it).is_some());
    let mut result = SimulatedPod {
        pod: PodName {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            uid: id.uid.to_string(),
        },
        outcome: PodOutcome::Rejected,
        reasons: Vec::new(),
        fault: None,
        chosen: Vec::new(),
        gpus: Vec::new(),
    };
    if !passes {
        let explained = decisions::explain(&judged, DecisionBasis::Now, [0]);
        result.fault = explained.fault;
        for node in explained.nodes {
            result.reasons = node.reasons;
            for gpu in node.gpus.into_iter().flat_map(|gpus| gpus.gpus) {
                let (uuid, charges) = (String::new(), Vec::new());
                result.gpus.push(ExplainedGpu { uuid, charges, ..gpu });
            }
        }
    } else if let Some(why) = not_judged {
        result.outcome = PodOutcome::NotJudged;
        result.reasons.push(why.to_owned());
    } else if waits() {
        result.reasons.push(HELD_BY_DELETED.to_owned());
    } else {
        match node.place(pod, request, &judged.rule, &decider.names, judged.time) {
            Ok(chosen) => (result.outcome, result.chosen) = (PodOutcome::Fits, chosen),
            Err(error) => result.reasons.push(BindError::from(error).to_string()),
        }
    }
    result
}

/// The facts of a node that was just made by the template: without the readings and the pods of the node that this may
/// be a copy of.
///
/// # Errors
///
/// What of the template cannot be read.
fn new_node(
    template: &Node,
    names: &Names,
    now: Timestamp,
) -> Result<(NodeFacts, KnownOfGpus), String> {
    let facts = template.facts(names, &ReadingCodec::default());
    let count = |resource: &str| {
        let counted = template.allocatable_count(resource);
        counted.map_err(|error| format!("node.status.allocatable[{resource}]: {error}"))
    };
    let (gpus, known) = match facts.gpus {
        Some(Ok(gpus)) => (gpus.into_iter().map(unused).collect(), KnownOfGpus::Kinds),
        Some(Err(error)) => {
            return Err(format!("node.metadata.annotations[{}]: {error}", names.gpus()));
        }
        None => match (count(names.gpu_resource())?, count(GPU_COUNT_RESOURCE)?) {
            // Nothing offers units, so there are no GPUs.
            (None | Some(0), _) => (Vec::new(), KnownOfGpus::Kinds),
            (Some(units), gpus) => match equal_gpus(units, gpus.unwrap_or(0)) {
                Some(gpus) => (gpus, KnownOfGpus::Sizes),
                None => (Vec::new(), KnownOfGpus::Nothing),
            },
        },
    };
    let (created_at, gpus, readings) = (Some(now), Some(Ok(gpus)), Vec::new());
    let facts = NodeFacts { created_at, gpus, readings, hot_value: None, measured: None, ..facts };
    Ok((facts, known))
}

/// The GPU in another machine: it works, and no pod is on it. Why it was closed mostly follows from how nodes are set
/// up, but for a device plugin that happened not to run.
fn unused(gpu: Gpu) -> Gpu {
    let closed = gpu.closed.filter(|why| *why != Closed::Plugin);
    let (outside_mps, pods) = (Vec::new(), BTreeMap::new());
    Gpu { healthy: true, closed, outside_mps, pods, ..gpu }
}

/// So many GPUs of one size, as Aliyun's tools divide a node's units; `None` where the units do not divide, or there
/// are more than any machine has.
fn equal_gpus(units: u32, count: u32) -> Option<Vec<Gpu>> {
    if !(1..=MAX_GPUS).contains(&(count as usize)) || !units.is_multiple_of(count) {
        return None;
    }
    let gpu = |index: u32| Gpu {
        uuid: index.to_string().into(),
        index,
        model: "".into(),
        memory: MiB(0),
        units: Units(units / count),
        topology: Topology::default(),
        healthy: true,
        closed: None,
        isolation: GpuIsolation::default(),
        outside_mps: Vec::new(),
        pods: BTreeMap::new(),
    };
    Some((0..count).map(gpu).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use cluster::{Event, WatchCause};
    use placement::policy::LoadPolicy;
    use placement::units::NodeName;
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::VERBS;
    use crate::view::{View, fixtures};
    use crate::wire;

    const UNIT: &str = "aliyun.com/gpu-mem";

    fn now() -> Timestamp {
        Timestamp::from_second(1_795_165_200).unwrap()
    }

    fn decider(mode: &str, when_missing: &str, placement: &str) -> Decider {
        let policy = format!(
            "{{apiVersion: plimsoll.dev/v1alpha1, kind: SchedulingPolicy, spec: {{\
             metrics: [{{name: cpu_usage_avg_5m, period: 1m, limit: 0.8, whenMissing: {when_missing}}}], \
             limits: {{mode: {mode}}}, demand: {{egress: {{limit: 0.8}}}}, \
             namespaces: [{{names: [other], nodeSelector: team=b}}], gpu: {{placement: {placement}, \
             beyondUnits: [{{namespaces: [research], allow: [exclusive, cores, memoryLimit]}}]}}}}}}"
        );
        let policy = LoadPolicy::from_yaml(&policy).unwrap();
        Decider::of_view(fixtures::view_under(policy), now())
    }

    fn usual() -> Decider {
        decider("hard", "ignore", "pack")
    }

    /// The node `n`, with these GPUs.
    fn node(gpus: &[Value]) -> Value {
        json!({
            "metadata": { "name": "n", "annotations": {
                "plimsoll.dev/gpu-cards": Value::from(gpus).to_string(),
                "plimsoll.dev/egress-bandwidth": "100M",
            } },
            "status": { "allocatable": { "cpu": "16", UNIT: "48" } },
        })
    }

    fn gpu(index: usize, units: u32) -> Value {
        json!({ "uuid": format!("GPU-{index}"), "index": index, "model": "NVIDIA A10", "memoryMiB": 1024 * units,
                "units": units, "healthy": true })
    }

    fn pod(units: u32, annotations: &Value) -> Value {
        json!({
            "metadata": { "namespace": "default", "annotations": annotations },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { UNIT: units } } }] },
        })
    }

    fn simulate(decider: &Decider, pods: &[Value], node: &Value) -> Result<Simulation, String> {
        let body = json!({ "pods": pods, "node": node }).to_string();
        let asked = wire::read_simulation(body.as_bytes()).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(simulation(decider, asked, now()))
    }

    fn outcomes(pods: &[Value], node: &Value) -> Vec<(PodOutcome, Vec<u32>)> {
        let found = simulate(&usual(), pods, node).unwrap();
        found.pods.into_iter().map(|pod| (pod.outcome, pod.chosen)).collect()
    }

    /// Has kube-scheduler ask for the pods, and bind those that fit, one after another. For each its GPUs, or a reason.
    fn scheduled(decider: &Decider, pods: &[Value]) -> Vec<Result<Vec<u32>, String>> {
        let [by_load, _, _, by_gpus, _] = VERBS.map(|(_, verb)| verb);
        let mut results = Vec::new();
        for (at, pod) in pods.iter().enumerate() {
            let mut pod = pod.clone();
            pod["metadata"]["uid"] = json!(format!("p{at}"));
            let body = json!({ "Pod": pod, "Nodes": null, "NodeNames": ["n"] }).to_string();
            let rejected = [by_load, by_gpus].into_iter().find_map(|filter| {
                let answer = filter(decider, body.as_bytes());
                let answer: Value = serde_json::from_slice(answer.json()).unwrap();
                assert_eq!(answer["Error"], "");
                answer["FailedAndUnresolvableNodes"]["n"].as_str().map(str::to_owned)
            });
            results.push(match rejected {
                Some(reason) => Err(reason),
                None => Ok(bind(&decider.view, &decider.names, pod)),
            });
        }
        results
    }

    /// As the binder does, and as the watch shows it.
    fn bind(view: &View, names: &Names, mut pod: Value) -> Vec<u32> {
        let unbound: Pod = serde_json::from_value(pod.clone()).unwrap();
        let (id, node) = (GpuPodId::of(&unbound), NodeName::from("n"));
        let mut gpus = Vec::new();
        if let Some(request) = unbound.request(names).unwrap() {
            let request = request.with_beyond_units(view.beyond_units_of(&id.namespace));
            let rule = view.choice_rule();
            let reserved = view.change(|index| index.reserve(&id, &request, &node, &rule)).unwrap();
            view.change(|index| index.confirm(&id.uid, &node, &reserved.claim));
            gpus = reserved.choice.indices();
        }
        pod["spec"]["nodeName"] = json!("n");
        let bound = serde_json::from_value(pod).unwrap();
        view.count_requests(&bound, names, WatchCause::Changed, now());
        gpus
    }

    /// The cluster has this node, and another with pods by which it has learned what pods cost.
    fn join(decider: &Decider, node: &Value, learns: bool) {
        let facts = |node: &Value| {
            let node: Node = serde_json::from_value(node.clone()).unwrap();
            node.facts(&decider.names, &ReadingCodec::default())
        };
        let view = &decider.view;
        let other = fixtures::node("m", (0..6).map(|at| unused_gpu(at, 24)).collect());
        view.apply_nodes(Event::Listed(vec![facts(node), other]), now());
        let _ = view.apply_pods(Event::Listing, &mut HashSet::new(), now());
        let _ = view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now());
        for at in 0..if learns { 24 } else { 0 } {
            let id =
                GpuPodId { uid: format!("m{at}").into(), namespace: "a".into(), name: "b".into() };
            let request =
                GpuRequest::single("c", Units([3, 5, 8][at % 3])).unwrap().with_cpu(1_000);
            let rule = view.choice_rule();
            let reserved = view.change(|index| index.reserve(&id, &request, &"m".into(), &rule));
            view.change(|index| index.confirm(&id.uid, &"m".into(), &reserved.unwrap().claim));
        }
        view.renew_measure();
    }

    fn unused_gpu(index: u32, units: u32) -> Gpu {
        let uuid = format!("GPU-m{index}").into();
        Gpu { uuid, index, units: Units(units), ..fixtures::gpu() }
    }

    prop_compose! {
        fn some_gpus()(
            gpus in prop::collection::vec((select(vec![8, 16, 24]), 0..3_u32, any::<bool>(), 0..8_u32), 1..5),
        ) -> Vec<Value> {
            let mut all = Vec::new();
            for (index, (units, numa, mps, closed)) in gpus.into_iter().enumerate() {
                let mut gpu = gpu(index, units);
                let other = gpu.as_object_mut().unwrap();
                if numa > 0 { other.insert("numaNode".to_owned(), json!(numa)); }
                if mps { other.extend([("isolation".to_owned(), json!("mps")), ("mpsClients".to_owned(), json!(3))]); }
                if closed == 0 { other.insert("closed".to_owned(), json!("cdi")); }
                all.push(gpu);
            }
            all
        }
    }

    prop_compose! {
        fn some_pod()(
            units in select(vec![0, 2, 4, 6, 8, 12, 16, 20]),
            init in select(vec![0, 0, 0, 4]),
            namespace in select(vec!["default", "default", "research", "other"]),
            count in select(vec!["", "", "2", "exclusive", "2 exclusive", "x"]),
            cores in select(vec!["", "", "10", "60", "100"]),
            isolation in select(vec!["", "", "", "mps"]),
            model in select(vec!["", "", "", "NVIDIA A10", "!NVIDIA*"]),
            egress in select(vec!["", "", "20M", "70M"]),
            cpu in 0..9_u32,
            is_daemon in any::<bool>(),
        ) -> Value {
            let keys = ["plimsoll.dev/gpu-card-count", "plimsoll.dev/gpu-cores", "plimsoll.dev/gpu-isolation",
                "plimsoll.dev/gpu-model", "kubernetes.io/egress-bandwidth"];
            let values = [count, cores, isolation, model, egress];
            let mut annotations = serde_json::Map::new();
            for (key, value) in keys.into_iter().zip(values).filter(|(_, value)| !value.is_empty()) {
                annotations.insert(key.to_owned(), json!(value));
            }
            let mut pod = pod(units, &Value::from(annotations));
            pod["metadata"]["namespace"] = json!(namespace);
            pod["spec"]["containers"][0]["resources"]["requests"] = json!({ "cpu": cpu });
            if init > 0 {
                pod["spec"]["initContainers"] = json!([{ "name": "i", "resources": { "limits": { UNIT: init } } }]);
            }
            if is_daemon {
                pod["metadata"]["ownerReferences"] = json!([{ "kind": "DaemonSet", "name": "d", "controller": true }]);
            }
            pod
        }
    }

    proptest! {
        #[test]
        fn pods_fit_as_filter_and_bind_place_them_on_a_node_with_these_gpus(
            gpus in some_gpus(),
            pods in prop::collection::vec(some_pod(), 1..12),
            mode in select(vec!["hard", "soft"]),
            when_missing in select(vec!["ignore", "reject"]),
            placement in select(vec!["pack", "spread", "least-fragmentation"]),
            labels in select(vec![json!({}), json!({ "team": "b" })]),
            learns in any::<bool>(),
        ) {
            let decider = decider(mode, when_missing, placement);
            let mut template = node(&gpus);
            template["metadata"]["labels"] = labels;
            join(&decider, &template, learns);
            // What the node is at another time does not matter.
            let mut copy = template.clone();
            let mut used = gpus;
            used.iter_mut().for_each(|gpu| gpu["pods"] = json!({ "p0": 3, "simulated-0": 5 }));
            copy["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = Value::from(used).to_string().into();
            let simulated = simulate(&decider, &pods, &copy).unwrap();
            for (at, (simulated, scheduled)) in simulated.pods.iter().zip(scheduled(&decider, &pods)).enumerate() {
                let SimulatedPod { outcome, reasons, chosen, .. } = simulated;
                let is_same = match &scheduled {
                    Ok(gpus) => *outcome == PodOutcome::Fits && reasons.is_empty() && chosen == gpus,
                    Err(reason) => *outcome == PodOutcome::Rejected && reasons.contains(reason) && chosen.is_empty(),
                };
                prop_assert!(is_same, "{at}: {scheduled:?}, {simulated:?}");
            }
        }
    }

    #[test]
    fn a_node_that_is_copied_has_no_pods_no_readings_and_only_gpus_that_work() {
        let mut gpus = [gpu(0, 24), gpu(1, 24), gpu(2, 24)];
        gpus[0]["pods"] = json!({ "other": 20 });
        gpus[1]["healthy"] = json!(false);
        gpus[1]["closed"] = json!("plugin");
        gpus[2]["closed"] = json!("cdi");
        let mut copy = node(&gpus);
        copy["metadata"]["annotations"]["cpu_usage_avg_5m"] = json!(format!("0.99,{}", now()));
        let pods = [(); 3].map(|()| pod(24, &json!({})));
        let found = simulate(&usual(), &pods, &copy).unwrap().pods;
        let chosen: Vec<&[u32]> = found.iter().map(|pod| &*pod.chosen).collect();
        assert_eq!(chosen, [&[0][..], &[1], &[]]);
        let why: Vec<_> = found[2].gpus.iter().map(|gpu| (gpu.free, gpu.closed)).collect();
        assert_eq!(why, [(0, None), (0, None), (24, Some(Closed::Cdi))]);
        assert!(found[2].reasons[0].contains("GPUs with room take no new pods"), "{found:?}");
    }

    #[test]
    fn units_without_a_report_are_on_gpus_of_one_size_and_of_an_unknown_kind() {
        let bare = |allocatable: Value| json!({ "status": { "allocatable": allocatable } });
        let two = bare(json!({ UNIT: "48", "aliyun.com/gpu-count": "2" }));
        let none = json!({});
        let models = json!({ "plimsoll.dev/gpu-model": "NVIDIA A10" });
        let pods = [pod(30, &none), pod(20, &none), pod(4, &models), pod(20, &none)];
        let (fits, rejected, not_judged) =
            (PodOutcome::Fits, PodOutcome::Rejected, PodOutcome::NotJudged);
        let wanted = [(rejected, vec![]), (fits, vec![0]), (not_judged, vec![]), (fits, vec![1])];
        assert_eq!(outcomes(&pods, &two), wanted);
        let plain = json!({ "spec": {} });
        let pods = [pod(1, &none), plain];
        for (allocatable, outcome) in [
            (json!({ UNIT: "48" }), not_judged),
            (json!({ UNIT: "48", "aliyun.com/gpu-count": "0" }), not_judged),
            (json!({ UNIT: "48", "aliyun.com/gpu-count": "5" }), not_judged),
            (json!({ UNIT: "65", "aliyun.com/gpu-count": "65" }), not_judged),
            (json!({ UNIT: "0", "aliyun.com/gpu-count": "1" }), rejected),
            (json!({}), rejected),
        ] {
            let found = outcomes(&pods, &bare(allocatable.clone()));
            assert_eq!(found, [(outcome, vec![]), (fits, vec![])], "{allocatable}");
        }
        for (allocatable, field) in [
            (json!({ UNIT: "many" }), UNIT),
            (json!({ UNIT: 4, "aliyun.com/gpu-count": "1.5" }), "aliyun.com/gpu-count"),
        ] {
            let error = simulate(&usual(), &pods, &bare(allocatable)).unwrap_err();
            assert!(error.starts_with(&format!("node.status.allocatable[{field}]: ")), "{error}");
        }
        let mut faulty = bare(json!({}));
        faulty["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = json!("[{}]");
        let error = simulate(&usual(), &pods, &faulty).unwrap_err();
        assert!(
            error.starts_with("node.metadata.annotations[plimsoll.dev/gpu-cards]: "),
            "{error}"
        );
    }

    #[test]
    fn claims_and_uuids_of_a_new_node_are_not_judged_and_what_filter_rejects_anyway_is_rejected() {
        let mut claiming = pod(0, &json!({}));
        claiming["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "gpu" }]);
        let mut both = claiming.clone();
        both["spec"]["containers"] = pod(4, &json!({}))["spec"]["containers"].clone();
        let mut elsewhere = claiming.clone();
        elsewhere["metadata"]["namespace"] = json!("other");
        let uuid = pod(4, &json!({ "plimsoll.dev/gpu-uuid": "GPU-0" }));
        let faulty = pod(5, &json!({ "plimsoll.dev/gpu-card-count": "2" }));
        let found =
            simulate(&usual(), &[claiming, both, elsewhere, uuid, faulty], &node(&[gpu(0, 24)]));
        let found = found.unwrap().pods;
        let (rejected, not_judged) = (PodOutcome::Rejected, PodOutcome::NotJudged);
        let outcomes: Vec<_> = found.iter().map(|pod| pod.outcome).collect();
        assert_eq!(outcomes, [not_judged, not_judged, rejected, not_judged, rejected]);
        assert_eq!(
            (&*found[0].reasons, &*found[3].reasons),
            (&[CLAIMS.to_owned()][..], &[UUIDS.to_owned()][..])
        );
        let fault = found[4].fault.as_deref().unwrap();
        assert_eq!(fault, "container `c`: 5 units do not divide into equal shares of 2 GPUs");
    }

    #[test]
    fn a_pod_that_waits_for_deleted_pods_of_its_namespace_fits_on_no_new_node() {
        let decider = usual();
        let template = node(&[gpu(0, 24)]);
        join(&decider, &template, false);
        let deleted = json!({ "metadata": { "namespace": "default", "name": "gone", "uid": "gone" },
            "spec": pod(20, &json!({}))["spec"] });
        assert_eq!(bind(&decider.view, &decider.names, deleted), [0]);
        decider.view.change(|index| index.depart(&"gone".into(), now()));
        let pods = [pod(8, &json!({}))];
        let held = simulate(&decider, &pods, &template).unwrap().pods.remove(0);
        let [_, _, _, by_gpus, _] = VERBS.map(|(_, verb)| verb);
        let mut asked = pods[0].clone();
        asked["metadata"]["uid"] = json!("u");
        let body = json!({ "Pod": asked, "NodeNames": ["m"] }).to_string();
        let answer: Value =
            serde_json::from_slice(by_gpus(&decider, body.as_bytes()).json()).unwrap();
        assert!(answer.to_string().contains(HELD_BY_DELETED), "{answer}");
        let wanted = (PodOutcome::Rejected, vec![HELD_BY_DELETED.to_owned()]);
        assert_eq!((held.outcome, held.reasons), wanted);
    }
}
