//! The cost of a placement: the free GPU memory and compute that it makes useless for future pods. Each pod is placed
//! where it costs least.
//!
//! The cost of a pod on some GPUs of a node is the growth of four sums, in GPUs:
//!
//! * **Fragments**, after fragmentation gradient descent (Weng et al., USENIX ATC 2023): for each kind of pod that was
//!   requested recently ([`TypicalPods`]), the free room of the node that the kind cannot use, times the kind's
//!   frequency. A kind that fits few GPUs of the cluster counts more, in inverse proportion to these GPUs, since its
//!   pods need them more often. So a pod that accepts every model leaves scarce models free.
//! * **Stranded room**: free GPUs for which the node's free CPU does not suffice, at the CPU that goes with a GPU
//!   that is given out, that of pods without GPUs included.
//! * **Packing loss**: the free part of each GPU, less the part that the best set of typical pods can fill. Which
//!   sizes fill a GPU well follows from the mix itself, by the prices of the cutting-stock problem (Gilmore and
//!   Gomory, 1961). The mix is half what is requested and half what pods hold ([`HeldParts`]).
//! * **Places**: of the places for pods with several GPUs, those that the pod takes away, each at the chance that it
//!   will be needed ([`Measure::repriced`]).
//!
//! Whether a kind accepts a GPU goes by the model of that GPU, so that nodes with several models are rated correctly.
//!
//! Invariant: the same free room, request and measure give the same GPUs and the same cost. Costs are integers, so
//! that ties are exact and the first of equal nodes in a fixed order is filled first. Choosing among equal nodes at
//! random costs several percent of a cluster's GPUs.

mod held;
mod kind;
mod large;
mod measure;
mod node;
mod packing;
mod request_counter;
mod room;
mod typical;

pub use held::HeldParts;
pub use measure::{Cost, Measure, NodeClass};
pub(super) use node::MeasuredNode;
pub use request_counter::RequestCounter;
pub use room::{GpuPart, PodShape};
pub use typical::TypicalPods;
