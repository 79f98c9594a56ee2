//! Evicts pods for a GPU pod that no GPU has room for (`--evict-for-cards`, `--move-for-cards`).
//!
//! kube-scheduler sees a node's total only. Where the totals suffice, its preemption finds no pod to evict and never
//! begins (kubernetes/kubernetes#139270), whatever the pod's priority. Filter reports such pods to a task of their own.
//! After a pod has waited for a while, the task evicts the fewest and least important pods of one GPU through the
//! Eviction API, and keeps that GPU for the pod.
//!
//! Nor does its preemption begin for a pod whose ResourceClaim finds no room: it does not know that a claim ends with
//! the pod that owns it. It asks no extender then either, so the task takes these pods from the view, and looks at
//! their rules itself, but for those that a node's pods have about others. What it keeps for them, other replicas do
//! not know.
//!
//! With `--move-for-cards` it first looks for pods whose successors fit elsewhere ([`crate::moves`]). That also helps
//! pods that no node has enough units for in total. kube-scheduler does not call Filter for these, so the task takes
//! them from the view.
//!
//! Invariants: only the leader evicts; only pods of lower priority, and by moves those as important that are marked as
//! safe to evict; none whose PodDisruptionBudgets allow no eviction; and not more a minute than the limit. Before the
//! first eviction, a dry run of each has succeeded. For one pod, others are evicted once in [`waiting::KEEP_FOR`] at
//! most, and with growing pauses; after moves that did not help it, none are moved for it ([`moved_for`]). Each
//! namespace has its turn. Filter does not wait for any of this.

mod choice;
mod events;
mod evictor;
mod moved_for;
mod reports;
mod rounds;
mod waiting;

pub(crate) use self::evictor::{EvictionLimits, EvictionModes, Evictor};
pub(crate) use self::reports::GpuEvictions;
#[cfg(test)]
pub(crate) use self::{moved_for::MovedFor, waiting::PodsWithoutGpu};
