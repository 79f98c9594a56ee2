//! The names on the wire: resources and annotation keys, all derived from three settings.
//!
//! Invariant: no other module of the project spells one of these keys out.

/// Aliyun's per-pod annotation keys. They are fixed: tools of that ecosystem read them literally.
pub mod aliyun {
    /// GPU index that was chosen, decimal.
    pub const IDX: &str = "ALIYUN_COM_GPU_MEM_IDX";
    /// Units of the chosen GPU.
    pub const DEV: &str = "ALIYUN_COM_GPU_MEM_DEV";
    /// Units that the pod holds.
    pub const POD: &str = "ALIYUN_COM_GPU_MEM_POD";
    /// Units that one container holds; only ever an environment variable.
    pub const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
    /// `"false"` from Bind, `"true"` once the device plugin has handed the GPU over.
    pub const ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
    /// Nanoseconds since the epoch, decimal, when Bind chose the GPU.
    pub const ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
    /// JSON `{"<container index>": {"<card index>": units}}`, read by the inspect client.
    pub const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
    /// The name of the ConfigMap with a node's unhealthy GPUs is this and the node's name.
    pub const UNHEALTHY_GPUS_MAP: &str = "unhealthy-gpu-";
    /// Its key: the indexes of GPUs, with commas between them.
    pub const UNHEALTHY_GPUS: &str = "gpus";
}

/// Pod annotations of the CNI bandwidth plugin, their author's: what the pod may receive and send, in bits a second.
pub const INGRESS_BANDWIDTH: &str = "kubernetes.io/ingress-bandwidth";
/// See [`INGRESS_BANDWIDTH`].
pub const EGRESS_BANDWIDTH: &str = "kubernetes.io/egress-bandwidth";

/// The label of a node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// crane's annotation with the number of recent bindings, `"<count>,<time>"`.
pub const HOT_VALUE: &str = "node_hot_value";

/// Longest names that Kubernetes gives objects, in bytes.
pub mod limits {
    /// A pod's or node's name: a DNS subdomain.
    pub const NAME: usize = 253;
    /// A namespace's or container's name: a DNS label.
    pub const LABEL: usize = 63;
    /// A UID. The API server makes UUIDs of 36, the kubelet 32 digits for static pods; Kubernetes sets no limit.
    pub const UID: usize = 63;
}

/// Whether a DNS label, such as a namespace's name, may have this byte.
#[must_use]
pub fn is_of_label(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// The extended resource that tells Aliyun's tools how many GPUs a node has.
pub const GPU_COUNT_RESOURCE: &str = "aliyun.com/gpu-count";

/// Resource names and annotation keys in force. [`Names::default`] is what the field uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    gpu_resource: String,
    prefix: String,
}

impl Default for Names {
    fn default() -> Self {
        Self::new("aliyun.com/gpu-mem", "plimsoll.dev")
    }
}

impl Names {
    /// Names from the resource that pods request, and the prefix (a domain, without the slash) of our own annotations.
    pub fn new(gpu_resource: &str, prefix: &str) -> Self {
        Self {
            gpu_resource: gpu_resource.to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
        }
    }

    /// The extended resource that pods request, in units of GPU memory.
    pub fn gpu_resource(&self) -> &str {
        &self.gpu_resource
    }

    /// Node annotation: the GPUs as the device plugin sees them.
    pub fn gpus(&self) -> String {
        self.key("gpu-cards")
    }

    /// Node annotation, the operator's: UUIDs of GPUs that take no new pods.
    pub fn cordoned_gpus(&self) -> String {
        self.key("cordoned-gpus")
    }

    /// Node annotation: allocation and use per GPU, written by the annotator.
    pub fn share(&self) -> String {
        self.key("gpu-share")
    }

    /// Node label: its [band](crate::bands) for pods with GPUs, written by the annotator.
    pub fn gpu_band(&self) -> String {
        self.key("gpu-band")
    }

    /// Node label: its [band](crate::bands) for pods without GPUs, written by the annotator.
    pub fn cpu_band(&self) -> String {
        self.key("cpu-band")
    }

    /// Node annotation, the operator's: where this node's exporter answers.
    pub fn exporter(&self) -> String {
        self.key("exporter")
    }

    /// Pod annotation: the claim, per container, written at Bind.
    pub fn claim(&self) -> String {
        self.key("gpu-claim")
    }

    /// Pod annotation, its author's: what the pod will use.
    pub fn expected_use(&self) -> String {
        self.key("expected-use")
    }

    /// Pod annotation, its author's: how many GPUs a container has, and whether for its pod alone.
    pub fn gpu_count(&self) -> String {
        self.key("gpu-card-count")
    }

    /// Pod annotation, its author's: percent of the compute of each of its GPUs that is set aside for a container.
    pub fn gpu_cores(&self) -> String {
        self.key("gpu-cores")
    }

    /// Pod annotation, its author's: how many processes of a container use its GPUs at the same time.
    pub fn gpu_processes(&self) -> String {
        self.key("gpu-processes")
    }

    /// Pod annotation, its author's: units that a container may grow to.
    pub fn gpu_mem_limit(&self) -> String {
        self.key("gpu-mem-limit")
    }

    /// Pod annotation, its author's: models of GPUs that the pod accepts.
    pub fn gpu_model(&self) -> String {
        self.key("gpu-model")
    }

    /// Pod annotation, its author's: UUIDs of GPUs that the pod accepts.
    pub fn gpu_uuid(&self) -> String {
        self.key("gpu-uuid")
    }

    /// Pod annotation, its author's: how its GPUs are chosen.
    pub fn gpu_placement(&self) -> String {
        self.key("gpu-placement")
    }

    /// Node annotation: how the device plugin holds containers to their share. Pod annotation, its author's: how it is
    /// to hold this pod's, at least.
    pub fn isolation(&self) -> String {
        self.key("gpu-isolation")
    }

    /// Annotation of the ConfigMap with a node's unhealthy GPUs: the indexes that the device plugin has written.
    pub fn written_gpus(&self) -> String {
        self.key("written-gpus")
    }

    /// Node annotation, the operator's: what the node's pods can receive from the network, in bits a second.
    pub fn ingress_bandwidth(&self) -> String {
        self.key("ingress-bandwidth")
    }

    /// Node annotation, the operator's: what the node's pods can send to the network, in bits a second.
    pub fn egress_bandwidth(&self) -> String {
        self.key("egress-bandwidth")
    }

    /// Bytes a second from disks. Pod annotation, its author's: what the pod will read. Node annotation, the
    /// operator's: what the node's disks can read.
    pub fn disk_read(&self) -> String {
        self.key("disk-read")
    }

    /// As [`Names::disk_read`], for what is written.
    pub fn disk_write(&self) -> String {
        self.key("disk-write")
    }

    /// The kind of the device plugin's own CDI devices.
    pub fn cdi_kind(&self) -> String {
        self.key("gpu-mem")
    }

    /// Node label, the operator's: `claims` where the node's GPUs are given out by ResourceClaims and not by units.
    pub fn gpu_mode(&self) -> String {
        self.key("gpu-mode")
    }

    /// The device plugin's driver for ResourceClaims.
    pub fn claims_driver(&self) -> String {
        format!("gpu.{}", self.prefix)
    }

    /// The DeviceClass of shares of a GPU.
    pub fn claims_class(&self) -> String {
        format!("gpu-share.{}", self.prefix)
    }

    /// The taint of a device, as DRA has them, whose GPU takes no new ResourceClaims.
    pub fn closed_taint(&self) -> String {
        self.key("closed")
    }

    /// The taint of a device whose GPU does not work, or is cordoned.
    pub fn unhealthy_taint(&self) -> String {
        self.key("unhealthy")
    }

    /// The kind of the device plugin's CDI devices of ResourceClaims.
    pub fn claims_cdi_kind(&self) -> String {
        format!("gpu.{}", self.key("claim"))
    }

    /// Whether `key` lies in our own domain.
    pub fn owns(&self, key: &str) -> bool {
        let rest = key.strip_prefix(self.prefix.as_str());
        rest.is_some_and(|rest| rest.starts_with('/'))
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}
