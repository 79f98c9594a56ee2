//! The Kubernetes API: objects become facts, decisions become patches and bindings.
//!
//! The only crate that names `kube` and `k8s-openapi`. Invariants: a field that cannot be read costs that field of that
//! object alone, and is named in the log; nothing missing is ever read as zero; every call has a deadline; a call that
//! may or may not have been carried out has an outcome of its own ([`BindOutcome::Unknown`]).
//!
//! * [`client()`]: a client from the pod's own service account or a kubeconfig.
//! * [`Pod`], [`Node`]: the parts of the objects that Plimsoll reads, and nothing else, so that a
//!   watch over a large cluster neither parses nor keeps the rest.
//! * [`PodFacts`], [`NodeFacts`]: the same in placement's types.
//! * [`watch_pods`], [`watch_nodes`], [`watch_service`]: an endless stream of whole lists and single changes.
//! * [`list_node_uses`]: what metrics-server reports of nodes.
//! * [`get_resource_claim`], [`watch_resource_claims`]: which shares of devices are allocated to pods.
//! * [`write_device_slice`]: the devices that a node offers.
//! * [`list_endpoints`]: where a Service's pods answer.
//! * [`Elector`], [`Leadership`]: which of several replicas may write.
//! * [`bind()`], [`get_pod`] and the patches: every write that Plimsoll makes.
#![deny(missing_docs)]

mod answer;
mod bind;
mod budget;
mod call;
mod client;
mod config_map;
mod device_offer;
mod endpoints;
mod event;
mod evict;
mod gpu;
mod lease;
mod meta;
mod moves;
mod node;
mod node_metrics;
mod object;
mod patch;
mod pod;
mod preemption;
mod quantity;
mod resource_claim;
mod resource_slice;
mod share_ask;
mod taint;
mod watch;

pub use bind::{BindOutcome, Binding, bind, get_pod, get_pod_and_text};
pub use budget::Budgets;
pub use call::CallError;
pub use client::{ClientError, ServerPlace, client, client_and_place};
pub use config_map::{ConfigMapFacts, write_config_map};
pub use device_offer::{
    DeviceAttribute, DeviceOffer, DeviceTaint, OfferedShare, delete_device_slice, slice_name,
    write_device_slice,
};
pub use endpoints::{ServicePort, SliceFacts, list_endpoints};
pub use event::{ConfigMapReference, EventKind, EventText, EventWriter, PodReference};
pub use evict::{EvictOutcome, evict, try_evict};
pub use gpu::{ClaimError, MAX_ANNOTATION_BYTES, claim_annotations, no_claim};
pub use lease::{Elector, Holder, Leadership, LeaseSettings};
pub use meta::Annotations;
pub use moves::{applicant, controller, read_node};
pub use node::{ExporterError, Node, NodeFacts, exporter_address};
pub use node_metrics::{NodeUse, list_node_uses};
pub use object::objects_read_in_part;
pub use patch::{
    NodeCondition, mark_assigned, patch_node_annotations, patch_node_capacity,
    patch_node_condition, patch_node_labels, patch_node_taint, patch_own_node, record_claim,
};
pub use placement::gpu::{MPS_PIPES, MPS_SHARED_MEMORY, MpsConflict};
pub use placement::quantity::QuantityError;
pub use placement::selector::LabelSelector;
pub use pod::{
    ContainerRuns, Declared, Deletion, ExpectedUseError, GpuAnnotation, GpuPod, GpuRequestError,
    MAX_GPU_POD, NODE_FAULT, Pod, PodFacts, PodGroup, ValueError, Wait,
};
pub use preemption::{NodePods, Occupants, node_pods};
pub use resource_claim::{
    Allocated, DeviceResult, OpaqueConfig, ResourceClaim, ResourceClaimError, ResourceClaimFacts,
    WatchedResourceClaim, get_resource_claim,
};
pub use resource_slice::{DeviceName, DeviceSlice, OfferedDevice, SliceContent, has_device_slices};
pub use share_ask::ShareAsk;
pub use taint::{NodeTaints, Taint, TaintEffect};
pub use watch::{
    Event, Events, Scope, WatchCause, WatchHealth, watch_config_map, watch_device_slices,
    watch_nodes, watch_pods, watch_resource_claims, watch_service,
};

pub use kube::Client;
