//! Offers GPU memory to the kubelet and gives each container the card of its pod's claim.
//!
//! Modules import only what stands above them here:
//!
//! | module | what it owns |
//! |---|---|
//! | [`cards`] | the node's cards: device ids, health, NVML |
//! | [`nvidia`] | what NVIDIA's container toolkit has set up for them |
//! | [`isolation`] | how containers are held to their share |
//! | [`unhealthy_map`] | Aliyun's ConfigMap of unhealthy cards |
//! | [`container`] | what a container is given: CDI specification, response to Allocate |
//! | [`pods`] | the node's pods by the API server |
//! | [`processes`] | the processes on the cards, and of which pods they are |
//! | [`node_events`] | events about the node |
//! | [`records`] | which container holds which device ids |
//! | [`lingering`] | pods that are gone while their processes run |
//! | [`report`] | what the node and its pods carry as annotations and status |
//! | [`admission`] | GetPreferredAllocation, Allocate, PreStartContainer |
//! | [`audit`] | claims, the kubelet's records and processes, compared again and again |
//! | [`kubelet`] | gRPC and registration |
//! | [`app`] | the wiring |

pub mod admission;
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
