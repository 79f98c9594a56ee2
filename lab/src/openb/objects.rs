//! A run of a trace as objects of Kubernetes, to try it on a real kube-scheduler: nodes, and pods in the order in which
//! they arrive.
//!
//! A GPU has 1,000 units, so that a pod's thousandths are what it asks of `aliyun.com/gpu-mem`.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use jiff::Timestamp;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use serde_json::{Value, json};

use super::arrivals::{arrivals, node_order};
use super::trace::{NodeKind, PodKind, Trace, WHOLE};

/// The resource that GPU pods ask for.
const UNITS: &str = "aliyun.com/gpu-mem";
/// What the shipped policy reads.
const METRICS: [&str; 2] = ["cpu_shared_busy_avg_5m", "mem_usage_avg_5m"];
/// MiB of a GPU by its units: any memory will do.
const UNIT_MIB: u32 = 16;

/// Writes the nodes and the pods of `seed` that arrive until 100% of the GPUs have been asked for, as JSON objects one
/// after the other, to `nodes.json` and `pods.json` in `folder`.
///
/// # Errors
///
/// Where a file cannot be written.
pub fn write(trace: &Trace, seed: u64, folder: &Path) -> io::Result<()> {
    let nodes = node_order(trace, seed);
    let now = Timestamp::now();
    let nodes = nodes.iter().enumerate().map(|(at, of)| node(trace, at, &trace.nodes[*of], now));
    write_all(&folder.join("nodes.json"), nodes)?;
    let mut left = trace.capacity();
    let kinds = arrivals(trace, seed).into_iter().map(|kind| &trace.kinds[kind]);
    let whole = kinds.take_while(|kind| {
        let fits = kind.demand() <= left;
        left = left.saturating_sub(kind.demand());
        fits
    });
    write_all(&folder.join("pods.json"), whole.enumerate().map(|(at, kind)| pod(trace, at, kind)))
}

fn write_all(file: &Path, objects: impl Iterator<Item = Value>) -> io::Result<()> {
    let mut file = BufWriter::new(fs::File::create(file)?);
    for object in objects {
        writeln!(file, "{object}")?;
    }
    file.flush()
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
        annotations["plimsoll.dev/gpu-cards"] = json!(json!(gpus).to_string());
    }
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations},
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
    fn what_is_written_is_asked_for_by_no_more_than_the_gpus_there_are() {
        let nodes = "cpu_milli,memory_mib,gpu,model\n8000,1024,2,T4\n";
        let pods =
            "cpu_milli,memory_mib,num_gpu,gpu_milli\n500,64,1,900\n500,64,1,600\n500,64,1,500\n";
        let trace = Trace::read(("nodes", nodes), ("pods", pods)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write(&trace, 1, folder.path()).unwrap();
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
