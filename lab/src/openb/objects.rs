//! A run of a trace as objects of Kubernetes, to try it on a real kube-scheduler: nodes, and pods in the order in which
//! they arrive.
//!
//! A GPU has 1,000 units, so that a pod's thousandths are what it asks of `aliyun.com/gpu-mem`; by ResourceClaims, as
//! much of a GPU's memory.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use jiff::Timestamp;
use placement::bands::{Band, Shape};
use placement::names::Names;
use placement::reading::{Reading, ReadingCodec};
use placement::units::{NodeName, Ratio};
use serde_json::{Value, json};

use super::arrivals::{arrivals, node_order};
use super::trace::{NodeKind, PodKind, Trace, WHOLE};

/// The resource that GPU pods ask for.
const UNITS: &str = "aliyun.com/gpu-mem";
/// The driver of shares, and its DeviceClass.
const DRIVER: &str = "gpu.plimsoll.dev";
const CLASS: &str = "gpu-share.plimsoll.dev";
/// The annotation of a node's GPUs.
const GPUS: &str = "plimsoll.dev/gpu-cards";
/// What the shipped policy reads.
const METRICS: [&str; 2] = ["cpu_shared_busy_avg_5m", "mem_usage_avg_5m"];
/// MiB of a GPU by its units: any memory will do.
const UNIT_MIB: u32 = 16;

/// Writes the nodes and the pods of `seed` that arrive until 100% of the GPUs have been asked for, as JSON objects one
/// after the other, to `nodes.json` and `pods.json` in `folder`. With `by_claims` GPUs are given out by ResourceClaims:
/// `slices.json` has the nodes' ResourceSlices and the DeviceClass, `claims.json` a claim for each pod with GPUs.
///
/// # Errors
///
/// Where a file cannot be written.
pub fn write(trace: &Trace, seed: u64, by_claims: bool, folder: &Path) -> io::Result<()> {
    let nodes = node_order(trace, seed);
    let now = Timestamp::now();
    let nodes = nodes.iter().enumerate().map(|(at, of)| node(trace, at, &trace.nodes[*of], now));
    let mut nodes: Vec<Value> = nodes.collect();
    if by_claims {
        let slices = nodes.iter_mut().filter_map(give_out_by_claims).collect::<Vec<_>>();
        write_all(&folder.join("slices.json"), slices.into_iter().chain([device_class()]))?;
    }
    write_all(&folder.join("nodes.json"), nodes.into_iter())?;
    let mut left = trace.capacity();
    let kinds = arrivals(trace, seed).into_iter().map(|kind| &trace.kinds[kind]);
    let whole = kinds.take_while(|kind| {
        let fits = kind.demand() <= left;
        left = left.saturating_sub(kind.demand());
        fits
    });
    let mut pods: Vec<Value> = whole.enumerate().map(|(at, kind)| pod(trace, at, kind)).collect();
    if by_claims {
        let claims = pods.iter_mut().filter_map(ask_by_claim).collect::<Vec<_>>();
        write_all(&folder.join("claims.json"), claims.into_iter())?;
    }
    write_all(&folder.join("pods.json"), pods.into_iter())
}

fn write_all(file: &Path, objects: impl Iterator<Item = Value>) -> io::Result<()> {
    let mut file = BufWriter::new(fs::File::create(file)?);
    for object in objects {
        writeln!(file, "{object}")?;
    }
    file.flush()
}

/// Has the node give out its GPUs by ResourceClaims. Returns its ResourceSlice, as the device plugin writes it; `None`
/// for a node without GPUs.
fn give_out_by_claims(node: &mut Value) -> Option<Value> {
    let mut gpus: Value =
        serde_json::from_str(node["metadata"]["annotations"][GPUS].as_str()?).ok()?;
    let mut devices = Vec::new();
    for gpu in gpus.as_array_mut()? {
        gpu["closed"] = json!("claims");
        let memory = format!("{}Mi", gpu["memoryMiB"]);
        let policy = json!({"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}});
        devices.push(json!({
            "name": gpu["uuid"].as_str()?.to_lowercase(), "allowMultipleAllocations": true,
            "attributes": {"model": {"string": gpu["model"]}},
            "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
        }));
    }
    node["metadata"]["annotations"][GPUS] = json!(gpus.to_string());
    for amounts in ["capacity", "allocatable"] {
        node["status"][amounts].as_object_mut()?.remove(UNITS);
    }
    let name = &node["metadata"]["name"];
    Some(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": DRIVER, "nodeName": name, "devices": devices,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        },
    }))
}

fn device_class() -> Value {
    let selector = format!("device.driver == '{DRIVER}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    })
}

/// Has the pod ask by a ResourceClaim, which is returned, and say its units in a label; `None` for a pod without GPUs.
fn ask_by_claim(pod: &mut Value) -> Option<Value> {
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    let units = resources["limits"].as_object_mut()?.remove(UNITS)?;
    resources["requests"].as_object_mut()?.remove(UNITS);
    resources["claims"] = json!([{"name": "gpu"}]);
    let (name, metadata) = (pod["metadata"]["name"].clone(), &mut pod["metadata"]);
    metadata["labels"] = json!({ "units": units });
    let annotations = std::mem::take(&mut metadata["annotations"]);
    let text = |key: &str| annotations[format!("plimsoll.dev/{key}")].as_str();
    let count: u32 = text("gpu-card-count").unwrap_or("1").parse().ok()?;
    let mib = units.as_str()?.parse::<u32>().ok()? / count * UNIT_MIB;
    let mut exactly = json!({
        "deviceClassName": CLASS, "count": count, "capacity": {"requests": {"memory": format!("{mib}Mi")}},
    });
    if let Some(models) = text("gpu-model") {
        let models: Vec<&str> = models.split(',').collect();
        let expression = format!("device.attributes['{DRIVER}'].model in {}", json!(models));
        exactly["selectors"] = json!([{"cel": {"expression": expression}}]);
    }
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
    Some(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }))
}

/// A reading of nothing in use, as the annotator writes it.
fn read_at(now: Timestamp) -> Option<String> {
    Ratio::new(0.0).map(|nothing| ReadingCodec::default().encode(&Reading::new(nothing, now)))
}

fn node(trace: &Trace, at: usize, kind: &NodeKind, now: Timestamp) -> Value {
    let name = format!("openb-node-{at:04}");
    let model = &trace.models[usize::from(kind.model)];
    let gpus: Vec<Value> = (0..kind.gpus).map(|index| {
        json!({
            "uuid": format!("GPU-{at:08x}-0000-0000-0000-{index:012x}"), "index": index, "model": model,
            "memoryMiB": WHOLE * UNIT_MIB, "units": WHOLE, "healthy": true, "pods": {},
        })
    }).collect();
    let mut resources = json!({
        "cpu": format!("{}m", kind.cpu), "memory": format!("{}Mi", kind.memory), "pods": "1000",
    });
    // Nothing runs there yet.
    let mut annotations: Value =
        METRICS.map(|metric| (metric.to_owned(), json!(read_at(now)))).into_iter().collect();
    if kind.gpus > 0 {
        resources[UNITS] = json!((kind.gpus * WHOLE as usize).to_string());
        annotations[GPUS] = json!(json!(gpus).to_string());
    }
    // As the annotator writes them; without the admission policy no pod prefers them.
    let (names, shape) =
        (Names::default(), Shape { gpus: kind.gpus, cores: Some(kind.cpu as f64 / 1000.0) });
    let node = NodeName::from(name.as_str());
    let labels = json!({
        "kubernetes.io/hostname": name,
        names.gpu_band(): Band::of_gpus(&node).to_string(),
        names.cpu_band(): shape.band(&node).to_string(),
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": {
            "capacity": resources, "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn pod(trace: &Trace, at: usize, kind: &PodKind) -> Value {
    let mut resources = json!({
        "cpu": format!("{}m", kind.cpu), "memory": format!("{}Mi", kind.memory),
    });
    let mut annotations = json!({});
    if kind.gpus > 0 {
        resources[UNITS] = json!(kind.demand().to_string());
    }
    if kind.gpus > 1 {
        annotations["plimsoll.dev/gpu-card-count"] = json!(kind.gpus.to_string());
    }
    let models: Vec<&str> = trace.models.iter().map(String::as_str).collect();
    let accepted = models.iter().zip(0..).filter(|(_, model)| kind.models.contain(*model));
    let accepted: Vec<&str> = accepted.map(|(name, _)| *name).collect();
    if kind.gpus > 0 && accepted.len() < models.len() {
        annotations["plimsoll.dev/gpu-model"] = json!(accepted.join(","));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("openb-{at:06}"), "namespace": "default", "annotations": annotations},
        "spec": {"containers": [{
            "name": "main", "image": "none", "resources": {"requests": resources, "limits": resources},
        }]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_asks_for_the_thousandths_of_its_gpus_and_for_their_models() {
        let nodes =
            "cpu_milli,memory_mib,gpu,model\n8000,1024,2,T4\n8000,1024,0,\n8000,1024,4,P100\n";
        let pods =
            "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n500,64,2,1000,T4\n250,32,1,300,\n";
        let trace = Trace::read(("nodes", nodes), ("pods", pods)).unwrap();
        let pods: Vec<Value> = (0..2).map(|at| pod(&trace, at, &trace.kinds[at])).collect();
        assert_eq!(pods[0]["spec"]["containers"][0]["resources"]["limits"][UNITS], "2000");
        let asked = &pods[0]["metadata"]["annotations"];
        assert_eq!(asked["plimsoll.dev/gpu-card-count"], "2");
        assert_eq!(asked["plimsoll.dev/gpu-model"], "T4");
        assert_eq!(pods[1]["metadata"]["annotations"], json!({}));
        let node = node(&trace, 0, &trace.nodes[2], Timestamp::UNIX_EPOCH);
        assert_eq!(
            node["metadata"]["annotations"]["cpu_shared_busy_avg_5m"],
            "0.00000,1970-01-01T00:00:00Z"
        );
        assert_eq!(node["status"]["allocatable"][UNITS], "4000");
    }

    #[test]
    fn by_claims_the_same_part_of_a_gpus_memory_is_asked_for() {
        let nodes =
            "cpu_milli,memory_mib,gpu,model\n8000,1024,2,T4\n8000,1024,2,P100\n8000,1024,0,\n";
        let pods = "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n500,64,2,1000,T4\n250,32,1,300,\n9,9,0,0,\n";
        let trace = Trace::read(("nodes", nodes), ("pods", pods)).unwrap();
        let of_pod = |at: usize| ask_by_claim(&mut pod(&trace, at, &trace.kinds[at]));
        let exactly =
            |at: usize| of_pod(at).unwrap()["spec"]["devices"]["requests"][0]["exactly"].take();
        let two = exactly(0);
        assert_eq!(
            (&two["count"], &two["capacity"]["requests"]["memory"]),
            (&json!(2), &json!("16000Mi"))
        );
        let of_models = &two["selectors"][0]["cel"]["expression"];
        assert_eq!(of_models, "device.attributes['gpu.plimsoll.dev'].model in [\"T4\"]");
        let part = exactly(1);
        assert_eq!(
            (&part["capacity"]["requests"]["memory"], &part["selectors"]),
            (&json!("4800Mi"), &Value::Null)
        );
        assert_eq!(of_pod(2), None);
        let slice =
            |at| give_out_by_claims(&mut node(&trace, at, &trace.nodes[at], Timestamp::UNIX_EPOCH));
        let device = slice(1).unwrap()["spec"]["devices"][1].take();
        assert_eq!(device["name"], "gpu-00000001-0000-0000-0000-000000000001");
        assert_eq!(device["capacity"]["memory"]["value"], "16000Mi");
        assert_eq!(slice(2), None);
    }

    #[test]
    fn what_is_written_is_asked_for_by_no_more_than_the_gpus_there_are() {
        let nodes = "cpu_milli,memory_mib,gpu,model\n8000,1024,2,T4\n";
        let pods =
            "cpu_milli,memory_mib,num_gpu,gpu_milli\n500,64,1,900\n500,64,1,600\n500,64,1,500\n";
        let trace = Trace::read(("nodes", nodes), ("pods", pods)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write(&trace, 1, false, folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join("pods.json")).unwrap();
        assert!((1..=3).contains(&text.lines().count()), "{text}");
        assert!(
            text.lines()
                .map(|line| {
                    let pod: Value = serde_json::from_str(line).unwrap();
                    let units = pod["spec"]["containers"][0]["resources"]["limits"][UNITS].clone();
                    units.as_str().unwrap().parse::<u64>().unwrap()
                })
                .sum::<u64>()
                <= trace.capacity()
        );
    }
}
