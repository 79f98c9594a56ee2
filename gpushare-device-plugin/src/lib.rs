//! Offers GPU memory to the kubelet and gives each container the card of its pod's claim.
//!
//! Modules import only modules above them in this table:
//!
//! | module | what it owns |
//! |---|---|
//! | [`cards`] | the node's cards: device ids, health, NVML |
//! | [`nvidia`] | what NVIDIA's container toolkit has set up for them |
//! | [`isolation`] | how containers are limited to their share of a card |
//! | [`unhealthy_map`] | Aliyun's ConfigMap of unhealthy cards |
//! | [`container`] | the response to Allocate, and our CDI specification |
//! | [`pods`] | the node's pods, as the API server shows them |
//! | [`processes`] | the processes on the cards, with the pod and container of each |
//! | [`node_events`] | events about the node |
//! | [`records`] | which container holds which device ids |
//! | [`lingering`] | deleted pods whose processes still run |
//! | [`report`] | the annotations and status that are written on the node and its pods |
//! | [`admission`] | GetPreferredAllocation, Allocate, PreStartContainer |
//! | [`audit`] | the periodic comparison of claims, the kubelet's records and processes |
//! | [`kubelet`] | gRPC and registration |
//! | [`app`] | the wiring |

pub mod admission;
pub mod api_reach;
pub mod app;
pub mod args;
pub mod audit;
pub mod cards;
pub mod container;
#[cfg(test)]
mod fixtures;
pub mod isolation;
pub mod kubelet;
pub mod lingering;
pub mod metrics;
pub mod node_events;
pub mod nvidia;
pub mod pods;
pub mod processes;
pub mod records;
pub mod report;
pub mod unhealthy_map;
