//! Tests of GPU sharing: which card a pod's processes see, and which cards are given to which pods.

pub(crate) mod cards;
pub(crate) mod kubelet_restarts;
