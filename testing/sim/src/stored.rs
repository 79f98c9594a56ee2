//! Objects as an API server can store them: a realistic one of each kind, and each with one field changed to everything
//! that its type can hold. Programs other than the API server write most of these fields.

use serde_json::{Value, json};

/// The identity of an object, which the API server guarantees.
const IDENTITY: [&str; 6] = [
    "/apiVersion",
    "/kind",
    "/metadata/name",
    "/metadata/namespace",
    "/metadata/uid",
    "/metadata/resourceVersion",
];

/// Texts that a field can hold: quantities and times at and beyond the ends, words of no list, texts that need escapes.
const TEXTS: [&str; 24] = [
    "",
    "x",
    "9E",
    "9223372036854775807",
    "1n",
    "-1",
    "0",
    "1e18",
    "999999999999Gi",
    "0.000000001",
    "9999-12-31T23:59:59Z",
    "9999-12-30T22:00:01Z",
    "10000-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "-001-12-31T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-30T21:59:59.999999Z",
    "1969-12-31T23:59:59.999999Z",
    "2262-04-12T00:00:00Z",
    "Unknown",
    "\u{0}\u{fffd}\"\\\n<>&\u{2028}",
    "{\"a\":[]}",
    "[[[[",
    "255.255.255.255:70000",
];

/// Numbers that a field can hold.
const NUMBERS: [i64; 9] =
    [0, 1, -1, 65_536, i32::MAX as i64, i32::MIN as i64, 1 << 53, i64::MAX, i64::MIN];

/// The object, and it with each field in turn changed to each value of its type. Each has a name and a UID of its own.
#[must_use]
pub fn variants(object: &Value) -> Vec<Value> {
    changed(object, |_, before| of_its_type(before))
}

/// The object, and it with each of its parts and of their fields changed to values of other types than its own.
/// Kubernetes stores none of these; an API server of another kind may, as one that aggregates metrics.
#[must_use]
pub fn mistyped(object: &Value) -> Vec<Value> {
    let deep = (0..300).fold(json!(1), |inner, _| json!({ "f": [inner] }));
    let values =
        [Value::Null, json!(-7), json!("x"), json!([[{}]]), json!({ "a": 7 }), json!({}), deep];
    changed(object, |depth, _| if depth <= 2 { values.to_vec() } else { Vec::new() })
}

fn changed(object: &Value, values: impl Fn(usize, &Value) -> Vec<Value>) -> Vec<Value> {
    let mut paths = Vec::new();
    add_paths(object, String::new(), &mut paths);
    let mut all = vec![object.clone()];
    for path in paths.iter().filter(|path| !IDENTITY.contains(&path.as_str())) {
        let Some(before) = object.pointer(path) else { continue };
        for value in values(path.matches('/').count(), before) {
            let mut changed = object.clone();
            if let Some(field) = changed.pointer_mut(path) {
                *field = value;
            }
            all.push(changed);
        }
        all.push(without(object, path));
    }
    for (number, object) in all.iter_mut().enumerate() {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            continue;
        };
        metadata.insert("name".to_owned(), json!(format!("o{number:05}")));
        metadata.insert("uid".to_owned(), json!(format!("u{number:05}")));
        metadata.insert("resourceVersion".to_owned(), json!((number + 1).to_string()));
    }
    all
}

/// The values that a field with this one can hold.
fn of_its_type(before: &Value) -> Vec<Value> {
    match before {
        Value::Null => vec![json!({}), json!("x")],
        Value::Bool(before) => vec![json!(!before)],
        Value::Number(_) => NUMBERS.iter().map(|number| json!(number)).collect(),
        Value::String(_) => {
            let long = "9".repeat(20_000);
            TEXTS.iter().map(|text| json!(text)).chain([json!(long)]).collect()
        }
        Value::Array(items) => {
            let first = items.first().cloned().unwrap_or_default();
            let many = vec![first.clone(); 300];
            let empty = match &first {
                Value::Object(_) => json!([{}]),
                Value::String(_) => json!([""]),
                _ => json!([]),
            };
            vec![json!([]), Value::Null, empty, json!(many)]
        }
        Value::Object(fields) => {
            let mut more = fields.clone();
            more.insert("added".to_owned(), json!({ "a": [{ "b": 1.5e300 }, null, "x"] }));
            vec![json!({}), Value::Null, more.into()]
        }
    }
}

fn add_paths(value: &Value, path: String, paths: &mut Vec<String>) {
    let mut add = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        add_paths(value, format!("{path}/{key}"), paths);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| add(key, value)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| add(&at.to_string(), value));
        }
        _ => {}
    }
    if !path.is_empty() {
        paths.push(path);
    }
}

fn without(object: &Value, path: &str) -> Value {
    let mut object = object.clone();
    let (parent, key) = path.rsplit_once('/').unwrap_or_default();
    let key = key.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&key)),
        Some(Value::Array(items)) => drop(items.pop()),
        _ => {}
    }
    object
}

fn metadata(namespace: Option<&str>, annotations: &Value) -> Value {
    json!({
        "name": "a", "namespace": namespace, "uid": "u", "resourceVersion": "1", "generation": 1,
        "creationTimestamp": "2026-11-20T09:00:00Z", "deletionTimestamp": "2026-11-20T10:00:00Z",
        "deletionGracePeriodSeconds": 30, "finalizers": ["example.org/wait"],
        "labels": { "app": "web", "pod-template-hash": "7c9f", "topology.kubernetes.io/zone": "a" },
        "annotations": annotations,
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7c9f", "uid": "r",
            "controller": true, "blockOwnerDeletion": true,
        }],
        "managedFields": [{
            "manager": "kubelet", "operation": "Update", "apiVersion": "v1",
            "time": "2026-11-20T09:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": { "f:status": {} },
        }],
    })
}

/// A bound pod with a GPU, sidecars, a resize and every field that some program reads.
#[must_use]
pub fn pod() -> Value {
    let annotations = json!({
        "plimsoll.dev/gpu-claim": "{\"init\":{\"GPU-0\":3},\"beside\":{\"GPU-0\":3},\"main\":{\"GPU-0\":3}}",
        "plimsoll.dev/expected-use": "{\"cpu\":\"500m\",\"memory\":\"1Gi\"}",
        "plimsoll.dev/gpu-card-count": "1", "plimsoll.dev/gpu-cores": "50",
        "plimsoll.dev/gpu-mem-limit": "4", "plimsoll.dev/gpu-model": "*A10*",
        "plimsoll.dev/gpu-placement": "binpack", "plimsoll.dev/gpu-isolation": "none",
        "kubernetes.io/egress-bandwidth": "10M", "plimsoll.dev/disk-write": "5M",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
    });
    let quantities = json!({ "cpu": "500m", "memory": "1Gi", "aliyun.com/gpu-mem": "3", "hugepages-2Mi": "4Mi" });
    let resources = json!({
        "requests": quantities, "limits": quantities, "claims": [{ "name": "c", "request": "r" }],
    });
    let probe = json!({ "httpGet": { "port": 8080, "path": "/" }, "periodSeconds": 10 });
    let container = |name: &str, policy: Value| {
        json!({
            "name": name, "image": "registry.example/web:1", "command": ["run"], "args": ["--fast"],
            "env": [{ "name": "A", "value": "b" }], "resources": resources, "restartPolicy": policy,
            "ports": [{ "containerPort": 80, "hostPort": 8080, "protocol": "TCP" }],
            "volumeMounts": [{ "name": "v", "mountPath": "/dev/shm" }],
            "volumeDevices": [{ "name": "d", "devicePath": "/dev/x" }], "livenessProbe": probe,
        })
    };
    let ran = json!({ "startedAt": "2026-11-20T09:00:05Z", "finishedAt": "2026-11-20T09:00:09Z", "exitCode": 1 });
    let status = |name: &str| {
        json!({
            "name": name, "ready": true, "restartCount": 1, "image": "i", "imageID": "i",
            "containerID": "containerd://abc", "started": true, "allocatedResources": quantities,
            "resources": { "requests": quantities, "limits": quantities },
            "state": { "running": { "startedAt": "2026-11-20T09:00:10Z" }, "terminated": null },
            "lastState": { "terminated": ran },
        })
    };
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "m", "observedGeneration": 1,
            "lastProbeTime": "2026-11-20T09:00:00Z", "lastTransitionTime": "2026-11-20T09:00:00Z",
        })
    };
    let expression =
        json!({ "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"] });
    let near =
        json!({ "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "zone" }] });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata(Some("default"), &annotations),
        "spec": {
            "nodeName": "a", "schedulerName": "default-scheduler", "priority": 10, "priorityClassName": "batch",
            "preemptionPolicy": "PreemptLowerPriority", "hostIPC": false, "hostNetwork": false,
            "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 600,
            "initContainers": [container("init", Value::Null), container("beside", json!("Always"))],
            "containers": [container("main", Value::Null)], "resources": resources, "overhead": quantities,
            "resourceClaims": [{ "name": "c", "resourceClaimName": "r" }], "nodeSelector": { "zone": "a" },
            "tolerations": [{ "key": "k", "operator": "Exists", "value": "", "effect": "NoSchedule", "tolerationSeconds": 300 }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" }, "ephemeral": null }],
            "schedulingGates": [{ "name": "g" }],
            "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule" }],
            "affinity": {
                "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                    { "matchExpressions": [expression], "matchFields": [expression] },
                ] } },
                "podAffinity": near, "podAntiAffinity": near,
            },
        },
        "status": {
            "phase": "Running", "reason": "r", "message": "m", "startTime": "2026-11-20T09:00:01Z",
            "nominatedNodeName": "a", "hostIP": "10.0.0.1", "podIP": "10.0.0.2", "observedGeneration": 1,
            "conditions": [
                condition("PodScheduled", "True", ""), condition("Ready", "False", "ContainersNotReady"),
                condition("PodResizePending", "True", "Deferred"),
            ],
            "initContainerStatuses": [status("init"), status("beside")], "containerStatuses": [status("main")],
            "ephemeralContainerStatuses": [status("debug")], "allocatedResources": quantities,
            "extendedResourceClaimStatus": { "resourceClaimName": "r", "requestMappings": [{ "containerName": "main" }] },
            "resources": { "requests": quantities, "limits": quantities },
        },
    })
}

/// A node with two GPUs and with readings.
#[must_use]
pub fn node() -> Value {
    let gpu = |index: u32| {
        json!({
            "uuid": format!("GPU-{index}"), "index": index, "model": "NVIDIA A10", "memoryMiB": 24_576,
            "units": 24, "healthy": true, "pods": { "u": 3 },
        })
    };
    let annotations = json!({
        "cpu_usage_avg_5m": "0.63012,2026-11-20T09:00:00Z", "node_hot_value": "2,2026-11-20T09:00:00Z",
        "plimsoll.dev/gpu-cards": json!([gpu(0), gpu(1)]).to_string(), "plimsoll.dev/exporter": "10.0.0.1:19101",
        "plimsoll.dev/gpu-isolation": "none", "plimsoll.dev/network-speed": "10G",
        "plimsoll.dev/gpu-share": "{\"time\":\"2026-11-20T09:00:00Z\",\"cards\":[]}",
    });
    let quantities = json!({
        "cpu": "16", "memory": "64Gi", "pods": "110", "aliyun.com/gpu-mem": "48", "hugepages-2Mi": "4Mi",
    });
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata(None, &annotations),
        "spec": {
            "podCIDR": "10.1.0.0/24", "unschedulable": true,
            "taints": [{ "key": "gpu", "value": "a10", "effect": "NoSchedule", "timeAdded": "2026-11-20T09:00:00Z" }],
        },
        "status": {
            "capacity": quantities, "allocatable": quantities,
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m",
                "lastHeartbeatTime": "2026-11-20T09:00:00Z", "lastTransitionTime": "2026-11-20T09:00:00Z",
            }],
            "nodeInfo": { "containerRuntimeVersion": "containerd://2.0.5", "kubeletVersion": "v1.36.0" },
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10_250 } },
            "images": [{ "names": ["a"], "sizeBytes": 5 }],
        },
    })
}

/// A PodDisruptionBudget.
#[must_use]
pub fn budget() -> Value {
    let expression = json!({ "key": "app", "operator": "In", "values": ["web"] });
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(Some("default"), &json!({})),
        "spec": {
            "minAvailable": "50%", "maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": { "matchLabels": { "app": "web" }, "matchExpressions": [expression] },
        },
        "status": {
            "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3, "observedGeneration": 1,
            "disruptedPods": { "a": "2026-11-20T09:00:00Z" },
            "conditions": [{ "type": "DisruptionAllowed", "status": "True", "lastTransitionTime": "2026-11-20T09:00:00Z" }],
        },
    })
}

/// An EndpointSlice.
#[must_use]
pub fn endpoint_slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": metadata(Some("default"), &json!({})),
        "ports": [{ "name": "statistics", "port": 19_101, "protocol": "TCP", "appProtocol": "http" }],
        "endpoints": [{
            "addresses": ["10.0.0.1"], "nodeName": "a", "hostname": "a", "zone": "a",
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "name": "p", "namespace": "default", "uid": "u" },
        }],
    })
}

/// A ResourceSlice with a GPU and a part of another one, as NVIDIA's driver publishes them.
#[must_use]
pub fn device_slice() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata(None, &json!({})),
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "a", "allNodes": false,
            "pool": { "name": "a", "generation": 1, "resourceSliceCount": 1 },
            "devices": [
                {
                    "name": "gpu-0",
                    "attributes": {
                        "type": { "string": "gpu" }, "uuid": { "string": "GPU-0" }, "minor": { "int": 0 },
                        "driverVersion": { "version": "580.95.5" }, "shared": { "bool": false },
                        "resource.kubernetes.io/pciBusID": { "string": "0000:07:00.0" },
                    },
                    "capacity": { "memory": { "value": "40Gi" } },
                    "taints": [{ "key": "k", "value": "", "effect": "NoSchedule", "timeAdded": "2026-11-20T09:00:00Z" }],
                },
                {
                    "name": "gpu-1-mig-19",
                    "attributes": { "uuid": { "string": "MIG-1" }, "parentUUID": { "string": "GPU-1" } },
                    "consumesCounters": [{ "counterSet": "c", "counters": { "memory": { "value": "5Gi" } } }],
                },
            ],
        },
    })
}

/// A ResourceClaim with a share of a GPU and a device of another driver, as kube-scheduler writes it.
#[must_use]
pub fn resource_claim() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata(Some("default"), &json!({})),
        "spec": { "devices": {
            "requests": [
                { "name": "gpu", "exactly": {
                    "deviceClassName": "gpu-share.plimsoll.dev", "allocationMode": "ExactCount", "count": 1,
                    "capacity": { "requests": { "memory": "4Gi", "cores": "30" } },
                    "selectors": [{ "cel": { "expression": "true" } }],
                } },
                { "name": "nic", "firstAvailable": [{ "name": "fast", "deviceClassName": "nic.example.com" }] },
            ],
            "config": [{ "requests": ["gpu"], "opaque": { "driver": "gpu.plimsoll.dev", "parameters": {
                "apiVersion": "plimsoll.dev/v1", "kind": "ShareConfig", "memoryLimit": "6Gi",
            } } }],
        } },
        "status": {
            "reservedFor": [{ "resource": "pods", "name": "p", "uid": "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55" }],
            "allocation": {
                "allocationTimestamp": "2026-11-20T09:00:00Z",
                "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [
                    { "key": "metadata.name", "operator": "In", "values": ["a"] },
                ] }] },
                "devices": {
                    "results": [
                        {
                            "request": "gpu", "driver": "gpu.plimsoll.dev", "pool": "a",
                            "device": "gpu-aaaaaaaa-1111-2222-3333-444444444444",
                            "shareID": "c3a1f2de-5b6c-4f7a-8f0e-1d2c3b4a5968",
                            "consumedCapacity": { "memory": "4Gi", "cores": "30" },
                        },
                        { "request": "nic/fast", "driver": "nic.example.com", "pool": "a", "device": "eth1", "adminAccess": true },
                    ],
                    "config": [{ "source": "FromClaim", "requests": ["gpu"], "opaque": {
                        "driver": "gpu.plimsoll.dev", "parameters": {
                            "apiVersion": "plimsoll.dev/v1", "kind": "ShareConfig", "memoryLimit": "6Gi",
                        },
                    } }],
                },
            },
            "devices": [],
        },
    })
}

/// A Lease that another process holds.
#[must_use]
pub fn lease() -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": metadata(Some("default"), &json!({ "plimsoll.dev/address": "10.0.0.1:39999" })),
        "spec": {
            "holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-20T09:00:00.000000Z", "renewTime": "2026-11-20T09:00:00.000000Z",
            "strategy": "OldestEmulationVersion", "preferredHolder": "other",
        },
    })
}

/// A ConfigMap.
#[must_use]
pub fn config_map() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "immutable": false, "data": { "policy.yaml": "a: b" },
        "binaryData": { "x": "AAAA" }, "metadata": metadata(Some("default"), &json!({ "a": "b" })),
    })
}

/// The use of a node, as metrics-server reports it.
#[must_use]
pub fn node_metrics() -> Value {
    json!({
        "apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics", "metadata": metadata(None, &json!({})),
        "timestamp": "2026-11-20T09:00:07Z", "window": "10.064s", "usage": { "cpu": "251543711n", "memory": "1931844Ki" },
    })
}
