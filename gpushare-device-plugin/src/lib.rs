//! Offers GPU memory to the kubelet and gives each container the GPU of its pod's claim.
//!
//! Modules import only modules above them in this table:
//!
//! | module | what it owns |
//! |---|---|
//! | [`metrics`] | the metrics of all modules |
//! | [`pods`] | the node's pods, as the API server shows them |
//! | [`node_events`] | events about the node and its pods |
//! | [`api_reach`] | whether the API server can be reached |
//! | [`gpus`] | the node's GPUs: device ids, health, NVML |
//! | [`unhealthy_map`] | Aliyun's ConfigMap of unhealthy GPUs |
//! | [`processes`] | the processes on the GPUs, with the pod and container of each |
//! | [`nvidia`] | what NVIDIA's container toolkit has set up for the GPUs |
//! | [`isolation`] | how containers are limited to their share of a GPU |
//! | [`container`] | the response to Allocate, and our CDI specification |
//! | [`cdi_watch`] | the periodic check of both CDI specifications |
//! | [`records`] | which container holds which device ids |
//! | [`contexts`] | whether CUDA opens contexts on the GPUs |
//! | [`dra`] | the GPUs that DRA drivers offer and have given out |
//! | [`lingering`] | deleted pods whose processes still run |
//! | [`drain`] | the end of MPS's clients before their processes are killed |
//! | [`departure`] | whether the kubelet is served, and the orderly end |
//! | [`report`] | the annotations and status that are written on the node and its pods |
//! | [`admission`] | GetPreferredAllocation, Allocate, PreStartContainer |
//! | [`audit`] | the periodic comparison of claims, the kubelet's records and processes |
//! | [`kubelet`] | gRPC and registration |
//! | [`resource_claims`] | the driver for ResourceClaims (DRA) |
//! | [`health`] | what is well of the plugin, and what to do where it is not |
//! | [`host`] | where the host's files are |
//! | [`args`] | the flags |
//! | [`startup`] | what comes before GPUs are published and the kubelet is served |
//! | [`app`] | the wiring |

pub mod admission;
pub(crate) mod api_reach;
pub mod app;
pub mod args;
pub(crate) mod audit;
pub(crate) mod cdi_watch;
pub mod container;
pub(crate) mod contexts;
pub(crate) mod departure;
pub(crate) mod dra;
pub(crate) mod drain;
#[cfg(test)]
mod fixtures;
pub mod gpus;
pub(crate) mod health;
pub mod host;
pub mod isolation;
pub(crate) mod kubelet;
pub mod lingering;
pub mod metrics;
pub(crate) mod node_events;
pub mod nvidia;
pub mod pods;
pub mod processes;
pub mod records;
pub(crate) mod report;
pub(crate) mod resource_claims;
pub(crate) mod startup;
pub(crate) mod unhealthy_map;
