//! Sharing GPU memory: GPUs, requests, claims, the decision for a GPU, and the ledger.
//!
//! Rule: all containers of a pod share its GPUs, as in Aliyun's gpushare, whose tools and annotations know one GPU a
//! pod unless the pod requests more. [`choose`] is the only rule that picks them; Filter, Prioritize, preempt, explain,
//! Bind and the benchmarks all go by it.
//!
//! A pod requests units ([`GpuRequest`]). Bind has the node's ledger ([`NodeLedger`]) reserve a GPU for it
//! ([`Reservation`]) and writes the [`Claim`] on the pod. From there the pod's [`Stage`] goes on as the API server and
//! the kubelet's records show it. A [`ResourceClaim`] of our own driver is charged as kube-scheduler has allocated it.
//! Readers see what is free and what is charged ([`NodeGpus`]) as of the last change.

mod account;
mod annotation_value;
mod back_off;
mod beyond_units;
mod capacity;
mod choice_rule;
mod claim;
mod device;
mod entry;
mod filter;
mod fit;
mod for_claims;
pub mod fragmentation;
mod free_gpu;
mod given_out;
mod isolation;
mod ledger;
mod mps_conflict;
mod node_gpus;
mod preemption;
mod rating;
mod request;
mod resource_claim;
mod share;
mod sharing;
mod strategy;
mod topology;
mod unmanaged;

pub use account::{Account, Basis, Charge};
pub use annotation_value::UnexpectedValue;
pub use back_off::NodeBackOff;
pub use beyond_units::{BeyondUnits, Excess};
pub use capacity::Capacity;
pub use choice_rule::ChoiceRule;
pub use claim::{Claim, ClaimError};
pub use device::{Closed, Gpu};
pub use entry::{Reservation, Stage};
pub use filter::{GpuFilter, PatternError, Patterns};
pub use fit::{Choice, Fit, NoFit, choose};
pub use free_gpu::{ChosenGpu, FreeGpu, GpuFit};
pub use given_out::GivenOut;
pub use isolation::{Isolation, UnknownIsolation};
pub use ledger::{NodeLedger, ReserveError};
pub use mps_conflict::{MPS_PIPES, MPS_SHARED_MEMORY, MpsConflict, excludes_mps};
pub use node_gpus::NodeGpus;
pub(crate) use preemption::freeing_gpus;
pub use preemption::{Candidates, Evictable, Shortfall, Victims, fewest_on_gpus, victims};
pub use rating::{Rating, score_less_gpu_cost, scores};
pub use request::{ContainerKind, ContainerRequest, GpuOptions, GpuRequest, RequestError};
pub use resource_claim::{ClaimedDevice, ResourceClaim};
pub use share::{GpuShare, GpuShares, GpuUse};
pub use sharing::{GpuIsolation, PodIsolation, Sharers, Sharing};
pub use strategy::{Strategy, UnknownStrategy};
pub use topology::{GpuSet, Topology};
pub use unmanaged::{MeasuredGpu, MeasuredMemory, in_both_measurements};
